"""What training says, what evaluation says, that the two never meet, and that the plain rule contradicts neither."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import pytest

from rtcontrol.agents.lander import goals as lander_goal
from rtcontrol.agents.lander.phrasings import PHRASINGS as LANDER
from rtcontrol.agents.paddle import goals as paddle_goal
from rtcontrol.agents.paddle.phrasings import PHRASINGS as PADDLE
from rtcontrol.agents.phrasing import split_words
from rtcontrol.agents.road import goals as driver_goal
from rtcontrol.agents.road.goals import VALUES, RoadGoal
from rtcontrol.agents.road.phrasings import PHRASINGS as DRIVER

MARK = re.compile(r"\{\w+\}")
GOALS: dict[str, Any] = {"lander": lander_goal, "paddle": paddle_goal, "driver": driver_goal}
PHRASINGS: dict[str, Any] = {"lander": LANDER, "paddle": PADDLE, "driver": DRIVER}
KINDS = {"lander": LANDER.kinds, "paddle": paddle_goal.KINDS, "driver": driver_goal.KINDS}
CASES = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
LIST_ONE = {"lander": 100, "paddle": 60, "driver": 60}
of_each_kind = pytest.mark.parametrize(("name", "kind"), CASES)
of_each = pytest.mark.parametrize("name", GOALS)


@cache
def patterns(name: str, kind: str) -> frozenset[str]:
    return frozenset(PHRASINGS[name].training_patterns(kind))


@cache
def trained(name: str, kind: str) -> frozenset[str]:
    """All that training makes; of the lander's numbers the patterns."""
    return frozenset(DRIVER.training_sentences(kind)) if name == "driver" else patterns(name, kind)


@cache
def everything(name: str) -> frozenset[str]:
    return frozenset().union(*(trained(name, kind) for kind in KINDS[name]))


@cache
def vocabulary(name: str) -> frozenset[str]:
    return frozenset(PHRASINGS[name].vocabulary())


def plain(text: str) -> str:
    return text.rstrip(".!").lower()


@of_each_kind
def test_list_one_holds_sentences_that_training_never_makes(name: str, kind: str) -> None:
    listed = PHRASINGS[name].seen_words(kind)
    assert len({text for text, _ in listed}) >= LIST_ONE[name]
    assert everything(name).isdisjoint(text for text, _ in listed)


@of_each_kind
def test_the_plain_rule_never_contradicts_a_label(name: str, kind: str) -> None:
    recognise = GOALS[name].recognise
    for text, goal in PHRASINGS[name].seen_words(kind):
        assert recognise(text) == goal, text
    for text, goal in PHRASINGS[name].unseen_words(kind):
        assert recognise(text) in (goal, None), text


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] != "lander"])
def test_the_plain_rule_reads_every_training_pattern_as_its_goal_and_no_other(name: str, kind: str) -> None:
    for index, pattern in enumerate(sorted(patterns(name, kind))):
        goals: Any = DRIVER.pattern_goals(pattern, kind) if name == "driver" else [paddle_goal.PaddleGoal(kind)]
        # A number's place is the same for all numbers: they take turns. Left is not right: both are asked.
        in_turn = name == "driver" and isinstance(goals[0].value, int)
        for goal in goals[index % len(goals) :][:1] if in_turn else goals:
            for text in DRIVER.sentences_of(pattern, goal) if name == "driver" else [pattern]:
                assert GOALS[name].recognise(text) == goal, text
    for other in KINDS[name]:
        assert other == kind or trained(name, kind).isdisjoint(trained(name, other))


@of_each
def test_training_draws_agree_with_the_rule_and_stay_in_the_vocabulary(name: str) -> None:
    rng, said = random.Random(0), PHRASINGS[name]
    known, drawn = vocabulary(name), set()
    for _ in range(3000):
        goal = said.sample_goal(rng)
        text = said.training_instruction(rng, goal)
        drawn.add(goal)
        assert GOALS[name].recognise(text) == goal, text
        assert known.issuperset(split_words(text)), text
        if text != goal.text() and not (name == "lander" and goal.kind == "hover"):
            first = text[0].lower() + text[1:]  # names of the lander's world may be capital letters
            assert (first.removesuffix(".") if name == "lander" else plain(text)) in trained(name, goal.kind), text
    if name == "driver":
        assert drawn == {RoadGoal(kind, value) for kind in KINDS["driver"] for value in VALUES.get(kind, (None,))}


def test_canonical_sentences_are_trained_and_recognised() -> None:
    hover = [lander_goal.LanderGoal("hover", 0.0, 0.7), lander_goal.LanderGoal("hover", -0.25, 1.0)]
    for goal in (*map(lander_goal.LanderGoal, ("land", "left", "right")), *hover):
        assert lander_goal.recognise(goal.text()) == goal
    assert {"hover at {Y}", "hover at {Y} and x {X}"} <= patterns("lander", "hover")
    for kind in KINDS["paddle"]:
        assert paddle_goal.recognise(paddle_goal.CANONICAL[kind]) == paddle_goal.PaddleGoal(kind)
        assert paddle_goal.CANONICAL[kind].lower() in trained("paddle", kind)
    for kind in KINDS["driver"]:
        for value in VALUES.get(kind, (None,)):
            assert DRIVER.training_sentences(kind)[RoadGoal(kind, value).text()] == RoadGoal(kind, value)


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
def test_plain_instructions_are_recognised(text: str, kind: Any) -> None:
    assert paddle_goal.recognise(text) == (None if kind is None else paddle_goal.PaddleGoal(kind))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("land right now", "land"),
        ("Right now, touch down right in the centre.", "land"),
        ("right now land on the right", "right"),
        ("settle on the right now", "right"),
        ("go right and land", "right"),
    ],
)
def test_right_now_is_no_side(text: str, kind: Any) -> None:
    assert lander_goal.recognise(text) == lander_goal.LanderGoal(kind)
    for side in ("left", "right"):
        assert not [pattern for pattern in patterns("lander", side) if re.search(r"(?<!the )\bright now\b", pattern)]
    assert "land right now" in patterns("lander", "land")
