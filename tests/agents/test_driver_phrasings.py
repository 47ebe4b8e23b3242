"""What training says, what evaluation says, that the two never meet, and that the plain rule contradicts neither."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache

import pytest

from rtcontrol.agents import driver_held_out, driver_templates
from rtcontrol.agents.driver_goal import DEFAULT_GAP, GAPS, KINDS, SPEEDS, VALUES, Goal, Kind, recognise
from rtcontrol.agents.driver_phrasings import (
    evaluation_patterns,
    goals_of,
    sample_goal,
    seen_words,
    training_instruction,
    training_patterns,
    training_sentences,
    unseen_words,
    vocabulary,
    written,
)
from rtcontrol.agents.phrasing import split_words

MARK = re.compile(r"\{\w+\}")


@cache
def patterns(kind: Kind) -> tuple[str, ...]:
    return tuple(dict.fromkeys(training_patterns(kind)))


def plain(text: str) -> str:
    return text.rstrip(".!").lower()


@pytest.mark.parametrize("kind", KINDS)
def test_training_has_thousands_of_sentences_a_kind(kind: Kind) -> None:
    assert len(patterns(kind)) >= 1500


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_rule_reads_every_training_pattern_as_its_goal(kind: Kind) -> None:
    for index, pattern in enumerate(patterns(kind)):
        goals = goals_of(pattern, kind)
        # A number's place is the same for all numbers: they take turns. Left is not right: both are asked.
        numbered = isinstance(goals[0].value, int)
        for goal in goals[index % len(goals) :][:1] if numbered else goals:
            for text in written(pattern, goal):
                assert recognise(text) == goal, text


def test_no_sentence_asks_for_goals_of_two_kinds() -> None:
    for index, kind in enumerate(KINDS):
        for other in KINDS[:index]:
            assert training_sentences(kind).keys().isdisjoint(training_sentences(other))


@pytest.mark.parametrize("kind", KINDS)
def test_list_one_holds_sentences_that_training_never_makes(kind: Kind) -> None:
    made = set(evaluation_patterns(kind))
    texts = [text for text, _ in seen_words(kind)]
    assert len(set(texts)) == 60
    for text, goal in seen_words(kind):
        assert not any(text in training_sentences(other) for other in KINDS), text
        assert recognise(text) == goal, text
        if goal.value is None:
            assert text in made


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_of_list_one_occurs_in_training_for_the_same_kind(kind: Kind) -> None:
    words = {word for pattern in patterns(kind) for word in split_words(MARK.sub(" ", pattern))}
    for mark in {mark for pattern in patterns(kind) for mark in MARK.findall(pattern)}:
        words |= {word for g in goals_of(mark, kind) for text in written(mark, g) for word in split_words(text)}
    for text, _ in seen_words(kind):
        assert set(split_words(text)) <= words, text


@pytest.mark.parametrize("kind", KINDS)
def test_list_two_shows_words_that_training_never_does_and_contradicts_no_label(kind: Kind) -> None:
    known = {word.lower() for word in vocabulary()}
    texts = [text for text, _ in unseen_words(kind)]
    assert len(set(texts)) == 60
    for text, goal in unseen_words(kind):
        assert {word.lower() for word in split_words(text)} - known, text
        assert recognise(text) in (goal, None), text


@pytest.mark.parametrize("kind", VALUES)
def test_both_lists_ask_for_all_values_about_as_often(kind: Kind) -> None:
    for sentences in (seen_words(kind), unseen_words(kind)):
        counts = Counter(goal.value for _, goal in sentences)
        assert set(counts) == set(VALUES[kind])
        assert min(counts.values()) >= 60 // len(counts) - 3


def test_training_draws_come_from_the_patterns_and_stay_in_the_vocabulary() -> None:
    rng = random.Random(0)
    drawn: set[Goal] = set()
    for _ in range(4000):
        goal = sample_goal(rng)
        text = training_instruction(rng, goal)
        drawn.add(goal)
        assert recognise(text) == goal, text
        assert vocabulary().issuperset(split_words(text)), text
        assert training_sentences(goal.kind)[plain(text)] == goal
    assert drawn == {Goal(kind, value) for kind in KINDS for value in VALUES.get(kind, (None,))}


def test_training_sentences_show_no_number_but_their_goals() -> None:
    for kind in KINDS:
        assert not [pattern for pattern in patterns(kind) if re.search(r"\d", pattern)]
    for goal in (*(Goal("speed", speed) for speed in SPEEDS), *(Goal("follow", gap) for gap in GAPS)):
        assert list(written("{V}", goal)) == [str(goal.value)]


def test_following_at_no_gap_in_particular_means_the_usual_one() -> None:
    rng = random.Random(3)
    for gap in GAPS:
        silent = sum(
            str(gap) not in split_words(training_instruction(rng, Goal("follow", gap)).rstrip(".!")) for _ in range(200)
        )
        assert (silent > 0) == (gap == DEFAULT_GAP)


def test_canonical_sentences_are_training_sentences() -> None:
    for kind in KINDS:
        for value in VALUES.get(kind, (None,)):
            goal = Goal(kind, value)
            assert training_sentences(kind)[goal.text()] == goal


def test_numbers_are_words_of_the_vocabulary() -> None:
    assert {str(value) for value in SPEEDS + GAPS} <= vocabulary()


def test_templates_name_known_slots_only() -> None:
    trained_slots = {*driver_templates.SLOTS, "V", "O", "way", "next"}
    unseen_slots = {*driver_held_out.UNSEEN_SLOTS, "V", "O", "way", "next"}
    for kind in KINDS:
        for templates, slots in (
            (driver_templates.TRAIN[kind], trained_slots),
            (driver_held_out.EVAL[kind], trained_slots),
            (driver_held_out.UNSEEN[kind], unseen_slots),
            (driver_templates.TRAIN_USUAL_GAP, trained_slots),
        ):
            for template in templates:
                assert {part.split("}")[0] for part in template.split("{")[1:]} <= slots, template
