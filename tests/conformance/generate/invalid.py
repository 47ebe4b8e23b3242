"""What a receiver must refuse, with the code and the field that it must name."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import msgpack

from tests.conformance.generate.valid import CALL_BARE, ERROR, EXECUTED, HELLO, OBSERVE, PONG, RESET, TOKEN, WELCOME

Vector = dict[str, Any]
SAFE: Vector = {**CALL_BARE, "status": "safe"}
SEEN: Vector = {**OBSERVE, "text": "x"}
ARRAY: Vector = {"name": "a", "dtype": "f4", "shape": [2], "part": 1}
PING: Vector = {"type": "ping", "id": 1, "t_ns": 1}
INSTRUCT: Vector = {"type": "instruct", "session": TOKEN, "instruction": "go"}
WELCOMED: Vector = {**WELCOME, "tools": [{"name": "f"}], "limits": {}, "warnings": []}
MESSAGES: tuple[Vector, ...] = (HELLO, WELCOMED, SEEN, SAFE, EXECUTED, INSTRUCT, RESET, PING, PONG, ERROR)
OPTIONAL = {"capabilities", "agent", "safe_call", "warnings", "timing", "text", "data"}


def _both(name: str, header: Any, code: str, field: str | None, *buffers: bytes) -> list[Vector]:
    """The same fault in both encodings (only msgpack, where it has buffers)."""
    parts = [msgpack.packb(header).hex(), *(b.hex() for b in buffers)]
    found = [{"name": f"{name} (msgpack)", "msgpack": parts, "code": code, "field": field}]
    if not buffers:
        found.append({"name": f"{name} (json)", "json": json.dumps(header), "code": code, "field": field})
    return found


def _text(name: str, text: str | list[list[Any]], code: str, field: str | None = None) -> Vector:
    return {"name": name, "json": text, "code": code, "field": field}


def _parts(name: str, parts: list[Any], code: str, field: str | None = None) -> Vector:
    return {"name": name, "msgpack": parts, "code": code, "field": field}


def invalid() -> list[Vector]:
    """All of them."""
    return [*_fields(), *_values(), *_arrays(), *_msgpack(), *_json(), *_large(), *_of_1_1()]


def _of_1_1() -> list[Vector]:
    """What a receiver that speaks 1.1 refuses; keys that stand twice only a server must see."""
    stop = {"name": "stop"}
    cases = [
        ("hello, no safe calls", {**HELLO, "safe_calls": []}, "safe_calls"),
        ("hello, 17 safe calls", {**HELLO, "safe_calls": [stop] * 17}, "safe_calls"),
        ("hello, a nameless safe call", {**HELLO, "safe_calls": [stop, {}]}, "safe_calls[1].name"),
        ("call, safe calls that are a map", {**SAFE, "calls": stop}, "calls"),
        ("call, a release before zero", {**SAFE, "release_ns": -1}, "release_ns"),
        ("welcome, trained in words", {**WELCOMED, "trained": "yes"}, "trained"),
        ("error, a stamp with a fraction", {**ERROR, "t_client_ns": 0.5}, "t_client_ns"),
    ]
    found = [v for name, header, field in cases for v in _both(f"1.1: {name}", header, "invalid", field)]
    found = [{**v, "minor": 1} for v in found]
    twice = [
        _parts("1.1: a key twice (msgpack)", ["83a474797065a3627965a178c0a178c0"], "malformed"),
        _parts("1.1: a key twice in a nested map (msgpack)", ["82a474797065a3627965a17882a161c0a161c0"], "malformed"),
        _text("1.1: a key twice (json)", '{"type":"bye","reason":"a","reason":"b"}', "malformed"),
        _text("1.1: a key twice in a nested map (json)", '{"type":"bye","x":[{"a":1,"a":1}]}', "malformed"),
    ]
    blank = [
        v
        for text in ("", " \n\t")
        for v in _both(f"1.1: an instruct of {text!r}", {**INSTRUCT, "instruction": text}, "instruction", "instruction")
    ]
    return [*found, *({**v, "minor": 1, "by": "server"} for v in (*twice, *blank))]


def _wrong(value: Any) -> Any:
    """A value of another type than `value`'s."""
    if isinstance(value, (dict, list, bool)):
        return "wrong"
    return {"wrong": 1}


