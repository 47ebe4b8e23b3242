"""Tests of tools made from functions (schema, validation, execution), and of the bundled agents' observations."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from rtcontrol.agents import Agent, Doc, Fallback, Group, InvalidCall, OneOf, Range, Text, Tools, tool
from rtcontrol.agents.lander import tools as lander
from rtcontrol.agents.paddle import tools as paddle
from rtcontrol.agents.road.tools import observe, parse_observation
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import FreeDomain


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Corner:
    x: float
    y: float = 0.0


@dataclass
class Box:
    low: Corner
    high: Corner


@tool
def everything(
    level: Annotated[int, OneOf(0, 50, 100)],
    count: Annotated[int, Range(-2, 3)],
    speed: Annotated[float, Range(0, 1, 0.1), Doc("metres a second")],
    side: Literal["left", "right"],
    colour: Colour,
    fast: bool = False,
    note: Annotated[str, Text(8, "[a-z]+")] = "x",
    angle: Annotated[int, OneOf(10, 20)] | None = None,
    box: Box | None = None,
    path: list[int] | None = None,
) -> dict[str, Any]:
    """Does
    everything."""
    return dict(locals())


GOOD: dict[str, Any] = {"level": 50, "count": -2, "speed": 0.3, "side": "left", "colour": "red"}


def refusal(function: Any) -> str:
    with pytest.raises(UserError) as error:
        Tools([function])
    assert error.value.remedy
    return str(error.value)


def test_schema_follows_the_annotations() -> None:
    body = everything.schema.to_openai()["function"]
    p = body["parameters"]["properties"]
    assert body["description"] == "Does\neverything."
    assert body["parameters"]["required"] == ["level", "count", "speed", "side", "colour"]
    assert list(p) == [*GOOD, "angle", "box", "fast", "note", "path"]
    assert p["level"]["enum"] == [0, 50, 100]
    assert (p["count"]["minimum"], p["count"]["maximum"]) == (-2, 3)
    assert p["speed"]["multipleOf"] == 0.1
    assert p["speed"]["description"] == "metres a second"
    assert p["side"]["enum"] == ["left", "right"]
    assert p["colour"]["enum"] == ["red", "blue"]
    assert p["fast"]["default"] is False
    assert p["note"]["maxLength"] == 8
    assert p["box"]["type"] == "object"


def test_execution_converts_to_the_annotated_types() -> None:
    tools = Tools([everything])
    box = {"low": {"x": 1}, "high": {"x": 2, "y": 3}}
    call = Call("everything", {**GOOD, "box": box, "path": [1, 2]})
    got = tools.execute(tools.validate(call))
    assert got["colour"] is Colour.RED
    assert got["box"] == Box(Corner(1.0), Corner(2.0, 3.0))
    assert got["angle"] is None
    assert got["fast"] is False


@pytest.mark.parametrize(
    "change",
    [
        {"level": True},
        {"level": 50.0},
        {"level": "50"},
        {"level": 51},
        {"count": 4},
        {"speed": 0.35},
        {"colour": "green"},
        {"fast": 0},
        {"note": "UPPER"},
        {"note": "toolongfor8"},
        {"box": {"low": {"x": "a"}, "high": {"x": 1}}},
        {"path": [1.5]},
        {"path": [True]},
        {"angle": None},
        {"unknown": 1},
    ],
)
def test_illegal_value_error_names_the_value(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall, match=f"everything.*{next(iter(change))}"):
        Tools([everything]).validate(Call("everything", {**GOOD, **change}))


def test_integer_is_legal_for_number_parameter() -> None:
    @tool
    def go(x: Annotated[float, OneOf(0, 0.5, 1)], y: Annotated[float, Range(0, 1, 0.5)]) -> None: ...

    tools = Tools([go])
    tools.validate(Call("go", {"x": 1, "y": 1}))
    tools.validate(Call("go", {"x": 1.0, "y": 1.0}))
    assert all(type(v) is float for p in go.schema.parameters for v in p.domain.values)  # type: ignore[union-attr]
    with pytest.raises(InvalidCall):
        tools.validate(Call("go", {"x": True, "y": 1}))


def test_bind_uses_environment_function_and_refuses_unknown_names() -> None:
    values: list[int] = []

    @tool
    def go(x: Annotated[int, OneOf(1, 2)]) -> None: ...

    Tools([go]).bind(go=lambda x: values.append(x)).execute(Call("go", {"x": 2}))
    assert values == [2]
    with pytest.raises(UserError, match=r"The tool .fly. does not exist\. The tools are: go"):
        Tools([go]).bind(fly=print)


class Socket: ...


@pytest.mark.parametrize(
    ("annotation", "default", "says"),
    [
        (Annotated[int, OneOf(0, 50)], (7,), "the default 7 is not one of its values"),
        (Annotated[float, Range(0, 1)], (7,), "the default 7 is not allowed"),
        (Annotated[Any, OneOf("1", 1)], (), ""),
        (Socket, (), "the type"),
        (Any, (), "allows any value"),
        (Annotated[int, Range(3, 1)], (), "minimum 3 exceeds maximum 1. Swap them"),
        (Annotated[float, Range(0.05, 1, 0.1)], (), "minimum 0.05 is not a multiple of the step 0.1. Start at 0"),
        (Annotated[int, Range(0, 10, 0)], (), "multipleOf is 0"),
        (Annotated[float, Range(0, math.inf, 1)], (), "bounds 0 to inf"),
        (Annotated[int, OneOf("low", "high")], (), "the value 'low' is not of type integer"),
        (Annotated[Colour, OneOf(Colour.RED)], (), "not all of its values can be written as JSON"),
        (int, (object(),), "the default"),
    ],
)
def test_parameter_without_valid_schema_is_refused(annotation: Any, default: tuple[Any, ...], says: str) -> None:
    def go(level: Any) -> None: ...

    go.__annotations__["level"], go.__defaults__ = annotation, default
    message = refusal(go)
    assert "Tool go, parameter level" in message and says in message


def test_signature_that_no_call_fits_is_refused() -> None:
    def unresolved(when: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def go(*levels: int) -> None: ...

    def stop(**levels: int) -> None: ...

    def positional(level: bool, /) -> None: ...

    def bare(level) -> None: ...  # type: ignore[no-untyped-def]

    assert "Tool unresolved: an annotation cannot be resolved" in refusal(unresolved)
    assert "Tool go, parameter levels: `*args` and `**kwargs` have no schema" in refusal(go)
    assert "Tool stop, parameter levels: `*args` and `**kwargs` have no schema" in refusal(stop)
    assert "Tool positional, parameter level: calls pass arguments by name" in refusal(positional)
    assert "Tool bare, parameter level: no type annotation. Write e.g." in refusal(bare)


def test_slow_parameters_are_accepted_with_a_warning() -> None:
    @tool
    def go(x: float, text: str, fine: Annotated[int, Range(0, 100_000)]) -> None: ...

    warnings = Tools([go]).warnings()
    assert [w.split(":")[0] for w in warnings] == [f"Tool go, parameter {p}" for p in ("x", "text", "fine")]


def test_small_group_removes_warning_about_parameter_count() -> None:
    @tool
    def seven(a: bool, b: bool, c: bool, d: bool, e: bool, f: bool, g: bool) -> None: ...

    @tool
    def grouped(
        a: Annotated[bool, Group("g")], b: Annotated[bool, Group("g")], c: bool, d: bool, e: bool, f: bool, g: bool
    ) -> None: ...

    @tool
    def go(x: Annotated[int, Range(0, 99), Group("at")], y: Annotated[int, Range(0, 99), Group("at")]) -> None: ...

    assert "Tool seven has 7 parameters for 6 heads" in Tools([seven]).warnings()[0]
    assert Tools([grouped]).warnings() == []
    assert "Tool go, parameters x, y" in Tools([go]).warnings()[0]
    assert isinstance(go.schema.slots()[0].domain, FreeDomain)


def test_agent_with_an_illegal_safe_call_is_refused() -> None:
    @tool
    def go(x: Annotated[int, OneOf(1, 2)]) -> None: ...

    with pytest.raises(UserError, match=r"Agent a: the safe call is not valid \(go: x=3"):
        Agent("a", "", Tools([go]), str, "go", Fallback(Call("go", {"x": 3})), "model")
    with pytest.raises(UserError, match="history=7"):
        Agent("a", "", Tools([go]), str, "go", Fallback(Call("go", {"x": 1})), "model", history=7)


FALL = {"x": -0.123, "y": 0.7, "vx": 0.03, "vy": -0.2, "angle": 0.04, "spin": -0.02, "left_leg": 0.0, "right_leg": 1.0}
BALL = {"ball_x": 50.0, "ball_y": 30.2, "ball_vx": 45.0, "ball_vy": -12.4, "own_y": 30.0, "other_y": 28.6}
WILD_FALL = {**FALL, "spin": -9.7, "angle": 6.1, "x": -0.001}
WILD_BALL = {**BALL, "ball_x": 1e9, "ball_vy": -0.2, "own_y": -90.0, "ball_y": 90.0}


@pytest.mark.parametrize(
    ("of", "state", "text"),
    [
        (lander, FALL, "x -12 y 70 vx 3 vy -20 angle 4 spin -2 legs 0 1"),
        (lander, WILD_FALL, "x 0 y 70 vx 3 vy -20 angle 200 spin -200 legs 0 1"),
        (paddle, BALL, "x 100 y 60 vx 45 vy -12 own 60 ball 0 other -3"),
        (paddle, WILD_BALL, "x 200 y 180 vx 45 vy 0 own -180 ball 200 other 200"),
    ],
)
def test_observation_text_is_rounded_clamped_and_reversible(of: Any, state: dict[str, float], text: str) -> None:
    assert of.observe(state) == text
    assert of.observe(of.parse_observation(text)) == text


NEIGHBOURS = ("ahead", "behind", "left_ahead", "left_behind", "right_ahead", "right_behind")
ALONE = {f"{name}_{unit}": None for name in NEIGHBOURS for unit in ("m", "kmh")}
AHEAD = {"ahead_m": 35.4, "ahead_kmh": 42.0, "behind_m": 20.0, "behind_kmh": 50.3}
LEFT = {"left_ahead_m": 12.0, "left_ahead_kmh": 53.0, "left_behind_m": 60.0, "left_behind_kmh": 38.0}
DRIVE = {"speed_kmh": 48.2, "limit_kmh": 60.0, "lane": 2, "lanes": 3, "shift": 0, **ALONE, **AHEAD, **LEFT}
STATE: dict[str, Any] = {**DRIVE, "light": "green", "junction_m": 80.0, "turn": "straight"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "speed 48 limit 60 lane 2 3 shift 0 ahead 35 -6 behind 20 2 l 12 5 60 -10 r 150 0 150 0"),
        ({"lanes": 2}, "speed 48 limit 60 lane 2 2 shift 0 ahead 35 -6 behind 20 2 l 12 5 60 -10 r -1 0 -1 0"),
        ({"lane": 1}, "speed 48 limit 60 lane 1 3 shift 0 ahead 35 -6 behind 20 2 l -1 0 -1 0 r 150 0 150 0"),
        # Rounded, it is out of sight.
        (
            {"left_ahead_m": 149.5, "speed_kmh": -500.0},
            "speed -200 limit 60 lane 2 3 shift 0 ahead 35 200 behind 20 200 l 150 0 60 200 r 150 0 150 0",
        ),
    ],
)
def test_road_observation_text_is_reversible(change: dict[str, Any], text: str) -> None:
    text_seen = observe({**STATE, **change})
    assert text_seen == f"{text} light green junction 80 way onward"
    assert observe(parse_observation(text_seen)) == text_seen and set(parse_observation(text_seen)) == set(STATE)
