"""The record survives what happens to disks and processes; the report says what the record says."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from cart import Flight, cart_agent, good, slow
from mcap.reader import make_reader

from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Decision
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import recorder as recorders
from rtcontrol.telemetry import report
from rtcontrol.telemetry.channels import CHANNELS, topic_of
from rtcontrol.telemetry.record_reader import read_record, read_stamped, rows
from rtcontrol.telemetry.recorder import Recorder
from tests.helpers.disks import files_of
from tests.helpers.processes import until


@contextmanager
def full_disk(recorder: Recorder) -> Iterator[None]:
    room, full = os.dup(recorder.file.fd), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder.file.fd)
    yield
    os.dup2(room, recorder.file.fd)


def test_a_full_disk_does_not_stop_the_loop_and_what_waited_is_written_when_there_is_room(tmp_path: Path) -> None:
    def decide(request: DecisionRequest) -> Decision:
        assert request.tick != 3, "fails"
        return good(request)

    flight = Flight(tmp_path, decide, clock="lockstep")
    recorder, told = flight.recorder, []
    recorder._tell = told.append
    with full_disk(recorder):
        flight.loop.run()
        until(lambda: flight.loop.account.releases == 25)
        until(lambda: recorder.lost >= 25)
        assert len(told) == 1 and "No space left" in told[0]
    until(lambda: recorder.lost == 0)
    recorder.close()
    assert flight.causes["decide"] >= 1
    assert report.of_record(flight.path)["releases"] == 25


@pytest.mark.parametrize("room", [20, 40_000])
def test_a_write_cut_short_goes_on_where_it_stopped(tmp_path: Path, room: int) -> None:
    recorder = Recorder(tmp_path / "record.mcap", {})
    events = [{"log": f"line {k}", "t_s": 0.0} for k in range(5000)]
    with files_of((tmp_path / "record.mcap").stat().st_size + room):
        for event in events:
            recorder.write(event)
        until(lambda: recorder.file.error is not None)
        assert recorder.file.error == "File too large" and 1000 <= recorder.lost <= 5000
    recorder.write({"log": "the last"})
    recorder.close()
    assert recorder.lost == 0
    assert [*read_record(tmp_path / "record.mcap")][1:] == [*events, {"log": "the last"}]


def test_what_a_full_disk_never_took_is_counted_and_the_report_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "KEPT", 5)
    flight = Flight(tmp_path, clock="lockstep")
    with full_disk(flight.recorder):
        flight.run()
    assert flight.recorder.lost > 25
    made = report.build(flight.loop.account, "record.mcap", flight.recorder.lost)
    assert (made["releases"], made["record"]["lost_lines"]) == (25, flight.recorder.lost)
    assert made["latency_ms"]["p50"] is not None


def test_every_event_of_a_run_fits_its_schema_and_the_file_is_indexed(tmp_path: Path) -> None:
    flight = Flight(tmp_path, slow(0.05, lambda k: k in (5, 6, 15)))
    flight.loop.instruct("go to 1")
    flight.run()
    # Late decisions are in the figures too: leaving them out would flatter.
    made = report.of_record(flight.path)
    assert made["decide_ms"]["max"] >= 50 and made["releases"] == flight.loop.account.releases
    with flight.path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None
        assert {c.topic for c in summary.channels.values()} == set(CHANNELS)
        for schema, channel, message in reader.iter_messages():
            assert schema is not None and schema.encoding == "jsonschema"
            event = json.loads(message.data)
            assert topic_of(event) == channel.topic
            told = json.loads(schema.data)
            jsonschema.validate(event, told)
            assert set(event) <= set(told["properties"]), "every field is described"
        assert summary.statistics.message_count == len(flight.lines)


@pytest.mark.integration
def test_a_lockstep_run_that_outruns_its_recorder_loses_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record.mcap", {}, patient=True)
    for k in range(20_000):
        recorder.write({"log": str(k)})
    assert len(recorder._queue) <= 4 * recorders.AT_ONCE + 1
    recorder.close()
    assert [e["log"] for e in read_record(tmp_path / "record.mcap") if "log" in e] == [str(k) for k in range(20_000)]


def test_a_disk_that_does_not_answer_holds_up_nobody(tmp_path: Path) -> None:
    # A pipe that nobody reads: a write to it blocks, as to a network disk that is gone.
    recorder = Recorder(tmp_path / "record.mcap", {})
    out, into = os.pipe()
    os.dup2(into, recorder.file.fd)
    for k in range(5000):
        recorder.write({"log": f"{k} {random.random()}" * 10})
    until(lambda: recorder.file.unwritten > 0)
    recorder.write({"log": "more"})  # comes back
    os.close(into)
    threading.Thread(target=lambda: [None for _ in iter(partial(os.read, out, 65536), b"")], daemon=True).start()
    recorder.close()
    assert recorder.lost == 0


def test_a_report_that_cannot_be_written_leaves_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert report.write({"a": 1}, path) is None
    with files_of(5):
        assert report.write({"b": 2}, path) == "File too large"
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("old", "kept"),
    [
        ({}, False),
        ({"releases": 6}, True),
        ({"releases": 6, "started_at": "before"}, False),
        ({"ended_by": "SIGTERM"}, True),
        ({"schema_version": 0, "releases": 6}, False),
        ({"releases": None}, False),
    ],
)
def test_only_a_richer_report_of_the_same_run_is_kept(tmp_path: Path, old: dict[str, object], kept: bool) -> None:
    made = {"schema_version": 1, "started_at": "now", "releases": 5, "ended_by": "killed"}
    report.write(made | old, tmp_path / "report.json")
    assert (report.richer(tmp_path / "report.json", made) is not None) == kept
    assert report.richer(tmp_path / "none.json", made) is None


@pytest.mark.parametrize("damage", [None, b"\x89MCAP1" * 99, b"hello", b""])
def test_a_file_that_is_damaged_or_not_ours_is_named_as_such(tmp_path: Path, damage: bytes | None) -> None:
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
        report.of_record(path)


ROUND: dict[str, Any] = {}
ROUND["me"] = ROUND


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({1: {2}, (1, 2): 3}, {"1": [2], "(1, 2)": 3}),
        (
            {"a": np.arange(3), "b": np.zeros((100, 100))},
            {"a": [0, 1, 2], "b": {"dtype": "float64", "shape": [100, 100]}},
        ),
        ({"a": b"ab", "b": bytes(5000)}, {"a": [97, 98], "b": {"dtype": "bytes", "shape": [5000]}}),
        ({"a": [float("nan")], "b": np.array([1.5, np.inf])}, {"a": ["nan"], "b": [1.5, "inf"]}),
        (ROUND, {"unreadable": "RecursionError: maximum recursion depth exceeded"}),
    ],
)
def test_what_a_world_shows_may_be_anything_and_stays_json(tmp_path: Path, data: Any, kept: Any) -> None:
    recorder = Recorder(tmp_path / "record.mcap", {"hz": 16.0})
    for event in ({"observation": "x", "k": 0, "data": data}, {"episode": {"detail": data}}, {"log": "after"}):
        recorder.write(event)
    recorder.close()
    _, seen, ended, after = read_record(tmp_path / "record.mcap")
    assert after == {"log": "after"} and seen["observation"] == "x"
    for told in (seen["data"], ended["episode"].get("detail", ended["episode"])):
        assert str(told)[:30] == str(kept)[:30] if data is ROUND else told == kept
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


def test_a_fault_in_the_counts_is_told_and_costs_the_record_no_event(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record.mcap", {"hz": 16.0})
    miss = {"k": 3, "t_s": 0.1, "kind": "miss", "cause": "decide", "superseded": 0}
    for event in ({"log": "a"}, miss, miss, {"log": "b"}, {"log": "c"}):
        recorder.write(event)
    recorder.close()
    assert recorder.fault == "ValueError: release 3 was missed already"
    assert recorder.recent.snapshot()["log"] == ["a", "b", "c"]
    assert [e["log"] for e in read_record(tmp_path / "record.mcap") if "log" in e] == ["a", "b", "c"]


@pytest.mark.integration
def test_a_recorder_that_breaks_down_says_so_and_its_account_is_complete(tmp_path: Path) -> None:
    told: list[str] = []
    recorder = Recorder(tmp_path / "record.mcap", {"hz": 16.0}, tell=told.append, patient=True)
    recorder.file._encoder.add = None  # type: ignore[assignment, method-assign]
    for k in range(6000):
        recorder.write({"instruction": str(k), "t_s": 0.0})
    recorder.close()
    assert len(recorder.recent.account.listed["/instruction"]) == 6000
    assert recorder.lost >= 5999 and len(told) == 1 and "TypeError" in told[0]


def test_header_and_first_release_join_every_stamp_with_the_worlds_own_clock(tmp_path: Path) -> None:
    flight = Flight(tmp_path).run()
    stamped = [*read_stamped(flight.path)]
    anchor = stamped[0][1]["header"]["clock_anchor"]["utc_minus_monotonic_ns"]
    origin = next(event["origin_ns"] for _, event in stamped if "origin_ns" in event)
    acted = {round(t * 1e9) for t, call, _ in flight.world.executed}
    calls = [(ns, event) for ns, event in stamped if event.get("kind") == "call"]
    assert calls
    for log_ns, tick in calls:
        began = origin + 1e9 * tick["t_s"] + 1e6 * tick["spans_ms"]["executing"]
        ended = origin + 1e9 * tick["t_s"] + 1e6 * tick["latency_ms"]
        assert any(began - 2e3 <= t <= ended + 2e3 for t in acted), "stamps are rounded to a microsecond"
        assert log_ns is not None and log_ns - anchor >= ended - 2e3
