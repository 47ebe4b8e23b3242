"""Messages on the wire, and how a process that prints, warns or logs keeps its threads."""

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
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rtcontrol.envs.pictures import png
from rtcontrol_client.console import MAX_WAITING, Outbox, OutboxLog
from rtcontrol_client.wire import (
    Code,
    Limits,
    WireError,
    codec,
    decode_json,
    decode_msgpack,
    encode_json,
    encode_msgpack,
)
from rtcontrol_client.wire.endpoint import Endpoint, EndpointError, host_port, is_local, is_loopback
from rtcontrol_client.wire.messages import ANY, DTYPES, Message, Observe, Ping
from tests.helpers.processes import Program, full_pipe, until

MODELS: dict[str, Any] = TypeAdapter(Message).json_schema(by_alias=True)["$defs"]
# Surrogates have no UTF-8; every other character must pass.
CHARACTERS = st.characters(exclude_categories=("Cs",))
texts = st.text(CHARACTERS, max_size=40)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | finite | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    dtype, shape = draw(st.sampled_from(sorted(DTYPES))), draw(st.lists(st.integers(0, 3), max_size=4))
    size = math.prod(shape) * DTYPES[dtype]
    name = draw(st.text(CHARACTERS, min_size=1, max_size=64))
    return {"name": name, "dtype": dtype, "shape": shape, "data": draw(st.binary(min_size=size, max_size=size))}


@st.composite
def pictures(draw: st.DrawFn) -> dict[str, Any]:
    width, height = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    return {"format": "png", "data": png(np.full((height, width, 3), draw(st.integers(0, 255)), np.uint8))}


