"""Methods that cannot be tools are named before anything is connected; those that look odd work."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.bridges.unity.mono import Driver


@pytest.mark.parametrize(("kind", "names"), [("static", ["wave"]), ("override", ["turn"])])
def test_static_methods_and_overrides_are_tools_once(core: Driver, kind: str, names: list[str]) -> None:
    assert core.ask(f"made {kind}") == names


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("coroutine", "Coroutine.Dash: a coroutine or a task"),
        ("safe_coroutine", "SafeCoroutine.Stop: a coroutine or a task"),
        ("task", "Later.Dash: a coroutine or a task"),
        ("parameters", "two parameters are named top_speed"),
        ("members", "two members of Side are named far_left"),
        ("fraction", "RtRange on speed needs whole numbers"),
        ("backwards", "RtRange on speed is empty"),
        ("nothing", "is null"),
    ],
)
def test_method_that_cannot_be_a_tool_is_named(core: Driver, kind: str, told: str) -> None:
    assert told in core.ask(f"made {kind}")["wrong"]


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("dash", {"direction": "far_right", "power": 10}, {"result": "dashed", "log": ["dash FarRight 10 True"]}),
        ("dash", {"direction": "left", "power": 3.0, "and_jump": False}, {"result": "dashed"}),
        ("turn", {"top_angle": 1}, {"result": "1"}),
        ("turn", {"top_angle": 1.25}, {"refused": "top_angle cannot be 1.25"}),
        ("dash", {"direction": "left", "power": 11}, {"refused": "power cannot be 11"}),
        ("dash", {"direction": "left", "power": 0.5}, {"refused": "power cannot be 0.5"}),
        ("dash", {"direction": "up", "power": 1}, {"refused": "direction cannot be up"}),
        ("dash", {"power": 1}, {"refused": "direction is missing"}),
        ("say", {"word": "hello"}, {"refused": "I do not talk."}),
        ("say", {"word": "what"}, {"refused": "word cannot be what"}),
        ("fly", {}, {"refused": "there is no tool fly"}),
        ("turn", {"top_angle": 0.3}, {"refused": "top_angle cannot be 0.3"}),
        ("turn", {"top_angle": 0.75}, {"result": "0.75"}),
        ("zoom", {"factor": 1e300}, {"refused": "factor cannot be 1E+300"}),
        ("zoom", {"factor": 0.30000000000000004}, {"result": "0.3"}),
    ],
)
def test_calls_are_turned_into_invocations_within_bounds(
    core: Driver, name: str, arguments: dict[str, Any], answer: dict[str, Any]
) -> None:
    core.ask("tools")
    found = core.ask(f"invoke {msgpack.packb({'name': name, 'arguments': arguments}).hex()}")
    found["log"] = found.get("log", [])[-1:]
    assert {key: found.get(key) for key in answer} == answer


def test_safe_call_that_fits_no_tool_is_no_reason_to_do_nothing(core: Driver) -> None:
    assert core.ask("safe brake") == ["stop"]
