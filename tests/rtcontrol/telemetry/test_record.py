"""Tests that a record survives failures of disks and processes, and that the report agrees with the record."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from cart import Flight, cart_agent, good, report_of, slow
from commands import wait_for_ticks
from mcap.reader import make_reader
from synthetic import kept

from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Decision
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import recorder as recorders
from rtcontrol.telemetry import report
from rtcontrol.telemetry.events import CHANNELS, topic_of
from rtcontrol.telemetry.record_reader import read_record, read_timed_events, training_rows
from rtcontrol.telemetry.recorder import Recorder
from tests.helpers.disks import files_of
from tests.helpers.processes import Program, until


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(kept(tmp_path / "record.mcap"), {"hz": 16.0})


def logged(recorder: Recorder) -> list[str]:
    recorder.close()
    return [event["log"] for event in read_record(recorder.file.path) if "log" in event]


@contextmanager
def full_disk(recorder: Recorder) -> Iterator[None]:
    recorder.file.start_writing()
    until(lambda: recorder.file.fd >= 0)
    room, full = os.dup(recorder.file.fd), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder.file.fd)
    yield
    os.dup2(room, recorder.file.fd)


def test_full_disk_does_not_stop_the_loop(tmp_path: Path) -> None:
    def decide(request: DecisionRequest) -> Decision:
        assert request.tick != 3, "fails"
        return good(request)

    flight = Flight(tmp_path, decide, clock="lockstep")
    recorder, messages = flight.recorder, list[str]()
    recorder._notify = messages.append
    with full_disk(recorder):
        flight.loop.run()
        until(lambda: flight.loop.account.releases == 25)
        until(lambda: recorder.lost_events >= 25 and messages)  # it counts before it says so
        assert len(messages) == 1 and "No space left" in messages[0]
    until(lambda: recorder.lost_events == 0)
    recorder.close()
    assert flight.causes["decide"] >= 1
    assert report_of(flight.path)["releases"] == 25


@pytest.mark.parametrize("room", [20, 40_000])
def test_write_cut_short_continues_where_it_stopped(recorder: Recorder, room: int) -> None:
    events = [{"log": f"line {k}", "t_s": 0.0} for k in range(5000)]
    until(lambda: recorder.file.fd >= 0 and not recorder.file.unwritten)
    with files_of(recorder.file.path.stat().st_size + room):
        for event in events:
            recorder.write(event)
        until(lambda: recorder.file.error is not None)
        assert recorder.file.error == "File too large" and 1000 <= recorder.lost_events <= 5000
    recorder.write({"log": "the last"})
    recorder.close()
    assert recorder.lost_events == 0
    assert [*read_record(recorder.file.path)][1:] == [*events, {"log": "the last"}]


def test_events_that_a_full_disk_never_took_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "MAX_WAITING", 5)
    flight = Flight(tmp_path, clock="lockstep")
    with full_disk(flight.recorder):
        flight.run()
    assert flight.recorder.lost_events > 25
    result = report.build_report(flight.loop.account, "record.mcap", flight.recorder.lost_events)
    assert (result["releases"], result["record"]["lost_lines"]) == (25, flight.recorder.lost_events)
    assert result["latency_ms"]["p50"] is not None


def test_every_event_fits_its_schema_and_the_file_is_indexed(tmp_path: Path) -> None:
    flight = Flight(tmp_path, slow(0.05, lambda k: k in (5, 6, 15)))
    flight.loop.instruct("go to 1")
    flight.run()
    # Late decisions are in the figures too: leaving them out would flatter.
    result = report_of(flight.path)
    assert result["decide_ms"]["max"] >= 50 and result["releases"] == flight.loop.account.releases
    with flight.path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None
        assert {c.topic for c in summary.channels.values()} == set(CHANNELS)
        for schema, channel, message in reader.iter_messages():
            assert schema is not None and schema.encoding == "jsonschema"
            event, described = json.loads(message.data), json.loads(schema.data)
            assert topic_of(event) == channel.topic
            jsonschema.validate(event, described)
            assert set(event) <= set(described["properties"]), "every field is described"
        assert summary.statistics.message_count == len(flight.lines)


@pytest.mark.integration
def test_lockstep_run_that_outruns_its_recorder_loses_nothing(tmp_path: Path) -> None:
    recorder = Recorder(kept(tmp_path / "record.mcap"), {}, patient=True)
    for k in range(20_000):
        recorder.write({"log": str(k)})
    assert len(recorder._queue) <= 4 * recorders.BATCH + 1
    assert logged(recorder) == [str(k) for k in range(20_000)]


def test_disk_that_does_not_answer_blocks_no_writer(recorder: Recorder) -> None:
    # A pipe that is not read: a write to it blocks, as to a network disk that is gone.
    out, into = os.pipe()
    until(lambda: recorder.file.fd >= 0)
    os.dup2(into, recorder.file.fd)
    for k in range(5000):
        recorder.write({"log": f"{k} {random.random()}" * 10})
    until(lambda: recorder.file.unwritten > 0)
    recorder.write({"log": "more"})  # comes back
    os.close(into)
    threading.Thread(target=lambda: [None for _ in iter(partial(os.read, out, 65536), b"")], daemon=True).start()
    recorder.close()
    assert recorder.lost_events == 0


def test_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert report.write_report({"a": 1}, path) is None
    with files_of(5):
        assert report.write_report({"b": 2}, path) == "File too large"
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_report_of_an_ended_run_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert not report.is_complete(path)
    for ended_by, whole in (("killed", False), ("SIGTERM", True)):
        report.write_report({"ended_by": ended_by}, path)
        assert report.is_complete(path) == whole


@pytest.mark.parametrize("damage", [None, b"\x89MCAP1" * 99, b"hello", b""])
def test_damaged_or_foreign_file_is_refused_by_name(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "record.mcap"
    if damage is None:
        path = Flight(tmp_path, duration_s=0.1).run().path
        with path.open("rb") as file:
            summary = make_reader(file).get_summary()
        assert summary is not None
        chunk, data = summary.chunk_indexes[0], bytearray(path.read_bytes())
        data[chunk.chunk_start_offset + chunk.chunk_length - 8] ^= 0xFF
        damage = bytes(data)
    path.write_bytes(damage)
    with pytest.raises(UserError, match=r"record\.mcap"):
        report_of(path)


ROUND: dict[str, Any] = {}
ROUND["me"] = ROUND
LARGE = {"dtype": "float64", "shape": [100, 100]}


@pytest.mark.parametrize(
    ("data", "json_data"),
    [
        ({1: {2}, (1, 2): 3}, {"1": [2], "(1, 2)": 3}),
        ({"a": np.arange(3), "b": np.zeros((100, 100))}, {"a": [0, 1, 2], "b": LARGE}),
        ({"a": b"ab", "b": bytes(5000)}, {"a": [97, 98], "b": {"dtype": "bytes", "shape": [5000]}}),
        ({"a": [float("nan")], "b": np.array([1.5, np.inf])}, {"a": ["nan"], "b": [1.5, "inf"]}),
        (ROUND, {"unreadable": "RecursionError: maximum recursion depth exceeded"}),
    ],
)
def test_any_data_of_a_world_becomes_json(recorder: Recorder, data: Any, json_data: Any) -> None:
    for event in ({"observation": "x", "k": 0, "data": data}, {"episode": {"detail": data}}, {"log": "after"}):
        recorder.write(event)
    recorder.close()
    _, seen, ended, after = read_record(recorder.file.path)
    assert after == {"log": "after"} and seen["observation"] == "x"
    for value in (seen["data"], ended["episode"].get("detail", ended["episode"])):
        assert str(value)[:30] == str(json_data)[:30] if data is ROUND else value == json_data
    with recorder.file.path.open("rb") as file:
        for _, _, message in make_reader(file).iter_messages():
            json.loads(message.data, parse_constant=pytest.fail)


def test_call_that_client_refused_makes_no_row() -> None:
    events: list[dict[str, Any]] = [{"header": {"tools": [], "model": "m"}}]
    for k, status in enumerate([None, "executed", "expired", "refused", "failed"] * 200):
        events.append({"observation": str(k), "instruction": "go", "history": [], "k": k})
        events.append({"called": "f", "arguments": {}, "k": k, "why": "fresh"})
        events.append({"kind": "call", "k": k, "t_s": 0.0})
        events += [{"ack": k - 3, "status": "failed", "why": "safe"}] if k % 5 == 4 else []
        events += [] if status is None else [{"ack": k, "status": status, "why": "fresh"}]
    assert [int(row["observation"]) for row in training_rows(events)] == [k for k in range(1000) if k % 5 < 2]


def test_record_observations_no_keeps_neither_text_nor_data(tmp_path: Path) -> None:
    agent = replace(cart_agent(), observe=lambda data: f"secret {data['x']}")
    decide = slow(0.03, lambda k: k in (5, 6))
    flight = Flight(tmp_path, decide, agent=agent, record_observations="no", duration_s=0.4).run()
    lines = flight.lines
    assert flight.ticks and not any({"observation", "data", "history"} & set(line) for line in lines)
    assert any("called" in line for line in lines) and any("evidence" in line for line in lines)
    text = json.dumps([lines, report_of(flight.path)])
    assert "secret" not in text and "push(force=" in text
    assert not [*training_rows(lines)]
    shown = Flight(tmp_path / "yes", agent=agent, duration_s=0.1).run()
    assert "secret" in json.dumps(shown.lines), "what is looked for would be there"


def test_error_in_the_counts_costs_the_record_no_event(recorder: Recorder) -> None:
    miss = {"k": 3, "t_s": 0.1, "kind": "miss", "cause": "decide", "superseded": 0}
    for event in ({"log": "a"}, miss, miss, {"log": "b"}, {"log": "c"}):
        recorder.write(event)
    assert logged(recorder) == ["a", "b", "c"] == recorder.live_state.snapshot()["log"]
    assert recorder.live_state.fault == "ValueError: release 3 was counted as missed already"


@pytest.mark.integration
def test_recorder_that_breaks_down_reports_it_and_counts_on(tmp_path: Path) -> None:
    messages: list[str] = []
    recorder = Recorder(kept(tmp_path / "record.mcap"), {"hz": 16.0}, messages.append, patient=True)
    recorder.file._encoder.add = None  # type: ignore[assignment, method-assign]
    for k in range(6000):
        recorder.write({"instruction": str(k), "t_s": 0.0})
    recorder.close()
    assert len(recorder.live_state.account.listed["/instruction"]) == 6000
    assert recorder.lost_events >= 5999 and len(messages) == 1 and "TypeError" in messages[0]


def test_header_joins_the_stamps_of_both_clocks(tmp_path: Path) -> None:
    flight = Flight(tmp_path).run()
    stamped = [*read_timed_events(flight.path)]
    anchor = stamped[0][1]["header"]["clock_anchor"]["utc_minus_monotonic_ns"]
    origin = next(event["origin_ns"] for _, event in stamped if "origin_ns" in event)
    acted = {t_ns for t_ns, _ in flight.cart.pushes}
    calls = [(ns, event) for ns, event in stamped if event.get("kind") == "call"]
    assert calls
    for log_ns, tick in calls:
        started = origin + 1e9 * tick["t_s"] + 1e6 * tick["spans_ms"]["executing"]
        ended = origin + 1e9 * tick["t_s"] + 1e6 * tick["latency_ms"]
        assert any(started - 2e3 <= t <= ended + 2e3 for t in acted), "stamps are rounded to a microsecond"
        assert log_ns is not None and log_ns - anchor >= ended - 2e3


@pytest.mark.realtime
def test_every_tick_on_time_gives_a_row(tmp_path: Path) -> None:
    flight = Flight(tmp_path, slow(0.05, lambda k: k in (5, 6))).run()
    made, account = [*training_rows(flight.lines)], flight.loop.account
    assert len(made) == account.on_time > 10
    texts = [line["call"] for line in flight.ticks if line["kind"] == "call" and "cause" not in line]
    assert [f"push(force={row['call']['arguments']['force']})" for row in made] == texts
    assert made[0]["instruction"] == "go to 0" and made[0]["observation"].startswith("x ")
    assert made[0]["tools"] == flight.agent.tools.openai() and made[-1]["history"] == texts[-4:-1]
    looks = [line for line in flight.lines if "observation" in line]
    assert all(line["observation"] == flight.agent.observe(line["data"]) for line in looks)
    safe = [line for line in flight.lines if line.get("called") and line["why"] == "safe"]
    assert [line["arguments"] for line in safe] == [{"force": 0}]


@pytest.mark.realtime
def test_sigkill_costs_the_record_a_second_at_most(tmp_path: Path) -> None:
    code = f"""
import sys; sys.path[:0] = [{str(Path(__file__).parents[1])!r}]
from pathlib import Path
from cart import Flight
Flight(Path({str(tmp_path)!r}), duration_s=60.0).run()
"""
    process = Program(["-c", code], tmp_path / "stderr")
    wait_for_ticks(tmp_path, 21)
    time.sleep(1.2)  # far from the moment at which these were written
    process.kill()
    *_, (last_ns, _) = read_timed_events(tmp_path / "record.mcap")
    assert last_ns is not None and time.time_ns() - last_ns < 1e9
    made = report_of(tmp_path / "record.mcap")
    assert made["ticks"] > 20
    assert made["ended_by"] == "killed"
    assert made["releases"] == made["ticks"] + made["skipped_releases"]