def _fields() -> list[Vector]:
    found: list[Vector] = []
    for message in MESSAGES:
        kind = message["type"]
        for name in message:
            field = name
            found += _both(
                f"{kind}.{name} of the wrong type", {**message, name: _wrong(message[name])}, "invalid", field
            )
            if name in OPTIONAL:
                continue
            lacking = {k: v for k, v in message.items() if k != name}
            found += _both(f"{kind}.{name} missing", lacking, "invalid", field)
            found += _both(f"{kind}.{name} null", {**message, name: None}, "invalid", field)
    found += _both("an unknown type", {"type": "launch"}, "invalid", "type")
    found += _both("a type in capitals", {**PING, "type": "PING"}, "invalid", "type")
    return found


def _values() -> list[Vector]:
    cases: list[tuple[str, Mapping[str, Any], str]] = [
        ("hello, empty client name", {**HELLO, "client": {"name": ""}}, "client.name"),
        ("hello, client without a name", {**HELLO, "client": {}}, "client.name"),
        ("hello, long client name", {**HELLO, "client": {"name": "x" * 65}}, "client.name"),
        ("hello, protocol of one number", {**HELLO, "protocol": [1]}, "protocol"),
        ("hello, no tools", {**HELLO, "tools": []}, "tools"),
        ("hello, a tool that is a string", {**HELLO, "tools": ["steer"]}, "tools[0]"),
        ("hello, 65 tools", {**HELLO, "tools": [{"name": "f"}] * 65}, "tools"),
        ("hello, hz 0", {**HELLO, "hz": 0}, "hz"),
        ("hello, hz negative", {**HELLO, "hz": -10.0}, "hz"),
        ("hello, hz as text", {**HELLO, "hz": "10"}, "hz"),
        ("hello, hz too large", {**HELLO, "hz": 10_001}, "hz"),
        ("hello, ttl_ms negative", {**HELLO, "ttl_ms": -1}, "ttl_ms"),
        ("hello, ttl_ms too large", {**HELLO, "ttl_ms": 1.1e9}, "ttl_ms"),
        ("hello, unknown pacing", {**HELLO, "pacing": "none"}, "pacing"),
        ("hello, unknown on_miss", {**HELLO, "on_miss": "stop"}, "on_miss"),
        ("hello, safe call without a name", {**HELLO, "safe_call": {"arguments": {}}}, "safe_call.name"),
        (
            "hello, safe call with a list of arguments",
            {**HELLO, "safe_call": {"name": "f", "arguments": []}},
            "safe_call.arguments",
        ),
        ("hello, short token", {**HELLO, "resume": "short"}, "resume"),
        ("hello, t_client_ns with a fraction", {**HELLO, "t_client_ns": 1.5}, "t_client_ns"),
        ("hello, t_client_ns negative", {**HELLO, "t_client_ns": -1}, "t_client_ns"),
        ("observe, seq true", {**SEEN, "seq": True}, "seq"),
        ("observe, seq negative", {**SEEN, "seq": -1}, "seq"),
        ("observe, seq 2^53", {**SEEN, "seq": 1 << 53}, "seq"),
        ("observe, t_ns 2^63", {**SEEN, "t_ns": 1 << 63}, "t_ns"),
        ("observe, nothing to see", OBSERVE, "text"),
        ("observe, text a number", {**OBSERVE, "text": 1}, "text"),
        ("observe, data a list", {**OBSERVE, "data": [1]}, "data"),
        ("call, unknown status", {**SAFE, "status": "stop"}, "status"),
        ("call, confidence above 1", {**SAFE, "confidence": 1.5}, "confidence"),
        ("call, call a string", {**SAFE, "call": "steer(10)"}, "call"),
        ("call, timing negative", {**SAFE, "timing": {"age_ms": -1}}, "timing.age_ms"),
        ("executed, unknown outcome", {**EXECUTED, "outcome": "maybe"}, "outcome"),
        ("reset, negative seconds", {**RESET, "ended": {"seconds": -1}}, "ended.seconds"),
        ("reset, success as a number", {**RESET, "ended": {"success": 1}}, "ended.success"),
        ("ping, id with a fraction", {**PING, "id": 0.5}, "id"),
        ("error, retryable as a number", {**ERROR, "retryable": 1}, "retryable"),
        ("bye, long reason", {"type": "bye", "reason": "x" * 1025}, "reason"),
    ]
    found = [v for name, header, field in cases for v in _both(name, header, "invalid", field)]
    other = {"type": "hello", "protocol": [2, 0], "who": "a hello that 1.0 cannot read"}
    return [*found, *_both("hello of another major version, with other fields", other, "version", "protocol")]


