"""What callers give besides plain Python: taken as what it means, or refused by its place, on their own thread."""

from __future__ import annotations

import array
import enum
import math
import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from rtcontrol.bridges.client import Client, ClientError
from rtcontrol.bridges.client.observation import observation
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.wire import encode_json, encode_msgpack
from rtcontrol.bridges.wire.messages import FunctionCall, Observe, Reset
from tests.bridges.client.worlds import joined
from tests.conformance.check.stand import Stand


class Colour(enum.Enum):
    RED = "red"


class Gear(enum.IntEnum):
    FIRST = 1


class Name(enum.StrEnum):
    GO = "go"


class Pair(NamedTuple):
    x: Any
    y: int


@dataclass
class Place:
    x: Any
    y: int


class Model(BaseModel):
    x: int


TAKEN = [
    (np.int64(3), 3),
    (np.uint8(255), 255),
    (np.float32(0.5), 0.5),
    (np.float64(0.5), 0.5),
    (np.float16(0.5), 0.5),
    (np.longdouble(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("a"), "a"),
    (np.array(3), 3),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array([True, False]), [True, False]),
    (np.array(["a"]), ["a"]),
    ((1, np.int8(2)), [1, 2]),
    (range(3), [0, 1, 2]),
    (array.array("d", [0.5]), [0.5]),
    (Colour.RED, "red"),
    (Gear.FIRST, 1),
    (Name.GO, "go"),
    (Decimal("0.25"), 0.25),
    (Fraction(1, 4), 0.25),
    (Place(np.int64(1), 2), {"x": 1, "y": 2}),
    (Pair(np.int64(1), 2), [1, 2]),
    (Model(x=1), {"x": 1}),
    ({Name.GO: {np.str_("k"): (None,)}}, {"go": {"k": [None]}}),
]
LOOP: list[Any] = []
LOOP.append(LOOP)
REFUSED = [
    ({1, 2}, "data.x: a value of the type set. A set has no order: give a list."),
    (torch.empty(2, device="meta"), "data.x: a Tensor that gives no list"),
    (torch.eye(2).to_sparse(), "data.x: a Tensor that gives no list"),
    (b"raw", "data.x: a value of the type bytes. Raw bytes go into `arrays`"),
    (datetime(2020, 1, 1), "data.x: a value of the type datetime. Send null, booleans"),
    (np.datetime64("2020-01-01"), "data.x: a value of the type datetime64 of datetime64[D]."),
    (np.array(["2020-01-01"], "datetime64[ns]"), "data.x: a value of the type ndarray of datetime64[ns]."),
    (np.timedelta64(1, "s"), "data.x: a value of the type timedelta64"),
    (np.complex64(1), "data.x: a value of the type complex."),
    (1j, "data.x: a value of the type complex."),
    (object(), "data.x: a value of the type object."),
    ((n for n in [1]), "data.x: a value of the type generator."),
    (math.nan, "data.x: nan is not finite."),
    (np.float32("inf"), "data.x: inf is not finite."),
    (Decimal("NaN"), "data.x: nan is not finite."),
    (Decimal("sNaN"), "data.x: it is no finite number."),
    (Fraction(10**400), "data.x: it is no finite number."),
    (np.array([0.0, np.nan]), "data.x[1]: nan is not finite."),
    (1 << 70, "data.x: an integer beyond 64 bits."),
    ({1: 2}, "data.x: a map key is no string."),
    (np.zeros(100_000), "data.x: an array of 100000 numbers: above the limit max_total_items"),
    (np.zeros(5_000), "data.x: 5000 items: above the limit max_items"),
    (LOOP, "nesting deeper than 16"),
    ("\ud800", "data.x: a lone surrogate."),
    ("x" * 70_000, "data.x: a string of 70000 characters"),
]


@pytest.mark.parametrize(
    ("given", "meant"), TAKEN, ids=[re.sub(" at 0x.*", "", repr(given))[:40] for given, _ in TAKEN]
)
def test_value_that_means_something_plain_is_taken_as_that(given: Any, meant: Any) -> None:
    look = observation(None, {"x": given}, None, None)
    assert look.data == {"x": meant} and type(look.data["x"]) is type(meant)
    assert encode_msgpack(look) and encode_json(look)


@pytest.mark.parametrize(
    ("given", "says"), REFUSED, ids=[re.sub(" at 0x.*", "", repr(given))[:40] for given, _ in REFUSED]
)
def test_value_that_means_nothing_plain_is_refused_by_its_place(given: Any, says: str) -> None:
    for give in (
        lambda: observation(None, {"x": given}, None, None),
        lambda: Options(safe_call={"name": "go", "x": given}),
    ):
        with pytest.raises(ClientError) as caught:
            give()
        assert says in str(caught.value).replace("safe_call.x", "data.x")
        assert "Report it" not in str(caught.value)


