"""What agents can be told, as tools: goals and calls are the same, and what is no goal is none."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents import Goals, InvalidCall
from rtcontrol.agents.number_words import number_of
from rtcontrol.agents.spoken import hundredths_in_words
from rtcontrol.envs import registry
from rtcontrol.models.call import Call

YARD = Goals(
    {"go to the {thing}": [], "drive at {speed}": [], "turn to {angle} degrees": [], "stop": ["halt"]},
    {"thing": ["red box", "exit", 3], "speed": [0.5, 1, 2.5], "angle": range(0, 360, 15)},
)
LANDER = registry.WORLDS["lander"].phrasings().goal_tools


@pytest.mark.parametrize("world", registry.WORLDS)
def test_each_goal_of_a_bundled_world_is_a_call_and_its_canonical_words_are_known(world: str) -> None:
    told = registry.WORLDS[world].phrasings()
    rng = random.Random(0)
    for goal in (told.sample_goal(rng) for _ in range(500)):
        tools = told.goal_tools
        assert tools.goal(tools.call(goal)) == goal
        assert tools.canonical(goal.text()) == tools.canonical(f"  {goal.text().upper()}!! ") == goal


def test_each_goal_of_ones_own_is_a_call() -> None:
    tools = YARD.goal_tools("yard")
    for goal in YARD:
        assert tools.goal(tools.call(goal)) == tools.canonical(goal.text()) == goal
    assert [tool["function"]["name"] for tool in tools.definitions] == [
        "go_to_the_thing", "drive_at_speed", "turn_to_angle_degrees", "stop",
    ]  # fmt: skip
    assert tools.examples(5) == ["go to the red box", "drive at 0.5", "turn to 0 degrees", "stop", "go to the exit"]


def test_whole_numbers_that_are_listed_with_a_point_are_goals_all_the_same() -> None:
    goals = Goals({"go to {x}": []}, {"x": [1.0, 2.0, 3.0]})
    tools = goals.goal_tools("whole")
    assert tools.definitions[0]["function"]["parameters"]["properties"]["x"]["type"] == "integer"
    for goal in goals:
        call = tools.call(goal)
        tools.tools.validate(call)
        assert tools.canonical(goal.text()) == tools.goal(call) == goal
    assert tools.canonical("go to 2.5") is None


def test_only_canonical_words_are_taken_without_asking() -> None:
    assert LANDER.canonical("hover at 0.70") == LANDER.canonical("hover at 0.7")
    for other in ("please hover at 0.7", "stay at 0.7", "hover at 5.0", "hover at 0.725", "", "land"):
        assert LANDER.canonical(other) is None, other
    assert YARD.goal_tools("yard").canonical("halt") is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"y": 0.7}, "hover at 0.7"),
        ({"y": "0.7"}, "hover at 0.7"),
        ({"y": " 0.75", "x": "-0.25"}, "hover at 0.75 and x -0.25"),
        ({"y": "point seven", "x": None}, "hover at 0.7"),
        ({"y": "nought point seven five", "x": "minus a quarter"}, "hover at 0.75 and x -0.25"),
        ({"y": 0.7049, "x": 0}, "hover at 0.7"),
        ({"y": 1}, "hover at 1.0"),
    ],
)
def test_values_are_read_however_they_are_written(arguments: dict[str, Any], text: str) -> None:
    assert LANDER.goal(Call("hover", arguments)).text() == text


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
def test_what_is_no_goal_is_refused(call: Call) -> None:
    with pytest.raises(InvalidCall):
        LANDER.goal(call)


def test_numbers_between_those_listed_are_values() -> None:
    tools = YARD.goal_tools("yard")
    assert tools.goal(Call("turn_to_angle_degrees", {"angle": 37.0})).text() == "turn to 37 degrees"
    assert tools.goal(Call("drive_at_speed", {"speed": 1.7})).text() == "drive at 1.7"
    with pytest.raises(InvalidCall):
        tools.goal(Call("turn_to_angle_degrees", {"angle": 400}))


@given(st.integers(-1999, 1999), st.randoms(use_true_random=False))
def test_numbers_in_words_are_read(hundredths: int, rng: random.Random) -> None:
    assert number_of(hundredths_in_words(rng, hundredths)) == pytest.approx(hundredths / 100)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("minus two point five", -2.5),  # allo-media/text2num#117 reads -.5
        ("minus zero point four", -0.4),  # savoirfairelinux/num2words#646 loses the sign
        ("one point one two three", 1.123),  # facebookarchive/duckling_old#74 reads 1.1
        (",7", 0.7),
        ("\u22120.5", -0.5),
        ("one hundred and twenty", 120),
        ("-0,125", -0.125),
        ("1000", 1000),
    ],
)
def test_numbers_that_others_read_wrongly(text: str, number: float) -> None:
    assert number_of(text) == pytest.approx(number)


@pytest.mark.parametrize(
    "text", ["", "point", "high", "0.7 m", "1e3", "1,000", "1.000", "two five", "fifty hundred", "five and six"]
)
def test_text_without_one_number_is_none(text: str) -> None:
    assert number_of(text) is None