def _arrays() -> list[Vector]:
    data = bytes(8)

    def case(what: str, field: str, *buffers: bytes, **change: Any) -> list[Vector]:
        return _both(what, {**OBSERVE, "text": "x", "arrays": [{**ARRAY, **change}]}, "invalid", field, *buffers)

    two = {**OBSERVE, "arrays": [ARRAY, {**ARRAY, "name": "b"}]}
    text: Vector = copy.deepcopy({**OBSERVE, "arrays": [{"name": "a", "dtype": "f4", "shape": [2]}]})
    bad = {
        "characters": "AAAA*AAAAAA=",
        "no padding": "AAAAAAAAAAA",
        "a line break": "AAAA\nAAAAAAA=",
        "a number": 1,
        "null": None,
    }
    found = [
        *case("an array too short", "arrays[0]", data[:7]),
        *case("an array too long", "arrays[0]", bytes(9)),
        *case("an array of an unknown dtype", "arrays[0].dtype", data, dtype="c8"),
        *case("an array with byte order in its dtype", "arrays[0].dtype", data, dtype="<f4"),
        *case("a negative dimension", "arrays[0].shape[0]", data, shape=[-2]),
        *case("a dimension that is none", "arrays[0].shape[0]", data, shape=["2"]),
        *case("nine dimensions", "arrays[0].shape", data, shape=[1] * 9),
        *case("dimensions of 2^240 items", "arrays[0]", data, shape=[1 << 30] * 8),
        *case("an array without a name", "arrays[0].name", data, name=""),
        *case("part 0, the header", "arrays[0].part", data, part=0),
        *case("a part beyond the last", "arrays[0].part", data, part=2),
        *case("a negative part", "arrays[0].part", data, part=-1),
        *case("a part that is true", "arrays[0].part", data, part=True),
        *case("a part that is absent", "arrays[0].part", data, part=None),
        *_both("a part used twice", two, "invalid", "arrays[1].part", data),
        *_both("arrays that are no maps", {**SEEN, "arrays": [1]}, "invalid", "arrays"),
        *_both("arrays that are a map", {**SEEN, "arrays": {"a": 1}}, "invalid", "arrays"),
        _parts("a part of no array", [msgpack.packb(SEEN).hex(), "00"], "malformed"),
        _parts("a part beside a message without arrays", [msgpack.packb(PING).hex(), "00"], "malformed"),
    ]
    for name, value in bad.items():
        text["arrays"][0]["base64"] = value
        found.append(_text(f"base64: {name}", json.dumps(text), "invalid", "arrays[0].base64"))
    text["arrays"][0]["base64"] = "AAAA"
    return [*found, _text("base64 of another size", json.dumps(text), "invalid", "arrays[0]")]


def _msgpack() -> list[Vector]:
    ping = msgpack.packb(PING).hex()
    head = "82a474797065a470696e67"  # a map of two: type, ping, and what follows
    return [
        _parts("no parts", [], "malformed"),
        _parts("an empty part", [""], "malformed"),
        _parts("trailing bytes", [ping + "00"], "malformed"),
        _parts("two maps", [ping + ping], "malformed"),
        _parts("truncated", [ping[:-2]], "malformed"),
        _parts("the reserved byte", ["c1"], "malformed"),
        _parts("a list", ["93010203"], "malformed"),
        _parts("a string", ["a470696e67"], "malformed"),
        _parts("an integer key", [head + "0101"], "malformed"),
        _parts("a binary key", [head + "c4016101"], "malformed"),
        _parts("a binary value", [head + "a178c40101"], "malformed"),
        _parts("an empty binary value", [head + "a178c400"], "malformed", "x"),
        _parts("an extension", [head + "a178d40501"], "malformed"),
        _parts("a timestamp", [head + "a178d6ff00000001"], "malformed"),
        _parts("bad UTF-8", [head + "a178a2c328"], "malformed"),
        _parts("a surrogate as UTF-8", [head + "a178a3eda080"], "malformed"),
        _parts("a length beyond the message", [head + "a178dbffffffff"], "malformed"),
        _parts("a list length beyond the message", [head + "a178ddffffffff"], "too_large"),
        _parts("NaN", [head + "a26964cb7ff8000000000000"], "invalid", "id"),
        _parts("infinity in 32 bits", [head + "a26964ca7f800000"], "invalid", "id"),
    ]


