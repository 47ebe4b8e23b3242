"""Run the Godot client in the engine against the conformance vectors and the behaviour table; Python compares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bridges.behaviour import Seen, cases, check, options_of
from tests.bridges.godot.web import MISSING, Engine
from tests.conformance import expand, load

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

# Messages to the client, which need not read its own. Vectors named "big..." are left out: the engine reads numbers as
# doubles, in which instants beyond 2^53 ns are inexact.
HEARD = {"welcome", "call", "instruct", "error", "ping", "pong", "bye", "call_many"}
# The vectors have a number beyond doubles only in a ping.
CALL = '{"type":"call","session":"q7Jr0c2yT5mX9vKd_f3A","tick":9,"epoch":2,"status":"fresh","t_obs_ns":1,"ttl_ms":0,'
CALL += '"deadline_ns":0,"t_server_ns":0,"call":{"name":"go","arguments":%s}}'
OWN = [
    {"name": f"beyond doubles: {arguments}", "json": CALL % arguments}
    for arguments in ('{"way":"left","more":1e999}', '{"way":"left","more":[{"x":-1e999}]}')
]
# Messages to a crowd of anna and bert, in which one part is wrong or belongs to no member.
FRESH = '"tick":%d,"epoch":%d,"status":"fresh","t_obs_ns":1,"ttl_ms":0,"call":{"name":"go","arguments":{"way":"left"}}}'
MANY = (
    '{"type":"call_many","session":"q7Jr0c2yT5mX9vKd","t_server_ns":1,"calls":[%s,{"id":"bert",' + FRESH % (2, 1) + "]}"
)
PARTS = [
    {"name": f"part: {part}", "json": MANY % part}
    for part in (
        "7",
        "null",
        '{"id":"anna"}',
        '{"id":"",' + FRESH % (1, 0),
        '{"id":"anna",' + FRESH.replace('"fresh"', '"done"') % (1, 0),
        '{"id":"carl",' + FRESH % (1, 0),
        '{"id":"anna",' + FRESH % (1, 7),
        '{"id":"anna",' + FRESH.replace('"go"', '"fly"') % (1, 0),
    )
]
CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")


def heard(name: str) -> list[dict[str, Any]]:
    return [v for v in load(name) if v.get("by") != "server"]


def given_cases() -> dict[str, Any]:
    """Return all cases for the engine, by kind."""
    return {
        "valid": [
            {"name": v["name"], "text": json.dumps(v["json"], ensure_ascii=False)}
            for v in [*heard("valid"), *load("crowd")["valid"]]
            if v["from"] == "server"
        ],
        "invalid": [{"name": v["name"], "text": expand(v["json"])} for v in [*heard("invalid"), *OWN] if "json" in v],
        "crowd": [
            {"name": v["name"], "text": expand(v["json"])} for v in [*load("crowd")["invalid"], *PARTS] if "json" in v
        ],
        "phase": load("phase"),
        "age": load("ttl")["age"],
    }


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return the engine's result for every case, by kind."""
    folder = tmp_path_factory.mktemp("vectors")
    engine = Engine(folder, "vectors.gd", cases=given_cases())
    try:
        engine.until(lambda line: line["of"] == "end", "at the end", 120.0)
        assert engine.faults() == []
    finally:
        engine.end()
    result: dict[str, list[dict[str, Any]]] = {}
    for line in engine.events:
        # A Godot string cannot hold NUL, for which another character is used.
        result.setdefault(line["of"], []).append(
            json.loads(json.dumps(line, ensure_ascii=False).replace("\ufffd", " "))
        )
    return result


def same(result: Any, wanted: Any) -> bool:
    """Return whether results are equal, except for digits that Godot's JSON writer drops and control characters, which
    become spaces."""
    if isinstance(wanted, dict) and isinstance(result, dict):
        return result.keys() == wanted.keys() and all(same(result[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list) and isinstance(result, list):
        return len(result) == len(wanted) and all(map(same, result, wanted))
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return bool(result == pytest.approx(wanted, rel=1e-5))
    return bool(result == (CONTROL.sub(" ", wanted) if isinstance(wanted, str) else wanted))


def test_valid_messages_are_read(reported: dict[str, list[dict[str, Any]]]) -> None:
    given = {v["name"]: v["json"] for v in [*heard("valid"), *load("crowd")["valid"]]}
    assert len(reported["valid"]) > 20
    for line in reported["valid"]:
        if line["name"].startswith("big"):
            continue
        wanted = {k: v for k, v in given[line["name"]].items() if v is not None}
        if wanted["type"] == "call_many":
            assert line["read"].pop("faults") == 0
        assert same(line["read"], wanted if wanted["type"] in HEARD else {}), (line["name"], line["read"])


def test_invalid_message_executes_nothing_and_the_session_continues(
    reported: dict[str, list[dict[str, Any]]],
) -> None:
    given = {v["name"]: expand(v["json"]) for v in [*heard("invalid"), *OWN] if "json" in v}
    live, waiting = 3, 4
    assert len(reported["invalid"]) > 200
    for line in reported["invalid"]:
        # A bye that is too long may still be obeyed, since the safe call is never wrong.
        allowed = [([], live), (["stop"], waiting)] if '"bye"' in given[line["name"]] else [([], live)]
        assert (line["done"], line["state"]) in allowed, line


def test_crowd_skips_invalid_parts_and_messages(reported: dict[str, list[dict[str, Any]]]) -> None:
    assert len(reported["crowd"]) > 30
    for line in reported["crowd"]:
        part = line["name"].startswith("part")
        unfit = ["stop"] if "fly" in line["name"] else []
        assert (line["done"], line["state"]) == ([unfit, ["left"] if part else []], 3), line
        assert line["errors"] == 0 or not part, line
        assert (line["ignored"] != {}) == (part and not unfit), line


def test_age_of_calls_matches_the_vectors(reported: dict[str, list[dict[str, Any]]]) -> None:
    wanted = {case["name"]: case["verdict"] for case in load("ttl")["age"] if not case["name"].startswith("big")}
    assert len(wanted) > 10
    assert {line["name"]: line["verdict"] for line in reported["age"] if line["name"] in wanted} == wanted


def test_observation_instants_match_the_vectors(reported: dict[str, list[dict[str, Any]]]) -> None:
    wanted = {
        (case["name"], i): -1 if step["due_ns"] is None else step["due_ns"]
        for case in load("phase")
        for i, step in enumerate(case["steps"])
        if "next" in step
    }
    assert len(wanted) > 50
    assert {(line["name"], line["step"]): line["due_ns"] for line in reported["phase"]} == wanted


# The behaviour table, with the driver's clock and sockets.


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    one = Engine(tmp_path_factory.mktemp("behaviour"), "behaviour.gd")
    yield one
    assert one.faults() == []
    one.end()


class Driven:
    """The Godot client in one case of the table."""

    def __init__(self, engine: Engine, options: dict[str, Any]) -> None:
        self._engine = engine
        self.step({"options": options})

    def step(self, step: dict[str, Any]) -> Seen:
        self._engine.say(json.dumps(step))
        seen = self._engine.event("seen")
        return Seen(**{key: value for key, value in seen.items() if key != "event"})


@cases("gdscript")
def test_client_follows_the_behaviour_table(engine: Engine, case: dict[str, Any]) -> None:
    check(case, Driven(engine, options_of(case)))
