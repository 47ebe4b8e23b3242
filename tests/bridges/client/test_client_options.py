"""Values that callers pass besides plain Python: converted, or refused on the caller's thread with their place."""

from __future__ import annotations

import array
import ctypes
import enum
import math
import threading
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rtcontrol_client import Client, ClientError
from rtcontrol_client.client.options import Options
from rtcontrol_client.client.values import to_arrays, to_observe
from rtcontrol_client.wire import encode_json, encode_msgpack
from rtcontrol_client.wire.messages import FunctionCall, Observe, Reset
from tests.bridges.client.worlds import OWN, STEER, joined
from tests.conformance.check.stand import Stand


class Gear(enum.IntEnum):
    FIRST = 1


class Name(enum.StrEnum):
    GO = "go"


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (np.uint8(255), 255),
        (np.float16(0.5), 0.5),
        (np.bool_(True), True),
        (np.array(3), 3),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ((1, np.int8(2)), [1, 2]),
        (array.array("d", [0.5]), [0.5]),
        (Gear.FIRST, 1),
        (Fraction(1, 4), 0.25),
        ({Name.GO: {np.str_("k"): (None,)}}, {"go": {"k": [None]}}),
    ],
    ids=str,
)
def test_value_with_plain_meaning_is_converted(value: Any, meant: Any) -> None:
    look = to_observe(None, {"x": value}, None, None)
    assert look.data == {"x": meant} and type(look.data["x"]) is type(meant)
    assert encode_msgpack(look) and encode_json(look)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1, 2}, "data.x has the type set, which cannot be sent. Send null, booleans"),
        (b"raw", "data.x has the type bytes, which cannot be sent. Send null, booleans"),
        (datetime(2020, 1, 1), "data.x has the type datetime, which cannot be sent. Send null, booleans"),
        (np.array(["2020-01-01"], "datetime64[ns]"), "data.x has the type ndarray of datetime64[ns], "),
        (1j, "data.x has the type complex, which cannot be sent."),
        (math.nan, "data.x: nan is not finite."),
        (Decimal(1), "data.x has the type Decimal, which cannot be sent."),
        (np.array([0.0, np.nan]), "data.x[1]: nan is not finite."),
        (1 << 70, "data.x: an integer beyond 64 bits."),
        ({1: 2}, "data.x: a map key is not a string."),
        (np.zeros(100_000), "data.x: 100000 items: above the limit max_items"),
        (np.zeros(5_000), "data.x: 5000 items: above the limit max_items"),
        (LOOP, "nesting deeper than 16"),
        ("\ud800", "data.x: a lone surrogate."),
        ("x" * 70_000, "data.x: a string of 70000 characters"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_value_without_plain_meaning_is_refused_by_place(value: Any, says: str) -> None:
    for give in (
        lambda: to_observe(None, {"x": value}, None, None),
        lambda: Options(safe_call={"name": "go", "x": value}),
    ):
        with pytest.raises(ClientError) as caught:
            give()
        assert says in str(caught.value).replace("safe_call.x", "data.x")


def test_later_changes_to_tools_and_safe_calls_are_ignored() -> None:
    schema = {"type": "object", "properties": {"d": {"enum": list(np.arange(3))}}, "required": ("d",)}
    calls = (FunctionCall(name="go", arguments={"d": np.int64(1)}), {"name": "go", "arguments": {"d": 2.0}}, "go")
    options = Options(tools=({"name": np.str_("go"), "parameters": schema},), safe_call=calls, hz=np.int32(10))
    schema["required"] = {"a set"}
    hello = options.hello(0)
    assert hello.tools is not None and hello.safe_calls is not None
    assert hello.tools[0]["parameters"]["properties"]["d"] == {"enum": [0, 1, 2]}
    assert [call.arguments for call in hello.safe_calls] == [{"d": 1}, {"d": 2.0}, {}]
    assert hello.hz == 10 and encode_msgpack(hello)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"agent": "lander", "tools": [STEER]}, "not both"),
        ({**OWN, "speed": 3}, "speed= is not an option"),
        ({"tools": [{"name": "go", "parameters": {"enum": {1, 2}}}]}, "tools[0].parameters.enum has the type"),
        ({"tools": STEER}, "hello.tools is a map. It must be a valid list"),
        ({"tools": ["push"]}, 'hello.tools[0] is "push". It must be a valid dict'),
        ({"tools": []}, "tools"),
        ({"tools": [{"name": "x" * 60_000, "n": i} for i in range(20)]}, "above the limit max_message_bytes"),
        ({**OWN, "hz": -1}, "hz"),
        ({**OWN, "hz": "10"}, 'hello.hz is "10". It must be a valid number'),
        ({**OWN, "ttl_ms": float("nan")}, "ttl_ms"),
        ({**OWN, "pacing": "fast"}, "pacing"),
        ({**OWN, "safe_call": 7}, "safe_call"),
        ({**OWN, "keys": "/nowhere/arm.key_secret"}, "cannot be read"),
        ({"instruction": b"go"}, "instruction has the type bytes, which cannot be sent."),
        ({"on_call": "go"}, "on_call is 'go', which is not a function. Give a function."),
        ({**OWN, "look": 5}, "look is 5"),
        ({**OWN, "look": dict, "pacing": "client"}, 'pacing="server"'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_option_errors_are_raised_before_connecting(value: dict[str, Any], says: str) -> None:
    before = threading.active_count()
    with pytest.raises(ClientError) as caught:
        Client.connect("tcp://127.0.0.1:9", **value)
    assert says in str(caught.value) and threading.active_count() == before


@pytest.mark.parametrize(
    ("endpoint", "match"),
    [
        ("127.0.0.1:5555", "is not an endpoint"),
        ("smoke://signals", "is not an endpoint"),
        ("tcp://", "is not an endpoint"),
        ("tcp://127.0.0.1:9", "No rtcontrol server answers at tcp://127.0.0.1:9.*rtcontrol serve"),
        ("http://127.0.0.1:1/connect", r"No welcome from http://127\.0\.0\.1:1/connect.*does not answer"),
    ],
)
def test_invalid_or_unreachable_endpoint_is_reported(endpoint: str, match: str) -> None:
    with pytest.raises(ClientError, match=match):
        Client.connect(endpoint, **OWN, connect_timeout_s=0.3)


def test_value_with_buffer_becomes_array() -> None:
    picture = np.arange(12, dtype=np.float32).reshape(3, 4).T
    value = {"picture": picture, "floats": array.array("d", [1.5]), "bytes": b"abc", "flags": np.array([True])}
    value |= {"half": np.ones(2, np.float16), "ctypes": (ctypes.c_int16 * 2)(1, -1), "scalar": np.int64(7)}
    value |= {"strided": np.zeros((3, 4), np.uint16)[:, ::2]}
    result = to_arrays(value)
    kinds = [
        ("f4", [4, 3]),
        ("f8", [1]),
        ("u1", [3]),
        ("b1", [1]),
        ("f2", [2]),
        ("i2", [2]),
        ("i8", []),
        ("u2", [3, 2]),
    ]
    assert [(a["dtype"], a["shape"]) for a in result] == kinds
    assert np.array_equal(np.frombuffer(result[0]["data"], "<f4").reshape(4, 3), picture)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"t": [1, 2]}, "arrays['t'] is a list, which is not a buffer"),
        ({"t": np.array(["2020-01-01"], "datetime64[D]")}, "arrays['t'] is a ndarray of datetime64[D]"),
        ({"t": np.zeros(2, ">f4")}, "arrays['t'] has items of the format"),
        ({"t": np.zeros(2, [("a", "f4")])}, "arrays['t'] has items of the format"),
        ([np.zeros(2)], "arrays is a list. Pass a mapping"),
        ({"t": np.zeros((600, 600, 3))}, "above the limit max_message_bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unusable_or_too_large_array_is_refused_by_name(value: Any, says: str) -> None:
    with pytest.raises(ClientError) as caught:
        to_observe("x", None, value, None)
    assert says in str(caught.value)


def test_invalid_message_is_refused_on_callers_thread(stand: Stand) -> None:
    with joined(stand) as client:
        client.observe(data={"x": np.float32(1)}, t_ns=np.int64(1))
        assert stand.expect(Observe, 5.0, "an observation").data == {"x": 1.0}
        client.reset(seed=np.int64(3), success=np.bool_(True), ret=np.float32(0.5), seconds=np.float64(2))
        ended = stand.expect(Reset, 5.0, "a reset").ended
        assert ended is not None and (ended.seed, ended.ret, ended.success, ended.seconds) == (3, 0.5, True, 2.0)
        says: list[tuple[Callable[[], Any], str]] = [
            (lambda: client.reset(seed=1 << 70, success=True), "ended.seed: an integer beyond 64 bits."),
            (lambda: client.reset(success="yes"), 'reset.ended.success is "yes". It must be a valid boolean.'),  # type: ignore[arg-type]
            (lambda: client.reset(ret=math.nan, seconds=1), "ended.return: nan is not finite."),
            (lambda: client.observe(), "The observation is empty."),
            (lambda: client.observe(data=[1]), "observe.data is a list of 1. It must be a valid dict"),  # type: ignore[arg-type]
            (lambda: client.observe(text="x", t_ns="now"), 'observe.t_ns is "now". It must be a valid integer'),  # type: ignore[arg-type]
            (lambda: client.observe(text="x", t_ns=1 << 62), "lies in the future"),
            (lambda: client.instruct(3), "instruct.instruction is 3. It must be a valid string"),  # type: ignore[arg-type]
            (lambda: client.executed(1), "acknowledge=True"),
            (lambda: client.decide("x"), "pacing"),
        ]
        for say, words in says:
            with pytest.raises(ClientError) as caught:
                say()
            assert words in str(caught.value)
        assert client.connected and client.error is None
