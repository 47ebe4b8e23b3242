"""Tests of goals: many ways to say a goal, goals as tools, recognition, and refusal of ambiguous goals."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.agents import Goal, Goals, InvalidCall
from rtcontrol.agents.goal_tools import parse_number
from rtcontrol.agents.road.goals import KINDS, VALUES, RoadGoal, recognise
from rtcontrol.envs import registry
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError

YARD = Goals(
    {
        "go to the {thing}": [
            "{lead} drive to the {thing}", "head for the {thing}", "find {thing}", "the {thing}", "{thing}!",
        ],
        "turn to {angle} degrees": ["face {angle}"],
        "stop": ["halt", "Stay where you are."],
    },
    {"thing": ["red box", "box"], "angle": range(0, 360, 15)},
    {"lead": ["please", "now", ""]},
)  # fmt: skip


@given(st.randoms(use_true_random=False))
def test_every_sentence_of_a_goal_is_recognised(rng: random.Random) -> None:
    goal = YARD.sample(rng)
    for text in (YARD.sentence(rng, goal), *YARD.held_out(goal)):
        assert YARD.recognise(text) == YARD.recognise(f"  {text.upper()}. ") == YARD.recognise(goal.text()) == goal


def test_number_is_recognised_within_listed_range_only() -> None:
    assert YARD.recognise("turn to 37.5 degrees") == Goal("turn to {angle} degrees", (("angle", 37.5),))
    between = YARD.recognise("turn to 37 degrees")
    assert between is not None and between.text() == "turn to 37 degrees"
    assert YARD.recognise("turn to 400 degrees") is None
    assert YARD.recognise("go to the green box") is None and YARD.recognise("") is None


def test_every_fifth_sentence_is_held_out_from_training() -> None:
    goal = Goal("go to the {thing}", (("thing", "box"),))
    assert YARD.held_out(goal) == ("box!",)
    trained = {YARD.sentence(random.Random(i), goal) for i in range(200)}
    assert "box!" not in trained and {"go to the box", "drive to the box", "please drive to the box"} <= trained
    assert YARD.held_out(Goal("stop")) == ()


def test_sentence_covered_by_training_is_not_held_out() -> None:
    ways = ["drive to the {thing}", "{lead} find the {thing}", "reach {thing}", "to {thing}", "Find the  {thing}!"]
    goals = Goals(
        {"go to the {thing}": [*ways, *ways[:1] * 4, "the {thing}, {lead}"]},
        YARD.placeholders,
        {"lead": ["please", ""]},
    )
    assert goals.held_out(Goal("go to the {thing}", (("thing", "box"),))) == ("the box, please",)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"goals": {}}, "there are no goals"),
        ({"goals": {"go to {x}": []}}, "there are no values for {x}"),
        ({"goals": {"go to {x}": ["go there"]}, "placeholders": {"x": ["a"]}}, "does not contain {x}"),
        ({"goals": {"go": ["go to {x}"]}, "placeholders": {"x": ["a"]}}, "has a placeholder {x}"),
        ({"goals": {"go": ["move"], "come": ["move"]}}, '"move" means both "come" and "go"'),
        ({"goals": {"go": "move"}}, "goals.go: Input should be a valid list"),
        ({"goals": {"go": [3]}}, "goals.go.0: Input should be a valid string"),
        ({"goals": {"go to {x}": []}, "placeholders": {"x": "abc"}}, "placeholders.x: Input should be a valid list"),
        ({"goals": {"go to {x}": []}, "placeholders": {"x": ["a"]}, "words": {"x": ["b"]}}, "a placeholder and a word"),
    ],
)
def test_unusable_goals_are_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as raised:
        Goals(**table)
    assert says in raised.value.what and raised.value.remedy


def test_untrained_words_are_unknown_but_fillers_are_not() -> None:
    goals = Goals({"go to the {colour} box": [], "wait": []}, {"colour": ["red", "blue"]})
    assert goals.unknown_words("would you please go to the boxes that are blue") == ()
    assert goals.unknown_words("both of the blue boxes") == ("both",)


GOALS = [RoadGoal(kind, value) for kind in KINDS for value in VALUES.get(kind, (None,))]


@given(st.text())
@example(f"drive at {'9' * 5000}")
def test_any_text_is_recognised_or_ignored(text: str) -> None:
    assert recognise(text) in (*GOALS, None)


# Goals as tools.

TOOLS_YARD = Goals(
    {"go to the {thing}": [], "drive at {speed}": [], "turn to {angle} degrees": [], "stop": ["halt"]},
    {"thing": ["red box", "exit", 3], "speed": [0.5, 1, 2.5], "angle": range(0, 360, 15)},
)
LANDER = registry.WORLDS["lander"].phrasings().goal_tools


@pytest.mark.parametrize("world", registry.WORLDS)
def test_bundled_goals_convert_to_calls_and_back(world: str) -> None:
    phrasings = registry.WORLDS[world].phrasings()
    rng = random.Random(0)
    for goal in (phrasings.sample_goal(rng) for _ in range(500)):
        tools = phrasings.goal_tools
        assert tools.goal_of(tools.call_of(goal)) == goal
        assert tools.canonical_goal(goal.text()) == tools.canonical_goal(f"  {goal.text().upper()}!! ") == goal


def test_user_goals_convert_to_calls() -> None:
    tools = TOOLS_YARD.goal_tools("yard")
    for goal in TOOLS_YARD:
        assert tools.goal_of(tools.call_of(goal)) == tools.canonical_goal(goal.text()) == goal
    assert [tool["function"]["name"] for tool in tools.definitions] == [
        "go_to_the_thing", "drive_at_speed", "turn_to_angle_degrees", "stop",
    ]  # fmt: skip
    assert tools.examples(5) == ["go to the red box", "drive at 0.5", "turn to 0 degrees", "stop", "go to the exit"]


def test_whole_numbers_written_as_floats_are_goals() -> None:
    goals = Goals({"go to {x}": []}, {"x": [1.0, 2.0, 3.0]})
    tools = goals.goal_tools("whole")
    assert tools.definitions[0]["function"]["parameters"]["properties"]["x"]["type"] == "integer"
    for goal in goals:
        call = tools.call_of(goal)
        tools.tools.validate(call)
        assert tools.canonical_goal(goal.text()) == tools.goal_of(call) == goal
    assert tools.canonical_goal("go to 2.5") is None


def test_only_canonical_sentences_need_no_interpreter() -> None:
    assert LANDER.canonical_goal("hover at 0.70") == LANDER.canonical_goal("hover at 0.7")
    for other in ("please hover at 0.7", "stay at 0.7", "hover at 5.0", "hover at 0.725", "", "land"):
        assert LANDER.canonical_goal(other) is None, other
    assert TOOLS_YARD.goal_tools("yard").canonical_goal("halt") is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"y": 0.7}, "hover at 0.7"),
        ({"y": "0.7"}, "hover at 0.7"),
        ({"y": " 0.75", "x": "-0.25"}, "hover at 0.75 and x -0.25"),
        ({"y": ".7", "x": None}, "hover at 0.7"),
        ({"y": 0.7049, "x": 0}, "hover at 0.7"),
        ({"y": 1}, "hover at 1.0"),
    ],
)
def test_goal_values_are_read_in_any_notation(arguments: dict[str, Any], text: str) -> None:
    assert LANDER.goal_of(Call("hover", arguments)).text() == text


@pytest.mark.parametrize(
    "call",
    [
        Call("take_off"),
        Call("hover"),
        Call("hover", {"y": 5}),
        Call("hover", {"y": "high"}),
        Call("hover", {"y": True}),
        Call("hover", {"y": float("nan")}),
        Call("hover", {"y": [0.7]}),
        Call("hover", {"y": 0.7, "speed": 3}),
        Call("land", {"x": 0.1}),
    ],
    ids=lambda call: call.text(),
)
def test_call_without_a_matching_goal_is_refused(call: Call) -> None:
    with pytest.raises(InvalidCall):
        LANDER.goal_of(call)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (",7", 0.7),
        ("\u22120.5", -0.5),
        ("-0,125", -0.125),
        ("1000", 1000),
        *((text, None) for text in ("", "high", "0.7 m", "1e3", "1,000", "1.000", "two")),
    ],
)
def test_ambiguous_numbers_are_not_parsed(text: str, number: float | None) -> None:
    assert parse_number(text) == (number if number is None else pytest.approx(number))
