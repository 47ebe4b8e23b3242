"""Check the core of a client in another language against the conformance vectors. The client's driver answers each
line, and Python compares the answers. `"-"` stands for an empty part."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from rtcontrol_client.wire import decode_json, decode_msgpack
from tests.conformance import expand, load

Ask = Callable[[str], Any]


def parts(vector: dict[str, Any]) -> str:
    return " ".join(expand(part) or "-" for part in vector["msgpack"])


def valid(ask: Ask) -> None:
    """Check that valid messages are read and written again."""
    for vector in load("valid"):
        again = ask(f"again {parts(vector)}")
        assert isinstance(again, list), (vector["name"], again)
        written = [bytes.fromhex(part) for part in again]
        assert decode_msgpack(written) == decode_json(json.dumps(vector["json"])), vector["name"]
        if vector["canonical"]:
            header, wanted = msgpack.unpackb(written[0]), dict(vector["json"])
            if "arrays" in wanted:
                for entry in header["arrays"]:
                    entry["base64"] = None
                    del entry["part"]
                wanted["arrays"] = [{**entry, "base64": None} for entry in wanted["arrays"]]
            else:
                assert ask(f"decode {parts(vector)}")["message"] == wanted, vector["name"]
            assert header == wanted, vector["name"]


def invalid(ask: Ask) -> None:
    """Check that invalid messages are refused with the right code and field."""
    # The vectors include nlohmann/json#537 (a recursive msgpack reader overflowed its stack) and kriszyp/msgpackr#200
    # (headers of nested arrays caused endless allocation).
    tried = 0
    for vector in load("invalid"):
        if "msgpack" not in vector or vector.get("by") == "server":
            continue
        tried += 1
        answer = ask(f"decode {parts(vector)}")
        assert answer.get("code") == vector["code"], (vector["name"], answer)
        assert all(answer[key].endswith((".", ")")) for key in ("what", "remedy") if key in answer), answer
        if vector["code"] in ("invalid", "version") and vector["field"] is not None:
            assert answer["field"] == vector["field"], vector["name"]
    assert tried > 250


def clock(ask: Ask) -> None:
    """Check the measured offset of the server's clock after some exchanges."""
    for case in load("clock"):
        ask("clock")
        result = [ask("sample " + " ".join(map(str, sample))) for sample in case["samples"]][-1:]
        if case["offset_ns"] is None:
            assert result in ([], [None]), case["name"]
        else:
            for name in ("offset_ns", "rtt_ns"):
                assert result[0][name] == pytest.approx(case[name], abs=1), case["name"]


def phase(ask: Ask) -> None:
    """Check that observations are due just in time for a tick."""
    for case in load("phase"):
        ask(f"phase {case['period_ns']}")
        for number, step in enumerate(case["steps"]):
            if "ping" in step:
                ask("sample " + " ".join(map(str, step["ping"])))
            elif "observed" in step:
                ask(f"observed {step['observed']} {step['now_ns']}")
            elif "heard" in step:
                ask(f"heard {step['now_ns']} {msgpack.packb(step['heard']).hex()}")
            else:
                due_ns = ask(f"next {step['next']} {step['release_ns']}")
                assert due_ns == step["due_ns"], (case["name"], number)


def age(ask: Ask) -> None:
    """Check that a call older than its time-to-live has expired."""
    for case in load("ttl")["age"]:
        stamp_ns = -1 if case["t_obs_ns"] is None else case["t_obs_ns"]
        assert ask(f"age {stamp_ns} {case['ttl_ms']} {case['now_ns']}") == case["verdict"], case["name"]


def connect(ask: Ask) -> None:
    """Check how answers of GET /connect are read; a client without keys reports no keys."""
    for vector in load("connect"):
        result = ask(f"connect {msgpack.packb(vector).hex()}")
        keyless = "server_key" not in result
        if vector["keys"] and keyless:
            continue
        assert (result["address"] or None) == vector["address"], (vector["name"], result)
        assert keyless or result["server_key"] == (vector.get("server_key") or ""), (vector["name"], result)
        assert result["retry_s"] == vector.get("retry_s", 0), vector["name"]
