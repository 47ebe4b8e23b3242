"""What training says, what evaluation says, and that the two never meet."""

from __future__ import annotations

import random
from functools import cache

import pytest

from rtcontrol.agents import lander_templates
from rtcontrol.agents.lander_goal import Goal, Kind, recognise
from rtcontrol.agents.lander_phrasings import (
    KINDS,
    evaluation_patterns,
    sample_training_instruction,
    seen_words,
    training_instruction,
    training_patterns,
    unseen_words,
    vocabulary,
)
from rtcontrol.agents.phrasing import split_words


@cache
def trained(kind: Kind) -> frozenset[str]:
    return frozenset(training_patterns(kind))


def is_number(word: str) -> bool:
    return word[-1].isdigit()


@pytest.mark.parametrize("kind", KINDS)
def test_training_has_thousands_of_sentences_a_goal(kind: Kind) -> None:
    assert len(trained(kind)) >= 5000


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_templates_make_nothing_that_training_makes(kind: Kind) -> None:
    everything = frozenset().union(*(trained(other) for other in KINDS))
    assert everything.isdisjoint(evaluation_patterns(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_list_one_has_a_hundred_sentences_that_training_never_draws(kind: Kind) -> None:
    sentences = [text for text, _ in seen_words(kind)]
    assert len(set(sentences)) >= 100
    made = frozenset(evaluation_patterns(kind))
    if kind != "hover":
        assert made.issuperset(sentences)


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_of_list_one_occurs_in_training_for_the_same_goal(kind: Kind) -> None:
    words = {word for pattern in trained(kind) for word in split_words(pattern)}
    for text, _ in seen_words(kind):
        assert {word for word in split_words(text) if not is_number(word)} <= words


@pytest.mark.parametrize("kind", KINDS)
def test_every_sentence_of_list_two_has_a_word_that_training_never_shows(kind: Kind) -> None:
    known = {word.lower() for word in vocabulary()}
    for text, _ in unseen_words(kind):
        assert {word.lower() for word in split_words(text)} - known


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_rule_never_contradicts_a_label(kind: Kind) -> None:
    for text, goal in seen_words(kind):
        assert recognise(text) == goal, text
    for text, goal in unseen_words(kind):
        assert recognise(text) in (goal, None), text


def test_training_draws_agree_with_the_rule_and_stay_in_the_vocabulary() -> None:
    rng = random.Random(0)
    known = vocabulary()
    for _ in range(5000):
        text, goal = sample_training_instruction(rng)
        assert recognise(text) == goal, text
        assert known.issuperset(split_words(text)), text


def test_training_draws_come_from_the_listed_patterns() -> None:
    rng = random.Random(1)
    for _ in range(500):
        text = training_instruction(rng, Goal("left"))
        assert (text[0].lower() + text[1:]).removesuffix(".") in trained("left")


def test_canonical_sentences_are_trained_and_recognised() -> None:
    for goal in (Goal("land"), Goal("left"), Goal("right"), Goal("hover", 0.0, 0.7), Goal("hover", -0.25, 1.0)):
        assert recognise(goal.text()) == goal
    assert "hover at {Y}" in trained("hover")
    assert "hover at {Y} and x {X}" in trained("hover")


def test_templates_name_known_slots_only() -> None:
    for name, templates in vars(lander_templates).items():
        if name.startswith(("TRAIN_", "EVAL_")):
            for template in templates:
                slots = {part.split("}")[0] for part in template.split("{")[1:]}
                assert slots <= {*lander_templates.SLOTS, "D", "O", "X", "Y"}, template
