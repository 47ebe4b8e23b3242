"""The C++ headers against the conformance vectors, built by g++ and clang++ with each sanitizer; the rule as C99."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rtcontrol_client.wire import decode_json, decode_msgpack
from tests.bridges.cpp.build import DRIVER, INCLUDE, WARNINGS, Driver, run
from tests.conformance import expand, load


def parts(vector: dict[str, Any]) -> str:
    """For the driver: an empty part is a dash."""
    return " ".join(expand(part) or "-" for part in vector["msgpack"])


def test_valid_messages_are_read_and_written_again(pure: Driver) -> None:
    for vector in load("valid"):
        again = pure.ask(f"again {parts(vector)}")
        assert isinstance(again, list), (vector["name"], again)
        written = [bytes.fromhex(p) for p in again]
        assert decode_msgpack(written) == decode_json(json.dumps(vector["json"])), vector["name"]
        if vector["canonical"]:
            header, wanted = msgpack.unpackb(written[0]), dict(vector["json"])
            for entry in header.get("arrays", []):
                entry["base64"] = None
                del entry["part"]
            if "arrays" in wanted:
                wanted["arrays"] = [{**entry, "base64": None} for entry in wanted["arrays"]]
            assert header == wanted, vector["name"]


def test_values_that_are_read_are_those_of_the_json(pure: Driver) -> None:
    for vector in load("valid"):
        if vector["canonical"] and "arrays" not in vector["json"]:
            assert pure.ask(f"decode {parts(vector)}")["message"] == vector["json"], vector["name"]


def test_invalid_messages_are_refused_with_code_field_and_remedy(pure: Driver) -> None:
    # nlohmann/json#537: a recursive reader of msgpack overflowed its stack. kriszyp/msgpackr#200: headers of nested
    # arrays made it allocate without end. Both are among these, under the address sanitizer.
    tried = 0
    for vector in load("invalid"):
        if "msgpack" not in vector or vector.get("by") == "server":
            continue
        tried += 1
        answer = pure.ask(f"decode {parts(vector)}")
        assert answer.get("code") == vector["code"], (vector["name"], answer)
        assert answer["what"].endswith(".") and answer["remedy"].endswith((".", ")")), answer
        if vector["code"] in ("invalid", "version") and vector["field"] is not None:
            assert answer["field"] == vector["field"], vector["name"]
    assert tried > 250


def test_clock_offsets(pure: Driver) -> None:
    for case in load("clock"):
        pure.ask("clock")
        found = None
        for sample in case["samples"]:
            found = pure.ask("sample " + " ".join(map(str, sample)))
        if case["offset_ns"] is None:
            assert found is None, case["name"]
        else:
            assert found["offset_ns"] == pytest.approx(case["offset_ns"], abs=1), case["name"]
            assert found["rtt_ns"] == pytest.approx(case["rtt_ns"], abs=1), case["name"]


def test_looks_are_due_just_in_time(pure: Driver) -> None:
    asked = 0
    for case in load("phase"):
        pure.ask(f"phase {case['period_ns']}")
        for number, step in enumerate(case["steps"]):
            if "ping" in step:
                pure.ask("ping " + " ".join(map(str, step["ping"])))
            elif "observed" in step:
                pure.ask(f"observed {step['observed']} {step['now_ns']}")
            elif "heard" in step:
                call = step["heard"]
                age_ms, release_ns = call.get("timing", {}).get("age_ms"), call.get("release_ns")
                if call["status"] == "fresh" and age_ms is not None and release_ns is not None:
                    age_ns, sent_ns = round(age_ms * 1e6), call["t_server_ns"]
                    pure.ask(f"heard {call['seq_obs']} {release_ns} {sent_ns} {age_ns} {step['now_ns']}")
            else:
                due_ns = pure.ask(f"next {step['next']} {step['release_ns']}")
                assert due_ns == step["due_ns"], (case["name"], number)
                asked += 1
    assert asked > 50


# The rule alone, as a microcontroller has it.


@pytest.fixture(scope="module", params=["gcc", "clang"])
def rule(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rule") / "rule"
    flags = ("-std=c99", *WARNINGS, "-O2", "-fsanitize=undefined", "-fno-sanitize-recover=all", f"-I{INCLUDE}")
    done = run(request.param, *flags, DRIVER / "rule.c", "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def ns(ms: float) -> int:
    return int(ms * 1e6)


def test_rule_of_c99_gives_every_verdict(rule: Path) -> None:
    cases = load("ttl")["age"]
    lines = []
    for case in cases:
        stamp_ns = -1 if case["t_obs_ns"] is None else case["t_obs_ns"]
        lines.append(f"{stamp_ns} {ns(case['ttl_ms'])} {case['now_ns']}")
    answers = subprocess.run([rule], input="\n".join(lines), capture_output=True, text=True, check=True).stdout.split()
    assert answers == [str(int(case["verdict"] == "expire")) for case in cases]