def test_tools_and_safe_calls_are_taken_when_given_and_not_looked_at_again() -> None:
    levels = np.arange(3)
    schema = {"type": "object", "properties": {"d": {"enum": list(levels), "default": np.int64(1)}}, "required": ("d",)}
    tools = ({"name": np.str_("go"), "parameters": schema},)
    calls = (
        FunctionCall(name="go", arguments={"d": np.int64(1)}),
        {"name": "go", "arguments": {"d": np.float32(2)}},
        "go",
    )
    options = Options(tools=tools, safe_call=calls, hz=np.int32(10), calls_per_tick=np.int64(2), name=Name.GO)
    schema["required"] = {"a set"}
    hello = options.hello(0)
    assert hello.tools is not None and hello.safe_calls is not None
    assert hello.tools[0]["parameters"]["properties"]["d"] == {"enum": [0, 1, 2], "default": 1}
    assert [call.arguments for call in hello.safe_calls] == [{"d": 1}, {"d": 2.0}, {}]
    assert (hello.hz, hello.calls_per_tick, hello.client.name) == (10, 2, "go")
    assert encode_msgpack(hello)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"tools": [{"name": "go", "parameters": {"enum": {1, 2}}}]},
            "tools[0].parameters.enum: a value of the type set.",
        ),
        ({"tools": ({"name": "go"} for _ in range(1))}, "tools: a value of the type generator."),
        ({"tools": {"name": "go"}}, "hello.tools is a map. Give a list"),
        (
            {"safe_call": {"name": "go", "arguments": {"t": datetime(2020, 1, 1)}}},
            "safe_call.arguments.t: a value of the type",
        ),
        ({"hz": np.float64("nan")}, "hz: nan is not finite."),
        ({"hz": "10"}, 'hello.hz is "10". Give a number'),
        ({"instruction": b"go"}, "instruction: a value of the type bytes."),
        ({"backoff_s": 0.5}, "backoff_s is 0.5. Give the first pause and the longest: (0.1, 2.0)."),
        ({"connect_timeout_s": "5"}, "connect_timeout_s is '5'. Give seconds, or None"),
        ({"name": 3}, "name is 3. Give a string."),
        ({"on_call": "go"}, "on_call is 'go'. Give a function."),
        ({"tools": [{"name": "x" * 60_000, "n": i} for i in range(20)]}, "above the limit max_message_bytes"),
    ],
)
def test_option_that_cannot_be_said_is_refused_before_anything_is_connected(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ClientError) as caught:
        Client.connect("tcp://127.0.0.1:9", **given)
    assert says in str(caught.value)


def test_array_that_shows_no_numbers_or_too_many_is_refused_by_its_name() -> None:
    for given, says in (
        ({"t": np.array(["2020-01-01"], "datetime64[D]")}, "arrays['t'] is a ndarray of datetime64[D]"),
        ({"t": np.array([None])}, "arrays['t'] has items of the format 'O'"),
        ({"t": np.zeros(2, [("a", "f4")])}, "arrays['t'] has items of the format"),
        ({"t": np.ma.array([1.5, 2.0], mask=[True, False])}, "arrays['t'] hides some of its numbers"),
        ([np.zeros(2)], "arrays is a list. Give a map"),
        ({"t": np.zeros((600, 600, 3))}, "above the limit max_message_bytes"),
    ):
        with pytest.raises(ClientError) as caught:
            observation("x", None, given, None)  # type: ignore[arg-type]
        assert says in str(caught.value)
    assert observation("x", None, {"t": np.zeros((3, 4))[:, ::2]}, None).arrays[0].shape == [3, 2]


def test_what_is_said_in_a_session_is_taken_or_refused_on_the_callers_thread(stand: Stand) -> None:
    with joined(stand) as client:
        client.observe(data={"x": np.float32(1)}, t_ns=np.int64(1))
        look = stand.expect(Observe, 5.0, "an observation")
        assert isinstance(look, Observe) and look.data == {"x": 1.0}
        client.reset(seed=np.int64(3), success=np.bool_(True), ret=np.float32(0.5), seconds=np.float64(2))
        reset = stand.expect(Reset, 5.0, "a reset")
        ended = reset.ended if isinstance(reset, Reset) else None
        assert ended is not None and (ended.seed, ended.ret, ended.success, ended.seconds) == (3, 0.5, True, 2.0)
        for say, says in (
            (lambda: client.reset(seed=1 << 70, success=True), "ended.seed: an integer beyond 64 bits."),
            (lambda: client.reset(seed=1.5, success=True), "reset.ended.seed is 1.5. Give a whole number."),  # type: ignore[arg-type]
            (lambda: client.reset(success="yes"), 'reset.ended.success is "yes". Give true or false.'),  # type: ignore[arg-type]
            (lambda: client.reset(ret=math.nan, seconds=1), "ended.return: nan is not finite."),
            (lambda: client.observe(text=b"x"), "text: a value of the type bytes."),  # type: ignore[arg-type]
            (lambda: client.observe(data=[1]), "observe.data is a list of 1. Give a map"),  # type: ignore[arg-type]
            (lambda: client.observe(text="x", t_ns="now"), 'observe.t_ns is "now". Give a whole number'),  # type: ignore[arg-type]
            (lambda: client.instruct(3), "instruct.instruction is 3. Give a string"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ClientError) as caught:
                say()
            assert says in str(caught.value)
        assert client.connected and client.error is None
