"""Methods that cannot be tools are named before anything is connected; those that look odd work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.bridges.unity.mono import Driver


@pytest.fixture(scope="module")
def core(exe: Path) -> Iterator[Driver]:
    one = Driver(exe, "filter")
    yield one
    one.end()


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
        ("turn", {"top_angle": 0.3}, {"refused": "top_angle cannot be 0.3"}),
        ("turn", {"top_angle": 0.75}, {"result": "0.75"}),
        ("zoom", {"factor": 1e300}, {"refused": "factor cannot be 1E+300"}),
        ("zoom", {"factor": 0.30000000000000004}, {"result": "0.3"}),
    ],
)
def test_numbers_between_the_steps_or_beyond_their_type_are_refused(
    driver: Callable[..., Driver], name: str, arguments: dict[str, Any], answer: dict[str, Any]
) -> None:
    core = driver("filter")
    core.ask("tools")
    found = core.ask(f"invoke {msgpack.packb({'name': name, 'arguments': arguments}).hex()}")
    assert {key: found.get(key) for key in answer} == answer


def test_safe_call_that_fits_no_tool_is_no_reason_to_do_nothing(core: Driver) -> None:
    assert core.ask("safe brake") == ["stop"]