def of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What a JSON schema of a message takes."""
    kind, low = schema.get("type"), schema.get("minimum", schema.get("ge"))
    if "anyOf" in schema:
        return st.one_of([of(one) for one in schema["anyOf"]])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return arrays() if name == "Array" else pictures() if name == "PictureFile" else model(name)
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    if kind == "string":
        low = schema.get("minLength", 0)
        return st.text(CHARACTERS, min_size=low, max_size=min(schema.get("maxLength", 40), low + 40))
    if kind == "integer":
        return st.integers(-(1 << 63) if low is None else low, schema.get("le", schema.get("lt", 1 << 63) - 1))
    if kind == "number":
        return st.floats(low, schema.get("maximum"), allow_nan=False, allow_infinity=False)
    if kind == "array":
        low = schema.get("minItems", 0)
        return st.lists(of(schema["items"]), min_size=low, max_size=min(schema.get("maxItems", 3), max(3, low)))
    if kind == "object":
        more = schema["additionalProperties"]
        return st.dictionaries(texts, values if more is True else of(more), max_size=4)
    return {"boolean": st.booleans(), "null": st.none()}[str(kind)]


def model(name: str) -> st.SearchStrategy[dict[str, Any]]:
    fields = {field: of(schema) for field, schema in MODELS[name]["properties"].items()}
    if name == "Hello":
        fields["protocol"] = st.integers(0, 9).map(lambda minor: [1, minor])
    if name == "Instruct":
        fields["instruction"] = texts.filter(str.strip)
    # An observation needs one of its optional fields.
    required = {"type", *MODELS[name].get("required", ()), *(["text"] if name == "Observe" else [])} & set(fields)
    if name == "Observe":
        fields["text"] = texts
    optional = {field: fields.pop(field) for field in set(fields) - required}
    return st.fixed_dictionaries(fields, optional=optional)


messages = st.one_of([model(m.__name__) for m in Message.__args__]).map(ANY.validate_python)


# Messages on the wire, and how a process that prints, warns or logs keeps its threads.


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


@given(messages)
def test_msgpack_gives_back_the_message(message: Message) -> None:
    assert decode_msgpack(encode_msgpack(message)) == message


@given(messages)
def test_json_gives_back_the_message(message: Message) -> None:
    assert decode_json(encode_json(message)) == message


def checked(decode: Any, raw: Any) -> None:
    try:
        decode(raw)
    except WireError as error:
        assert error.code and error.message.endswith("."), error
        assert error.remedy.endswith("."), error


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_random_parts_raise_nothing_but_wire_errors(parts: list[bytes]) -> None:
    checked(decode_msgpack, parts)


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_random_text_raises_nothing_but_wire_errors(text: str | bytes) -> None:
    checked(decode_json, text)


@given(values)
def test_any_value_as_a_header_raises_nothing_but_wire_errors(value: Any) -> None:
    checked(decode_msgpack, pack(value))
    checked(decode_json, json.dumps(value))


@given(messages, st.data())
def test_flipped_bytes_raise_nothing_but_wire_errors(message: Message, data: st.DataObject) -> None:
    header, *rest = encode_msgpack(message)
    body = bytearray(header)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    checked(decode_msgpack, [bytes(body), *rest])
    checked(decode_msgpack, [header[: data.draw(st.integers(0, len(header)))], *rest])


@given(messages, st.data())
def test_fields_of_any_type_raise_nothing_but_wire_errors(message: Message, data: st.DataObject) -> None:
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


def test_null_is_absent_in_nested_messages_but_not_in_free_values() -> None:
    client = {"name": "r", "version": None, "language": None}
    hello = decode_msgpack(pack({"type": "hello", "protocol": [1, 0], "client": client, "t_client_ns": 1, "hz": None}))
    assert hello.client.version == "" and hello.hz is None  # type: ignore[union-attr]
    seen = decode_msgpack(pack({**SEEN, "data": {"x": None}}))
    assert seen.data == {"x": None}  # type: ignore[union-attr]
    assert json.loads(encode_json(seen))["data"] == {"x": None}


@pytest.mark.parametrize("number", [7, 7.0])
def test_a_whole_float_is_an_integer(number: float) -> None:
    message = decode_msgpack(pack({"type": "ping", "id": number, "t_ns": number}))
    assert message == Ping(id=7, t_ns=7)
    assert type(message.id) is int  # type: ignore[union-attr]


def test_an_array_names_its_part_by_a_whole_float() -> None:
    entry = {"name": "a", "dtype": "u1", "shape": [2.0], "part": 1.0}
    seen = decode_msgpack(pack({**SEEN, "arrays": [entry]}, b"ab"))
    assert isinstance(seen, Observe) and seen.arrays[0].data == b"ab"


def test_later_fields_are_ignored() -> None:
    assert decode_msgpack(pack({"type": "ping", "id": 1, "t_ns": 1, "later": {"x": [1]}})) == Ping(id=1, t_ns=1)
    assert decode_json('{"type":"ping","id":1,"t_ns":1,"arrays":[1]}') == Ping(id=1, t_ns=1)


def test_a_refusal_names_path_rule_and_sequence_number() -> None:
    entry = {"name": "a", "dtype": "c8", "shape": [], "part": 1}
    error = refusal(pack({**SEEN, "seq": 41, "arrays": [entry]}, b"x"))
    assert (error.code, error.field, error.seq) == (Code.INVALID, "arrays[0].dtype", 41)
    assert error.message == 'observe.arrays[0].dtype is "c8".' and '"f4"' in error.remedy
    call = {"type": "call", "session": TOKEN, "tick": 0, "epoch": 0, "status": "safe", "ttl_ms": 1, "deadline_ns": 1}
    assert refusal(pack({**call, "t_server_ns": 1, "call": {"arguments": {}}})).field == "call.name"


@pytest.mark.parametrize(
    ("change", "what", "remedy"),
    [
        ({"seq": True}, "observe.seq is true.", "Give a whole number from 0 to 9007199254740991."),
        ({"text": 1}, "observe.text is 1.", "Give a string of 0 to 65536 characters."),
        ({"session": "x" * 200}, "observe.session is a string of 200 characters.", "Give a string of 16 to 128 char"),
        ({"data": []}, "observe.data is a list of 0.", "Give a map."),
        ({"t_ns": None}, "observe.t_ns is missing.", "Give a whole number from 0 to 9223372036854775807."),
    ],
)
def test_a_refusal_says_what_was_given_and_what_to_give(change: dict[str, Any], what: str, remedy: str) -> None:
    error = refusal(pack({**SEEN, "text": "x", **change}))
    assert error.message == what and error.remedy.startswith(remedy)


def test_another_major_version_is_refused_whatever_else_its_hello_holds() -> None:
    error = refusal(pack({"type": "hello", "protocol": [2, 0], "who": 1}))
    assert (error.code, error.fatal, error.field) == (Code.VERSION, True, "protocol")
    assert "1.1" in error.message
    assert refusal(pack({"type": "hello", "protocol": [1, 5]})).code == Code.INVALID


@pytest.mark.parametrize(("minor", "stamp"), [(0, None), (1, 7), (5, 7)])
def test_only_a_hello_of_1_1_is_told_which_one_was_refused(minor: int, stamp: int | None) -> None:
    assert refusal(pack({"type": "hello", "protocol": [1, minor], "t_client_ns": 7})).t_client_ns == stamp


@pytest.mark.parametrize(
    ("encode", "value", "field"),
    [
        (encode_json, math.nan, "data.x"), (encode_json, [0, {"y": math.inf}], "data.x[1].y"),
        (encode_json, "\ud800", "data.x"), (encode_json, {1, 2}, "data.x"), (encode_msgpack, "\ud800", "data.x"),
        (encode_msgpack, [{"y": 1 << 64}], "data.x[0].y"), (encode_msgpack, {1, 2}, "data.x"),
    ],
)  # fmt: skip
def test_free_values_that_cannot_be_sent_are_refused_by_path(encode: Any, value: Any, field: str) -> None:
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


def test_parts_are_counted_before_anything_is_read() -> None:
    assert "max_parts = 2" in refusal([b"\xc1"] * 3, SMALL).message


@pytest.mark.parametrize(
    "raw",
    [
        [b"\xdd\xff\xff\xff\xff"],
        [b"\xdf\xff\xff\xff\xff"],
        [b"\xdb\xff\xff\xff\xff"],
        [b"\xc6\xff\xff\xff\xff"],
        [b"\xdd\x00\x10\x00\x00" + bytes(100)],
        [b"\x00" * (2 << 20)],
        [b"\x80", b"\x00" * (2 << 20)],
        "[" * (2 << 20),
        "1" * 500_000,
        pack({**SEEN, "arrays": [{"name": "a", "dtype": "f8", "shape": [1 << 30] * 8, "part": 1}]}, b""),
    ],
    ids=["list", "map", "string", "bin", "list, short", "header", "part", "json", "digits", "shape"],
)
def test_a_claimed_size_allocates_nothing(raw: Any) -> None:
    tracemalloc.start()
    try:
        refusal(raw)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1a"])
@pytest.mark.parametrize("depth", [17, 600, 100_000])
def test_deep_nesting_is_refused(opener: bytes, depth: int) -> None:
    error = refusal([b"\x82\xa4type\xa3bye\xa1x" + opener * depth + b"\xc0"])
    assert (error.code, "max_depth = 16" in error.message) == (Code.TOO_LARGE, True)


class CountedKey(str):
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedKey.compared += 1
        return str(self) == other

    __hash__ = str.__hash__


def test_a_key_that_stands_twice_in_a_large_map_is_found_in_one_pass() -> None:
    pairs = [(CountedKey(f"k{i}"), i) for i in range(4000)]
    with pytest.raises(WireError, match="'k3999' stands twice"):
        codec._map([*pairs, (CountedKey("k3999"), 0)])
    assert CountedKey.compared < 10 * len(pairs)


# One reading of endpoints: their parts, which are this machine's alone, and which want IPv6.


@pytest.mark.parametrize(
    ("text", "host", "port", "ipv6"),
    [
        ("tcp://127.0.0.1:5555", "127.0.0.1", "5555", False),
        ("tcp://*:*", "*", "*", False),
        ("tcp://[::1]:5555", "::1", "5555", True),
        ("tcp://[::]:0", "::", "0", True),
        ("tcp://[fe80::1%eth0]:5555", "fe80::1%eth0", "5555", True),
        ("tcp://[::ffff:127.0.0.1]:5555", "::ffff:127.0.0.1", "5555", True),
        ("tcp://robot.local:5555", "robot.local", "5555", None),
        ("tcp://10.0.0.7:0;10.0.0.9:5555", "10.0.0.9", "5555", False),
        ("ipc:///run/a:b", "", "", False),
    ],
)
def test_parts_of_an_endpoint(text: str, host: str, port: str, ipv6: bool | None) -> None:
    found = Endpoint.parse(text)
    assert (found.host, found.port, found.ipv6) == (host, port, ipv6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tcp://::1:5555", "has colons in its address. Write tcp://[::1]:5555."),
        ("tcp://[::1]", "names no port."),
        ("tcp://[::1]:", "names no port."),
        ("tcp://[]:5555", "names no port."),
        ("tcp://[::1]:99999", "'99999' is no port."),
        (
            "[::1]:5555",
            "is no endpoint. Write tcp://ADDRESS:PORT, tcp://[IPV6]:PORT or ipc://PATH. Did you mean tcp://[::1]",
        ),
        ("ws://[::1]:5555", "is no endpoint."),
        ("", "is no endpoint."),
    ],
)
def test_what_is_no_endpoint_is_told_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(EndpointError) as caught:
        Endpoint.parse(text)
    assert says in str(caught.value)
    assert not is_local(text)


NEAR = "[::1] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] localhost LOCALHOST 127.0.0.1 127.9.9.9"
FAR = "[::] [::ffff:10.0.0.7] [fe80::1%lo] [2001:db8::1] 0.0.0.0 * eth0 localhost.example.org"


def test_what_is_this_machine_alone() -> None:
    assert [host for host in f"{NEAR} {FAR}".split() if is_local(f"tcp://{host}:5555")] == NEAR.split()
    assert is_local("ipc:///tmp/x") and not is_loopback("[::1]")


def test_name_of_both_kinds_is_not_bound_as_ipv6_and_one_that_nobody_knows_is_libzmqs_to_refuse() -> None:
    assert Endpoint.parse("tcp://[::1]:1").ipv6_only
    assert not Endpoint.parse("tcp://localhost:1").ipv6_only
    assert not Endpoint.parse("tcp://no.such.name.invalid:1").ipv6_only


def test_host_and_port_of_http_are_read_the_same() -> None:
    assert [host_port(text) for text in ("[::1]:8080", "127.0.0.1:80", "[::1]", "name")] == [
        ("::1", "8080"),
        ("127.0.0.1", "80"),
        ("::1", ""),
        ("name", ""),
    ]


# What a program says must not depend on anybody reading it.


@pytest.fixture
def full() -> Iterator[tuple[int, int]]:
    with full_pipe() as ends:
        yield ends


def read_lines(reading: int, last: str) -> list[str]:
    text = b""
    while last.encode() not in text:
        text += os.read(reading, 65_536)
    return text.decode().splitlines()


def test_lines_come_in_order() -> None:
    reading, writing = os.pipe()
    with Outbox(writing) as outbox, OutboxLog(outbox):
        for i in range(100):
            outbox.say(f"line {i}")
        logging.getLogger("rtcontrol.serve").warning("refused a key")
        logging.getLogger("uvicorn.error").warning("no request")
    assert read_lines(reading, "no request\n") == [*(f"line {i}" for i in range(100)), "refused a key", "no request"]
    os.close(reading)
    os.close(writing)


def test_reader_that_stops_loses_lines_and_is_told_how_many(full: tuple[int, int]) -> None:
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
    assert any("lines were lost" in line for line in reader)
    assert reader[-1] == "again"


def test_reader_that_has_gone_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with Outbox(writing) as outbox:
        for _ in range(10):
            outbox.say("line")
        until(lambda: outbox.dropped > 0)
    os.close(writing)


def test_whatever_a_process_prints_warns_or_logs_keeps_none_of_its_threads(
    full: tuple[int, int], tmp_path: Path
) -> None:
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


def test_a_second_signal_ends_nothing_by_its_own_line(full: tuple[int, int], tmp_path: Path) -> None:
    code = (
        "import os, time\nfrom rtcontrol_client.shutdown import Shutdown\n"
        "with Shutdown(lambda name: None) as ending:\n"
        "    for _ in range(2): os.kill(os.getpid(), 15); time.sleep(0.05)\n"
    )
    started = Program(["-c", code], tmp_path / "log", stdout=full[1], stderr=full[1])
    try:
        assert started.popen.wait(20) == 0
    finally:
        started.kill()


def test_texts_of_others_forge_no_line_and_move_no_cursor() -> None:
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
