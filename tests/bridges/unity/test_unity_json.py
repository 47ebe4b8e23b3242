"""The C# client's JSON: the conformance vectors' other encoding, and what only JSON has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtcontrol_client.wire import decode_json, encode_json
from tests.bridges.unity.mono import Driver
from tests.conformance import expand, load


def read(core: Driver, text: str | bytes) -> Any:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return core.ask(f"read {data.hex()}".rstrip())


def written(core: Driver, command: str) -> str:
    answer = core.ask(command)
    assert isinstance(answer, str), answer
    return bytes.fromhex(answer).decode()


@pytest.mark.parametrize("ascii_only", [True, False])
def test_valid_messages_are_read_and_written_again(core: Driver, ascii_only: bool) -> None:
    for vector in load("valid"):
        text = json.dumps(vector["json"], ensure_ascii=ascii_only)
        again = written(core, f"write {text.encode().hex()}")
        assert decode_json(again) == decode_json(text), vector["name"]
        if vector["canonical"]:
            assert json.loads(again) == vector["json"], vector["name"]
        # And from the other encoding.
        crossed = written(core, " ".join(["cross", *vector["msgpack"]]))
        assert decode_json(crossed) == decode_json(text), vector["name"]


def test_messages_of_the_server_are_read_as_it_writes_them(core: Driver) -> None:
    for vector in load("valid"):
        if vector["from"] == "server":
            text = encode_json(decode_json(json.dumps(vector["json"])))
            assert decode_json(written(core, f"write {text.encode().hex()}")) == decode_json(text), vector["name"]


def test_invalid_messages_are_refused_with_code_and_field(core: Driver) -> None:
    tried = 0
    for vector in load("invalid"):
        if "json" not in vector or vector.get("by") == "server":
            continue
        tried += 1
        answer = read(core, expand(vector["json"]))
        assert answer.get("code") == vector["code"], (vector["name"], answer)
        if vector["code"] in ("invalid", "version") and vector["field"] is not None:
            assert answer["field"] == vector["field"], vector["name"]
    assert tried > 200


def bye(value: str) -> str:
    """A message that is one, but for this value of an unknown field."""
    return '{"type":"bye","x":' + value + "}"


def observe(fields: str) -> str:
    return '{"type":"observe","session":"q7Jr0c2yT5mX9vKd","seq":1,"epoch":0,"t_ns":1,' + fields + "}"


MALFORMED = [
    *("01", "-", "+1", ".5", "1.", "1e", "1e+", "0x1", "1_0", "tru", "nul", "[1,]", "[,1]", "[1 2]", "{,}", '{"a"}'),
    *('{"a":}', '{"a":1,}', "{a:1}", '"a', '"\\x41"', '"\\u12"', '"\\u12g4"', '"\\ud800x"', '"\\udc00"'),
    *('"\\ud800\\ud800"', '"\t"', '"a\nb"', '"\x00"', "'a'", "[", "{", '"\\', '"\\u', '"\\ud800\\', "[}", "{]"),
    *("\x0c1", "\ufeff1"),
]


@pytest.mark.parametrize("value", MALFORMED)
def test_what_is_no_json_is_malformed(core: Driver, value: str) -> None:
    assert read(core, bye(value))["code"] == "malformed"


@pytest.mark.parametrize("data", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_bytes_that_are_no_utf8_are_malformed(core: Driver, data: bytes) -> None:
    assert read(core, b'{"type":"bye","x":"' + data + b'"}')["code"] == "malformed"


def test_key_twice_is_malformed_wherever_it_is(core: Driver) -> None:
    for text in ('{"type":"bye","reason":"a","reason":"b"}', bye('[{"a":1,"\\u0061":1}]')):
        assert read(core, text)["code"] == "malformed"


NUMBERS = "0 -0 1 -9223372036854775808 9223372036854775807 18446744073709551615 0.1 1e2 1E-2 -0.0 5e-324 1e22"
NUMBERS += " 1.7976931348623157e308 9007199254740993 0.30000000000000004 123456789.125"


@pytest.mark.parametrize("value", NUMBERS.split())
def test_numbers_come_back_as_they_were(core: Driver, value: str) -> None:
    text = observe('"data":{"x":' + value + "}")
    again = json.loads(written(core, f"write {text.encode().hex()}"))["data"]["x"]
    assert again == json.loads(value), again


@pytest.mark.parametrize("text", ['"\\/\b\f\n\r\t', "\x01\x1f\x7f", "€ \U0001f600 \u2028", "", "a" * 70])
def test_strings_come_back_as_they_were(core: Driver, text: str) -> None:
    message = {"type": "bye", "reason": text}
    for ascii_only in (True, False):
        given = json.dumps(message, ensure_ascii=ascii_only)
        assert json.loads(written(core, f"write {given.encode().hex()}")) == message


def test_limits_are_those_of_the_protocol(core: Driver) -> None:
    many = "[" + ",".join("0" * 4095) + "]"
    for value in ('"' + "é" * 32768 + '"', "[" + ",".join("0" * 4096) + "]", "[" * 15 + "]" * 15):
        assert read(core, bye(value))["message"] == {"type": "bye"}
    for value in ('"' + "\\u00e9" * 32769 + '"', f"[{many},{many},{many},{many}]", "[" * 16 + "]" * 16):
        assert read(core, bye(value))["code"] == "too_large"
    # An array's bytes have the message's limit alone.
    data = '"base64":"' + "A" * 800_000 + '"'
    array = '"arrays":[{"name":"a","dtype":"u1","shape":[600000],' + data + "}]"
    assert len(read(core, observe(array))["message"]["arrays"][0]["data"]) == 1_200_000
    assert read(core, bye("{" + data + "}"))["code"] == "too_large"


def test_what_is_in_force(core: Driver) -> None:
    for sequence in load("ttl")["sequences"]:
        own = {key: sequence[key] for key in ("safe_call", "safe_calls") if key in sequence}
        core.ask(f"rule_json {sequence['epoch']} {json.dumps(own).encode().hex()}")
        for number, step in enumerate(sequence["steps"]):
            if "message" in step:
                found = core.ask(f"receive_json {step['now_ns']} {json.dumps(step['message']).encode().hex()}")
            elif "reset" in step:
                found = core.ask(f"reset {step['now_ns']} {step['reset']}")
            elif "welcome" in step:
                found = core.ask(f"welcome {step['welcome']}")
            else:
                found = core.ask(f"look {step['now_ns']}")
            found["execute"] = found["execute"] if "minor" in sequence else next(iter(found["execute"]), None)
            wanted = {key: step[key] for key in ("execute", "in_force", "expires_ns", "expired")}
            assert {key: found[key] for key in wanted} == wanted, (sequence["name"], number)
