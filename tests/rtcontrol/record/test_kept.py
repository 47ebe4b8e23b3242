"""What a record keeps of a run, what it must not keep, and the rows that are made of it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cart import Flight, cart_agent, slow
from mcap.reader import make_reader

from rtcontrol.telemetry import report
from rtcontrol.telemetry.encoder import Pictures
from rtcontrol.telemetry.record_reader import read_record, rows
from rtcontrol.telemetry.recorder import Recorder

HEADER = {"hz": 16.0}

ROUND: dict[str, Any] = {}
ROUND["me"] = ROUND


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({1: {2}}, {"1": [2]}),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        (
            {"a": np.arange(3), "b": np.zeros((100, 100))},
            {"a": [0, 1, 2], "b": {"dtype": "float64", "shape": [100, 100]}},
        ),
        ({"a": b"ab", "b": bytes(5000)}, {"a": [97, 98], "b": {"dtype": "bytes", "shape": [5000]}}),
        ({"a": [float("nan")], "b": np.array([1.5, np.inf])}, {"a": ["nan"], "b": [1.5, "inf"]}),
        ([1], [1]),
        (ROUND, {"unreadable": "RecursionError: maximum recursion depth exceeded"}),
    ],
)
def test_what_a_world_shows_may_be_anything_and_stays_json(tmp_path: Path, data: Any, kept: Any) -> None:
    recorder = Recorder(tmp_path / "record.mcap", HEADER)
    recorder.write({"observation": "x", "k": 0, "data": data})
    recorder.write({"episode": {"detail": data}})
    recorder.write({"log": "after"})
    recorder.close()
    _, seen, ended, after = read_record(tmp_path / "record.mcap")
    assert after == {"log": "after"} and seen["observation"] == "x"
    for told in (seen["data"], ended["episode"].get("detail", ended["episode"])):
        if "unreadable" in kept:
            assert told["unreadable"].startswith("RecursionError")
        else:
            assert told == kept
    with (tmp_path / "record.mcap").open("rb") as file:
        for _, _, message in make_reader(file).iter_messages():
            json.loads(message.data, parse_constant=pytest.fail)


def test_a_call_that_its_client_did_not_carry_out_makes_no_row() -> None:
    made: list[dict[str, Any]] = [{"header": {"tools": [], "model": "m"}}]
    for k, status in enumerate([None, "executed", "expired", "refused", "failed"] * 200):
        made.append({"observation": str(k), "instruction": "go", "history": [], "k": k})
        made.append({"called": "f", "arguments": {}, "k": k, "why": "fresh"})
        made.append({"kind": "call", "k": k, "t_s": 0.0})
        made += [{"ack": k - 3, "status": "failed", "why": "safe"}] if k % 5 == 4 else []
        made += [] if status is None else [{"ack": k, "status": status, "why": "fresh"}]
    assert [int(row["observation"]) for row in rows(made)] == [k for k in range(1000) if k % 5 < 2]


def test_record_observations_no_keeps_neither_text_nor_data_nor_history(tmp_path: Path) -> None:
    agent = replace(cart_agent(), observe=lambda data: f"secret {data['x']}")
    decide = slow(0.03, lambda k: k in (5, 6))
    flight = Flight(tmp_path, decide, agent=agent, record_observations="no", duration_s=0.4).run()
    lines = flight.lines
    assert flight.ticks and not any({"observation", "data", "history"} & set(line) for line in lines)
    assert any("called" in line for line in lines) and any("evidence" in line for line in lines)
    kept = json.dumps([lines, report.of_record(flight.path)])
    assert "secret" not in kept and "push(force=" in kept
    assert not [*rows(lines)]
    shown = Flight(tmp_path / "yes", agent=agent, duration_s=0.1).run()
    assert "secret" in json.dumps(shown.lines), "what is looked for would be there"


def test_what_people_are_told_is_in_the_record(tmp_path: Path) -> None:
    flight = Flight(tmp_path)
    flight.loop.instruct("go to 1")
    flight.run()
    assert flight.said and [line["log"] for line in flight.lines if "log" in line] == flight.said


def test_pictures_are_drawn_at_their_rate_as_viewers_read_them(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record.mcap", HEADER)
    recorder.pictures = Pictures(lambda epoch, data: f"{epoch} {data['x']}".encode(), 10)
    for k in range(50):
        recorder._queue.append((k * 20_000_000, {"observation": "x", "k": k, "epoch": 2, "data": {"x": k}}))
    recorder.write({"observation": "x", "k": 50, "epoch": 2, "data": None})
    recorder.close()
    with (tmp_path / "record.mcap").open("rb") as file:
        found = [*make_reader(file).iter_messages(topics=["/picture"])]
    assert {schema.name for schema, _, _ in found if schema} == {"foxglove.CompressedImage"}
    shown = [json.loads(message.data) for _, _, message in found]
    assert [base64.b64decode(one["data"]).decode() for one in shown] == [f"2 {k}" for k in range(0, 50, 5)]
    assert shown[0]["timestamp"].keys() == {"sec", "nsec"} and shown[0]["format"] == "png"