def _json() -> list[Vector]:
    return [
        _text("empty (json)", "", "malformed"),
        _text("no JSON", "hello", "malformed"),
        _text("a list (json)", "[1,2]", "malformed"),
        _text("a string (json)", '"ping"', "malformed"),
        _text("null (json)", "null", "malformed"),
        _text("truncated (json)", '{"type":"ping","id":1,"t_ns":', "malformed"),
        _text("two objects (json)", '{"type":"bye"}{"type":"bye"}', "malformed"),
        _text("a comment (json)", '{"type":"bye"} // done', "malformed"),
        _text("single quotes (json)", "{'type':'bye'}", "malformed"),
        _text("a byte order mark (json)", '\ufeff{"type":"bye"}', "malformed"),
        _text("NaN (json)", '{"type":"ping","id":NaN,"t_ns":1}', "invalid", "id"),
        _text("Infinity (json)", '{"type":"observe","data":{"x":[-Infinity]}}', "invalid", "data.x[0]"),
        _text("a number beyond doubles (json)", '{"type":"ping","id":1e999,"t_ns":1}', "invalid", "id"),
        _text(
            "an integer beyond 64 bits (json)", '{"type":"ping","id":1,"t_ns":18446744073709551616}', "invalid", "t_ns"
        ),
        _text("an integer below 64 bits (json)", '{"type":"ping","id":-9223372036854775809,"t_ns":1}', "invalid", "id"),
        _text("a lone surrogate (json)", '{"type":"bye","reason":"\\ud800"}', "malformed", "reason"),
        _text("a lone surrogate in a key (json)", '{"type":"bye","x":{"\\udc00":1}}', "malformed", "x"),
    ]


def _large() -> list[Vector]:
    head = "82a474797065a3627965a178"  # {"type": "bye", "x": ...
    text = '{"type":"bye","x":'
    return [
        _parts("nesting of 17", [[[head, 1], ["91", 16], ["01", 1]]], "too_large", "x" + "[0]" * 15),
        _parts("nesting of 600", [[[head, 1], ["91", 600], ["c0", 1]]], "too_large", "x" + "[0]" * 15),
        _parts("nesting of 100000", [[[head, 1], ["91", 100_000], ["c0", 1]]], "too_large"),
        _parts("a string of 65537 bytes", [[[head, 1], ["db00010001", 1], ["78", 65_537]]], "too_large"),
        _parts("a list of 4097", [[[head, 1], ["dc1001", 1], ["c0", 4097]]], "too_large"),
        _parts("16385 items together", [[[head, 1], ["dc0800", 1], ["9801020304050607c0", 2048]]], "too_large"),
        _parts("nine parts", [msgpack.packb(SEEN).hex(), *["00"] * 8], "too_large"),
        _parts("a header of 2^20 + 1 bytes", [[["00", (1 << 20) + 1]]], "too_large"),
        _parts("parts of 2^20 + 1 bytes together", [msgpack.packb(SEEN).hex(), [["00", 1 << 20]]], "too_large"),
        _text("nesting of 17 (json)", [[text, 1], ["[", 16], ["]", 16], ["}", 1]], "too_large", "x" + "[0]" * 15),
        _text("nesting of 100000 (json)", [[text, 1], ["[", 100_000], ["]", 100_000], ["}", 1]], "too_large"),
        _text("a string of 65537 bytes (json)", [[text + '"', 1], ["x", 65_537], ['"}', 1]], "too_large", "x"),
        _text(
            "a string of 65538 bytes in 32769 characters (json)",
            [[text + '"', 1], ["é", 32_769], ['"}', 1]],
            "too_large",
            "x",
        ),
        _text("a list of 4097 (json)", [[text + "[", 1], ["0,", 4096], ["0]}", 1]], "too_large", "x"),
        _text("a text of 2^20 + 1 bytes", [["x", (1 << 20) + 1]], "too_large"),
        _text("a text of 2^20 + 2 bytes in fewer characters", [["é", (1 << 19) + 1]], "too_large"),
        _text("an integer of 100000 digits", [[text, 1], ["1", 100_000], ["}", 1]], "invalid", "x"),
    ]
