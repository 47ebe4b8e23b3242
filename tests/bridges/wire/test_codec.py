"""Both encodings: what goes in comes out, and whatever comes in is a message or a WireError."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.bridges.wire import (
    Code,
    Limits,
    WireError,
    codec,
    decode_json,
    decode_msgpack,
    encode_json,
    encode_msgpack,
)
from rtcontrol.bridges.wire.messages import Message, Observe, Ping
from tests.bridges.wire.messages import messages, values

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
        (encode_json, math.nan, "data.x"),
        (encode_json, [0, {"y": math.inf}], "data.x[1].y"),
        (encode_json, "\ud800", "data.x"),
        (encode_json, {1, 2}, "data.x"),
        (encode_msgpack, "\ud800", "data.x"),
        (encode_msgpack, [{"y": 1 << 64}], "data.x[0].y"),
        (encode_msgpack, {1, 2}, "data.x"),
    ],
)
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
