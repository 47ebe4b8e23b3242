"""Messages on the wire, and printing, warnings and logs that never block a thread."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol_client.console import MAX_WAITING, Outbox, OutboxLog
from rtcontrol_client.wire import (
    Code,
    Limits,
    WireError,
    decode_json,
    decode_msgpack,
    encode_json,
    encode_msgpack,
)
from rtcontrol_client.wire.endpoint import Endpoint, EndpointError, is_local, is_loopback, split_host_port
from rtcontrol_client.wire.messages import MAX_FAULTS, Message, Observe
from tests.conformance import load
from tests.helpers.processes import Program, full_pipe, until

# Surrogates have no UTF-8; every other character must pass.
CHARACTERS = st.characters(exclude_categories=("Cs",))
texts = st.text(CHARACTERS, max_size=40)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | finite | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


VECTORS = [
    *load("valid"),
    *(one for name in ("control", "several", "pictures", "crowd") for one in load(name)["valid"]),
]
messages = st.sampled_from([decode_json(json.dumps(vector["json"])) for vector in VECTORS])


TOKEN = "t" * 16
SEEN = {"type": "observe", "session": TOKEN, "seq": 1, "epoch": 0, "t_ns": 1}


def pack(header: Any, *buffers: bytes) -> list[bytes]:
    return [msgpack.packb(header), *buffers]


def refusal(parts: list[bytes] | str, limits: Limits | None = None) -> WireError:
    with pytest.raises(WireError) as caught:
        if isinstance(parts, str):
            decode_json(parts, limits or Limits())
        else:
            decode_msgpack(parts, limits or Limits())
    return caught.value


@given(st.dictionaries(texts, values, max_size=4), texts, st.binary(max_size=40))
def test_both_encodings_decode_to_same_message(data: dict[str, Any], text: str, raw: bytes) -> None:
    array = {"name": "a", "dtype": "u1", "shape": [len(raw)], "data": raw}
    message = Observe.model_validate({**SEEN, "data": data, "text": text, "arrays": [array]})
    assert decode_msgpack(encode_msgpack(message)) == message
    assert decode_json(encode_json(message)) == message


def checked(decode: Any, raw: Any) -> None:
    try:
        decode(raw)
    except WireError as error:
        assert error.code and error.message.endswith("."), error
        assert error.remedy.endswith("."), error


@given(st.lists(st.binary(max_size=200), max_size=10), st.text(max_size=200) | st.binary(max_size=200), values)
def test_random_bytes_raise_only_wire_errors(parts: list[bytes], text: str | bytes, value: Any) -> None:
    checked(decode_msgpack, parts)
    checked(decode_json, text)
    checked(decode_msgpack, pack(value))


@given(messages, st.data())
def test_flipped_bytes_raise_only_wire_errors(message: Message, data: st.DataObject) -> None:
    header, *rest = encode_msgpack(message)
    body = bytearray(header)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    checked(decode_msgpack, [bytes(body), *rest])
    checked(decode_msgpack, [header[: data.draw(st.integers(0, len(header)))], *rest])


@given(messages, st.data())
def test_fields_of_any_type_raise_only_wire_errors(message: Message, data: st.DataObject) -> None:
    parts = encode_msgpack(message)
    header = msgpack.unpackb(parts[0])
    nested = [v for v in header.values() if isinstance(v, dict) and v]
    nested += list(header.get("arrays", ()))
    target = data.draw(st.sampled_from([header, *nested]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(values | st.just(math.nan) | st.just(b"raw"))
    checked(decode_msgpack, [msgpack.packb(header), *parts[1:]])
    text = json.loads(encode_json(message))
    text[data.draw(st.sampled_from(sorted(text)))] = data.draw(values)
    checked(decode_json, json.dumps(text))


@pytest.mark.parametrize(
    ("change", "what", "remedy"),
    [
        (
            {"session": "x" * 200},
            "observe.session is a string of 200 characters.",
            "It must have at most 128 characters.",
        ),
        ({"t_ns": None}, "observe.t_ns is missing.", "Add this field"),
    ],
)
def test_refusal_names_given_value_and_remedy(change: dict[str, Any], what: str, remedy: str) -> None:
    error = refusal(pack({**SEEN, "text": "x", **change}))
    assert error.message == what and error.remedy.startswith(remedy)


@pytest.mark.parametrize("version", [[1, 0], [1, 1], [1, 5], [2, 0]])
def test_refusal_of_hello_names_that_hello(version: list[int]) -> None:
    error = refusal(pack({"type": "hello", "protocol": version, "t_client_ns": 7}))
    assert (error.t_client_ns, error.code == Code.VERSION) == (7, version in ([1, 0], [2, 0]))


@pytest.mark.parametrize(
    ("encode", "value", "field"),
    [
        (encode_json, math.nan, "data.x"), (encode_json, [0, {"y": math.inf}], "data.x[1].y"),
        (encode_json, "\ud800", "data.x"), (encode_json, {1, 2}, "data.x"), (encode_msgpack, "\ud800", "data.x"),
        (encode_msgpack, [{"y": 1 << 64}], "data.x[0].y"), (encode_msgpack, {1, 2}, "data.x"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_sent_are_refused_by_path(encode: Any, value: Any, field: str) -> None:
    with pytest.raises(WireError) as caught:
        encode(Observe(session=TOKEN, seq=0, epoch=0, t_ns=0, data={"x": value}))
    assert caught.value.field == field


SMALL = Limits(max_parts=2, max_message_bytes=500, max_depth=4, max_string_bytes=40, max_items=10, max_total_items=25)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("max_depth", {"a": {"b": {"c": {}}}}),
        ("max_string_bytes", {"a": "é" * 21}),
        ("max_string_bytes", {"é" * 21: 1}),
        ("max_items", {"a": [0] * 11}),
        ("max_total_items", {"a": [0] * 9, "b": [0] * 9}),
        ("max_message_bytes", {str(i): "x" * 40 for i in range(9)} | {"a": ["x" * 40] * 4}),
    ],
)
def test_each_limit_holds_in_both_encodings(name: str, data: Any) -> None:
    header = {**SEEN, "data": data}
    for raw in (pack(header), json.dumps(header, ensure_ascii=False)):
        error = refusal(raw, SMALL)
        assert error.code == Code.TOO_LARGE
        assert f"{name} = {getattr(SMALL, name)}" in error.message
    fits = {**SEEN, "data": {"a": {"b": 1}, "c": [0] * 9, "d": "é" * 20}}
    assert decode_msgpack(pack(fits), SMALL) == decode_json(json.dumps(fits), SMALL)


@pytest.mark.parametrize("part", [{"id": 1}, 1, {"id": "a", "x": json.loads("[" * 20 + "]" * 20)}])
def test_message_of_wrong_parts_is_refused_early(part: Any) -> None:
    header = {"type": "observe_many", "session": TOKEN, "looks": [part] * 1024}
    error = refusal(pack(header))
    assert error.code == Code.INVALID and f"More than {MAX_FAULTS} parts" in error.message
    few = decode_msgpack(pack({**header, "looks": [part] * MAX_FAULTS}))
    assert len(few.faults) == MAX_FAULTS  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "raw",
    [
        [b"\xdd\xff\xff\xff\xff"],
        [b"\x82\xa4type\xa3bye\xa1x" + b"\x91" * 100_000 + b"\xc0"],
        [b"\x80", b"\x00" * (2 << 20)],
        "[" * (2 << 20),
        "1" * 500_000,
        pack({**SEEN, "arrays": [{"name": "a", "dtype": "f8", "shape": [1 << 30] * 8, "part": 1}]}, b""),
    ],
    ids=["list", "nesting", "part", "json", "digits", "shape"],
)
def test_claimed_size_allocates_no_memory(raw: Any) -> None:
    tracemalloc.start()
    try:
        refusal(raw)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# One reading of endpoints: their parts, which are this machine's alone, and which want IPv6.


@pytest.mark.parametrize(
    ("text", "host", "port", "ipv6"),
    [
        ("tcp://*:*", "*", "*", False),
        ("tcp://[fe80::1%eth0]:5555", "fe80::1%eth0", "5555", True),
        ("tcp://robot.local:5555", "robot.local", "5555", None),
        ("tcp://10.0.0.7:0;10.0.0.9:5555", "10.0.0.9", "5555", False),
        ("ipc:///run/a:b", "", "", False),
    ],
)
def test_endpoint_is_parsed_into_host_and_port(text: str, host: str, port: str, ipv6: bool | None) -> None:
    result = Endpoint.parse(text)
    assert (result.host, result.port, result.ipv6) == (host, port, ipv6)


@pytest.mark.parametrize(
    "text",
    ["tcp://::1:5555", "tcp://[::1]:", "tcp://[::1]:99999", "[::1]:5555", "ws://[::1]:5555", "ipc://", "tcp://:1"],
)
def test_invalid_endpoint_error_says_what_to_write(text: str) -> None:
    with pytest.raises(EndpointError, match=r"is not an endpoint\. Write tcp://ADDRESS:PORT"):
        Endpoint.parse(text)
    assert not is_local(text)


NEAR = "[::1] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] localhost LOCALHOST 127.0.0.1 127.9.9.9"
FAR = "[::] [::ffff:10.0.0.7] [fe80::1%lo] [2001:db8::1] 0.0.0.0 * eth0 localhost.example.org"


def test_loopback_addresses_are_local() -> None:
    assert [host for host in f"{NEAR} {FAR}".split() if is_local(f"tcp://{host}:5555")] == NEAR.split()
    assert is_local("ipc:///tmp/x") and not is_loopback("[::1]")
    assert Endpoint.parse("tcp://[::1]:1").ipv6_only and not Endpoint.parse("tcp://localhost:1").ipv6_only
    assert [split_host_port(text) for text in ("[::1]:8080", "name")] == [("::1", "8080"), ("name", "")]


# What a program says does not depend on a reader.


@pytest.fixture
def full() -> Iterator[tuple[int, int]]:
    with full_pipe() as ends:
        yield ends


def read_lines(reading: int, last: str) -> list[str]:
    text = b""
    while last.encode() not in text:
        text += os.read(reading, 65_536)
    return text.decode().splitlines()


def test_stopped_reader_loses_lines_and_gets_their_count(full: tuple[int, int]) -> None:
    reading, writing = full
    with Outbox(writing) as outbox:
        for i in range(MAX_WAITING + 500):
            outbox.say(f"line {i}")
        assert 498 <= outbox.dropped <= 500
        reader: list[str] = []
        thread = threading.Thread(target=lambda: reader.extend(read_lines(reading, "again\n")), daemon=True)
        thread.start()
        until(lambda: not outbox._waiting)
        outbox.say("again")
        thread.join(10)
    assert any("lines were dropped" in line for line in reader)
    assert reader[-1] == "again"


def test_printing_warning_or_logging_never_blocks_threads(full: tuple[int, int], tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = (
        "import asyncio, logging, sys, threading, warnings\n"
        "from pathlib import Path\n"
        "from rtcontrol_client.console import StandardStreams\n"
        "def broken(): raise LookupError\n"
        "with StandardStreams():\n"
        "    for i in range(3000):\n"
        "        print('x' * 100); print('y' * 100, file=sys.stderr); sys.stdout.write('no end')\n"
        "        warnings.warn(f'number {i}'); logging.getLogger(f'asyncio').error('z' * 100)\n"
        "    thread = threading.Thread(target=broken); thread.start(); thread.join()\n"
        f"    Path({str(said)!r}).write_text('all')\n"
    )
    started = Program(["-c", code], tmp_path / "log", stdout=full[1], stderr=full[1])
    try:
        assert started.popen.wait(30) == 0
    finally:
        started.kill()
    assert said.read_text() == "all"


def test_untrusted_text_cannot_forge_lines_or_move_cursor() -> None:
    reading, writing = os.pipe()
    log = logging.getLogger("rtcontrol.serve")
    with Outbox(writing) as outbox, OutboxLog(outbox):
        outbox.say("session-0001: \x1b[2J\r\nlistening on tcp://evil\x85\u2028\u202ereversed")
        log.warning("%s: refused", "a\x1b]0;title\x07\nsession-0002: over")
        try:
            raise ValueError("b\nsession-0003: over\x9b31m")
        except ValueError:
            log.exception("it failed")
        log.warning("%s", "x" * 65_536)
        log.warning("the last one")
    lines = read_lines(reading, "the last one\n")
    assert lines[0] == r"session-0001: \x1b[2J\r\nlistening on tcp://evil\x85\u2028\u202ereversed"
    assert lines[1] == r"a\x1b]0;title\x07\nsession-0002: over: refused"
    assert not [line for line in lines if line.startswith("session-0003")] and all(line.isprintable() for line in lines)
    assert any(line.startswith("  | session-0003: over") for line in lines)
    assert lines[-2].startswith("xxx") and lines[-2].endswith("(65536 characters)") and len(lines[-2]) < 2100
    os.close(reading)
    os.close(writing)
