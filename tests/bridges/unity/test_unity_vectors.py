"""The C# core against the conformance vectors; it answers line by line, Python compares."""

from __future__ import annotations

import json

import msgpack
import pytest

from rtcontrol.bridges.wire import decode_json, decode_msgpack
from tests.bridges.unity.mono import Driver
from tests.conformance import expand, load


def test_valid_messages_are_read_and_written_again(core: Driver) -> None:
    for vector in load("valid"):
        command = " ".join(["again", *vector["msgpack"]])
        again = core.ask(command)
        assert isinstance(again, list), (vector["name"], again)
        parts = [bytes.fromhex(p) for p in again]
        given = decode_json(json.dumps(vector["json"]))
        assert decode_msgpack(parts) == given, vector["name"]
        if vector["canonical"]:
            header, wanted = msgpack.unpackb(parts[0]), dict(vector["json"])
            for entry in header.get("arrays", []):
                entry["base64"] = None
                del entry["part"]
            if "arrays" in wanted:
                wanted["arrays"] = [{**entry, "base64": None} for entry in wanted["arrays"]]
            assert header == wanted, vector["name"]


def test_values_that_are_read_are_those_of_the_json(core: Driver) -> None:
    for vector in load("valid"):
        if vector["canonical"] and "arrays" not in vector["json"]:
            message = core.ask(" ".join(["decode", *vector["msgpack"]]))["message"]
            assert message == vector["json"], vector["name"]


def test_invalid_messages_are_refused_with_code_and_field(core: Driver) -> None:
    tried = 0
    for vector in load("invalid"):
        if "msgpack" not in vector or vector.get("by") == "server":
            continue
        tried += 1
        answer = core.ask(" ".join(["decode", *map(expand, vector["msgpack"])]))
        assert answer.get("code") == vector["code"], (vector["name"], answer)
        if vector["code"] in ("invalid", "version") and vector["field"] is not None:
            assert answer["field"] == vector["field"], vector["name"]
    assert tried > 200


def test_age_of_calls(core: Driver) -> None:
    for case in load("ttl")["age"]:
        stamp = -1 if case["t_obs_ns"] is None else case["t_obs_ns"]
        assert core.ask(f"age {stamp} {case['ttl_ms']} {case['now_ns']}") == case["verdict"], case["name"]


def test_what_is_in_force(core: Driver) -> None:
    for sequence in load("ttl")["sequences"]:
        own = {key: sequence[key] for key in ("safe_call", "safe_calls") if key in sequence}
        core.ask(f"rule {sequence['epoch']} {msgpack.packb(own).hex()}")
        for number, step in enumerate(sequence["steps"]):
            if "message" in step:
                found = core.ask(f"receive {step['now_ns']} {msgpack.packb(step['message']).hex()}")
            elif "reset" in step:
                found = core.ask(f"reset {step['now_ns']} {step['reset']}")
            elif "welcome" in step:
                found = core.ask(f"welcome {step['welcome']}")
            else:
                assert len(step) == 5, f"unknown: {set(step)}"
                found = core.ask(f"look {step['now_ns']}")
            found["execute"] = found["execute"] if "minor" in sequence else next(iter(found["execute"]), None)
            wanted = {key: step[key] for key in ("execute", "in_force", "expires_ns", "expired")}
            assert {key: found[key] for key in wanted} == wanted, (sequence["name"], number)


def test_clock_offsets(core: Driver) -> None:
    for case in load("clock"):
        core.ask("clock")
        found = None
        for sample in case["samples"]:
            found = core.ask("sample " + " ".join(map(str, sample)))
        if case["offset_ns"] is None:
            assert found is None, case["name"]
        else:
            assert found["offset_ns"] == pytest.approx(case["offset_ns"], abs=1), case["name"]
            assert found["rtt_ns"] == pytest.approx(case["rtt_ns"], abs=1), case["name"]


def test_attributes_become_the_schema_of_the_hello(core: Driver) -> None:
    told = core.ask("tools")
    tools = {t["function"]["name"]: t["function"] for t in told["tools"]}
    assert told["safe"] == "stop"
    # By the methods' names, those of base classes last.
    assert [t["function"]["name"] for t in told["tools"]] == ["dash", "say", "turn", "zoom", "stop"]
    assert tools["dash"] == {
        "name": "dash",
        "description": "Dash.",
        "parameters": {
            "type": "object",
            "properties": {
                "direction": {"type": "string", "enum": ["left", "far_right"]},
                "power": {"type": "integer", "minimum": 0, "maximum": 10, "description": "How hard."},
                "and_jump": {"type": "boolean"},
            },
            "required": ["direction", "power"],
        },
    }
    assert tools["turn"]["parameters"]["properties"]["top_angle"] == {
        "type": "number",
        "minimum": -1,
        "maximum": 1,
        "multipleOf": 0.25,
    }
    assert tools["say"]["parameters"]["properties"]["word"] == {"type": "string", "enum": ["hello", "bye"]}
    assert tools["say"]["parameters"]["required"] == ["word"]
