"""The client against a live server: what it asks for, is given and refuses; and the checks of conformance."""

from __future__ import annotations

import array
import ctypes
import enum
import math
import re
import runpy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
import torch
import zmq
from pydantic import BaseModel

from rtcontrol_client import Client, ClientError, Standing
from rtcontrol_client.client.options import Options
from rtcontrol_client.client.values import observation, to_arrays
from rtcontrol_client.wire import encode_json, encode_msgpack
from rtcontrol_client.wire.messages import FunctionCall, Observe, Reset
from tests.bridges.client.worlds import OWN, ROOT, STEER, STRAIGHT, Process, free_port, joined, until
from tests.conformance.check import Finding, check_any_client, table
from tests.conformance.check.stand import Stand
from tests.helpers.processes import python

EXAMPLE = ROOT / "examples" / "own_loop.py"
ANGLES = range(-30, 31, 10)


def test_server_paced_session_brings_legal_calls_tick_by_tick(server: Process) -> None:
    with Client.connect(server.endpoint, **OWN, hz=20) as client:
        assert client.call() == Standing(client.call().call, "safe", cause="no_call_yet")
        ticks = []
        while len(ticks) < 10:
            client.observe(text="left 40 right 10")
            standing = client.wait(1.0)
            assert standing.name == "steer"
            assert standing.arguments["angle"] in ANGLES
            if standing.status == "fresh" and standing.tick not in ticks:
                ticks.append(standing.tick)
        assert ticks == sorted(ticks)
        figures = client.statistics
        assert figures["fresh"] >= 10
        assert 0 < figures["latency_ms"]["p50"] <= figures["latency_ms"]["max"]
    assert client.call().call is not None
    assert client.call().arguments == STRAIGHT["arguments"]


def test_lockstep_answers_each_observation(server: Process) -> None:
    with Client.connect(server.endpoint, **OWN, pacing="client", ttl_ms=0) as client:
        answered = [client.decide({"left": i}).seq_obs for i in range(20)]
        assert answered == list(range(1, 21))
        assert client.reset(success=True, ret=3.5, seconds=1.0) == 1
        assert client.call().cause == "reset"
        assert client.decide("left 1").status == "fresh"
        assert client.epoch == 1


def test_handler_is_called_with_each_new_call_and_its_failure_is_told(server: Process) -> None:
    angles: list[int] = []

    def steer(standing: Standing) -> str:
        if standing.status == "safe":
            return "safe"
        angles.append(standing.arguments["angle"])
        if len(angles) == 2:
            raise RuntimeError("the wheel is stuck")
        return "done"

    with Client.connect(server.endpoint, **OWN, pacing="client", ttl_ms=0, on_call=steer) as client:
        for i in range(5):
            client.decide(f"left {i}")
            until(lambda: len(angles) == i + 1, "the handler was not called")  # noqa: B023
        token = client.welcome.session

    def told() -> bool:
        reports = (server.out / "records").rglob("report.json")
        return any('"failed": 1' in path.read_text() for path in reports)

    until(told, "the failure is in no report")
    assert token not in server.logs()


def test_robot_that_is_claimed_is_had_once_it_is_free(server: Process) -> None:
    with Client.connect(server.endpoint, **OWN, robot="arm") as first, ThreadPoolExecutor() as pool:
        waiting = pool.submit(Client.connect, server.endpoint, **OWN, robot="arm")
        with pytest.raises(ClientError, match=r"answered busy: The robot 'arm' is claimed"):
            Client.connect(server.endpoint, **OWN, robot="arm", connect_timeout_s=0.5)
        assert first.error is None and not waiting.done()
        first.close()
        with waiting.result(20) as second:
            assert second.connected


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"agent": "lander", "tools": [STEER]}, "not both"),
        ({**OWN, "speed": 3}, "speed= is no option"),
        ({"tools": STEER}, "hello.tools is a map. Give a list"),
        ({"tools": "push"}, 'hello.tools is "push". Give a list'),
        ({"tools": ["push"]}, r'hello.tools\[0\] is "push". Give a map'),
        ({"tools": 7}, "hello.tools is 7. Give a list"),
        ({"tools": []}, "tools"),
        ({**OWN, "hz": -1}, "hz"),
        ({**OWN, "hz": "fast"}, "hz"),
        ({**OWN, "ttl_ms": [1]}, "ttl_ms"),
        ({**OWN, "ttl_ms": float("nan")}, "ttl_ms"),
        ({**OWN, "pacing": "fast"}, "pacing"),
        ({**OWN, "safe_call": 7}, "safe_call"),
        ({**OWN, "keys": "/nowhere/arm.key_secret"}, "no key file"),
    ],
)
def test_mistakes_are_told_before_anything_is_connected(options: dict[str, Any], match: str) -> None:
    before = threading.active_count()
    with pytest.raises(ClientError, match=match):
        Client.connect("tcp://127.0.0.1:9", **options)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("endpoint", "match"),
    [
        *((wrong, "is no endpoint") for wrong in ("127.0.0.1:5555", "smoke://signals")),
        ("tcp://", "names no port"),
        ("tcp://127.0.0.1:9", "No rtcontrol server answers at tcp://127.0.0.1:9.*rtcontrol serve"),
    ],
)
def test_endpoint_that_is_none_or_where_nobody_is_is_told(endpoint: str, match: str) -> None:
    with pytest.raises(ClientError, match=match):
        Client.connect(endpoint, **OWN, connect_timeout_s=0.3)


