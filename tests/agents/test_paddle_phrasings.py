"""What training says, what evaluation says, and that the two never meet."""

from __future__ import annotations

import random
from functools import cache

import pytest

from rtcontrol.agents.paddle_goal import CANONICAL, KINDS, Goal, Kind, recognise
from rtcontrol.agents.paddle_phrasings import (
    evaluation_patterns,
    sample_goal,
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


@pytest.mark.parametrize("kind", KINDS)
def test_training_has_thousands_of_sentences_a_goal(kind: Kind) -> None:
    assert len(trained(kind)) >= 1000


@pytest.mark.parametrize("kind", KINDS)
def test_no_sentence_asks_for_two_goals(kind: Kind) -> None:
    others = frozenset().union(*(trained(other) for other in KINDS if other != kind))
    assert trained(kind).isdisjoint(others)


@pytest.mark.parametrize("kind", KINDS)
def test_list_one_holds_sentences_that_training_never_makes(kind: Kind) -> None:
    everything = frozenset().union(*(trained(other) for other in KINDS))
    sentences = [text for text, _ in seen_words(kind)]
    assert len(set(sentences)) == 60
    assert everything.isdisjoint(sentences)
    assert frozenset(evaluation_patterns(kind)).issuperset(sentences)


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_of_list_one_occurs_in_training_for_the_same_goal(kind: Kind) -> None:
    words = {word for pattern in trained(kind) for word in split_words(pattern)}
    for text, _ in seen_words(kind):
        assert set(split_words(text)) <= words, text


@pytest.mark.parametrize("kind", KINDS)
def test_every_sentence_of_list_two_has_a_word_that_training_never_shows(kind: Kind) -> None:
    known = {word.lower() for word in vocabulary()}
    for text, _ in unseen_words(kind):
        assert {word.lower() for word in split_words(text)} - known, text


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_rule_never_contradicts_a_label(kind: Kind) -> None:
    for text in trained(kind):
        assert recognise(text) == Goal(kind), text
    for text, goal in seen_words(kind):
        assert recognise(text) == goal, text
    for text, goal in unseen_words(kind):
        assert recognise(text) in (goal, None), text


def test_training_draws_come_from_the_patterns_and_stay_in_the_vocabulary() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        goal = sample_goal(rng)
        text = training_instruction(rng, goal)
        assert recognise(text) == goal, text
        assert vocabulary().issuperset(split_words(text)), text
        if text != goal.text():
            assert text.rstrip(".!").lower() in trained(goal.kind)


def test_canonical_sentences_are_recognised() -> None:
    for kind in KINDS:
        assert recognise(CANONICAL[kind]) == Goal(kind)
        assert CANONICAL[kind].lower() in trained(kind)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Let me win!", "miss"),
        ("don't let me win", "return"),
        ("Please send every ball to the top of the screen.", "up"),
        ("go to the top", "top"),
        ("aim low, not high", "down"),
        ("copy me", "mirror"),
        ("do not miss", "return"),
        ("make tea", None),
        ("up and down", None),
    ],
)
def test_plain_instructions_are_recognised(text: str, kind: Kind | None) -> None:
    assert recognise(text) == (None if kind is None else Goal(kind))