def test_observations_that_the_protocol_forbids_are_told_at_once(server: Process) -> None:
    with Client.connect(server.endpoint, **OWN, pacing="client", ttl_ms=0) as client:
        for wrong in (
            {},
            {"data": {"x": float("nan")}},
            {"data": {"x": b"bytes"}},
            {"data": {"x": 1 << 70}},
            {"text": "x" * 70_000},
            {"text": "x", "t_ns": time.monotonic_ns() + 10**12},
        ):
            with pytest.raises(ClientError):
                client.observe(**wrong)
        with pytest.raises(ClientError, match="acknowledge=True"):
            client.executed(1)
        assert client.decide("left 1").status == "fresh"
    with Client.connect(server.endpoint, **OWN) as client, pytest.raises(ClientError, match="pacing"):
        client.decide("left 1")


def test_anything_with_a_buffer_becomes_an_array() -> None:
    picture = np.arange(12, dtype=np.float32).reshape(3, 4).T
    found = to_arrays(
        {
            "picture": picture, "floats": array.array("d", [1.5, -2.0]), "bytes": b"abc",
            "flags": np.array([True, False]), "half": np.ones(2, np.float16), "ctypes": (ctypes.c_int16 * 2)(1, -1),
            "scalar": np.int64(7),
        }
    )  # fmt: skip
    assert [(a["dtype"], a["shape"]) for a in found] == [
        ("f4", [4, 3]),
        ("f8", [2]),
        ("u1", [3]),
        ("b1", [2]),
        ("f2", [2]),
        ("i2", [2]),
        ("i8", []),
    ]
    assert np.array_equal(np.frombuffer(found[0]["data"], "<f4").reshape(4, 3), picture)


@pytest.mark.parametrize("value", ["text", 7, [1, 2], np.zeros(2, complex), np.zeros(2, ">f4"), np.array(["a"])])
def test_what_has_no_plain_buffer_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ClientError, match=r"arrays\['it'\]"):
        to_arrays({"it": value})


def test_client_imports_with_three_packages_and_without_the_floors_above() -> None:
    absent = ("numpy", "torch", "ray", "transformers", "typer", "rich", "jsonschema", "gymnasium", "tokenizers")
    code = (
        f"import sys\nfor name in {absent!r}: sys.modules[name] = None\n"
        "from rtcontrol_client import Client\n"
        "assert not [m for m in sys.modules if m.partition('.')[0] == 'rtcontrol']\n"
    )
    assert python("-c", code).stderr == ""


def test_example_in_the_documentation_drives_its_own_loop(server: Process, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40
    runpy.run_path(str(EXAMPLE))["main"](server.endpoint, seconds=0.5)
    assert int(capsys.readouterr().out.split("fresh calls")[0].split()[-1]) > 0


@pytest.mark.slow
def test_example_in_the_documentation_says_in_one_line_that_nobody_is_there() -> None:
    done = python(str(EXAMPLE), f"tcp://127.0.0.1:{free_port()}", cwd=Path("/"))
    assert done.returncode == 2
    assert "rtcontrol serve" in done.stderr and len(done.stderr.splitlines()) == 1


# The conformance check of clients: ours passes, and wrong ones are found out.


def names(findings: list[Finding], status: str) -> list[str]:
    return [f.name for f in findings if f.status == status]


def stream(endpoint: str, errors: list[Any]) -> None:
    with Client.connect(endpoint, **OWN, hz=20, on_call=lambda standing: None) as client:
        while client.error is None:
            client.observe(text="left 40 right 10")
            time.sleep(0.02)
        errors.append(client.error)


def test_our_client_conforms() -> None:
    ends: list[Any] = []
    findings = check_any_client(
        "tcp://127.0.0.1:*",
        lambda endpoint: threading.Thread(target=stream, args=(endpoint, ends), daemon=True).start(),
        wait_s=20,
    )
    assert not names(findings, "failed"), table(findings)
    assert not names(findings, "skipped"), table(findings)


def wrong_client(endpoint: str) -> None:
    """Believes everything: executes whatever comes, counts nothing up, answers no ping, never says hello again."""
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(endpoint)
    hello = {"type": "hello", "protocol": [1, 0], "client": {"name": "wrong"}, "t_client_ns": 1, "agent": "x"}
    for _ in range(2):
        dealer.send(msgpack.packb({**hello, "capabilities": ["executed"]}))
        time.sleep(0.2)
    token = None
    end_s = time.monotonic() + 40
    while time.monotonic() < end_s:
        while dealer.poll(50):
            parts = dealer.recv_multipart()
            try:
                message = msgpack.unpackb(parts[0])
                kind = message["type"]
            except Exception:
                continue
            if kind == "welcome":
                token = token or message["session"]
            elif kind == "call" and token and isinstance(message.get("tick"), int):
                told = {"type": "executed", "session": token, "tick": message["tick"], "epoch": 0, "t_ns": 1}
                dealer.send(msgpack.packb({**told, "outcome": "executed"}))
            elif kind == "bye":
                dealer.close()
                return
        if token:
            dealer.send(
                msgpack.packb({"type": "observe", "session": token, "seq": 1, "epoch": 0, "t_ns": 1, "text": "x"})
            )


def test_wrong_client_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conformance.check.stand.PATIENCE", 0.3)
    findings = check_any_client(
        "tcp://127.0.0.1:*",
        lambda endpoint: threading.Thread(target=wrong_client, args=(endpoint,), daemon=True).start(),
        wait_s=20,
    )
    failed = names(findings, "failed")
    for name in (
        "streams observations, seq and stamps growing",
        "answers ping",
        "never executes an expired call",
        "acknowledges neither held nor null",
        "resumes its session after silence",
    ):
        assert name in failed, table(findings)
    assert "executes and acknowledges a fresh call" not in failed, table(findings)


# What callers give besides plain Python: taken as what it means, or refused by its place, on their own thread.


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
