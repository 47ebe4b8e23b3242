"""The record survives what happens to disks and processes; the report says what the record says."""

from __future__ import annotations

import json
import os
import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cart import Flight, good, slow
from commands import wait_for_ticks

from rtcontrol.hosts.base import DecisionRequest
from rtcontrol.models.call import Decision
from rtcontrol.models.errors import UserError
from rtcontrol.record import record as records
from rtcontrol.record.record import Recorder, read_record
from rtcontrol.report import report
from tests.helpers.processes import Program

FIELDS = """releases ticks on_time misses skipped_releases miss_rate misses_by_cause null held longest_miss_run
worst_window superseded_observations latency_ms decide_ms wake_ms observation_age_ms execute_ms jitter_ms forward_passes
tokens warmup hz period_ms deadline_ms clock env agent model engine host machine started_at duration_s outcome
schema_version host_events"""


@contextmanager
def files_of(most: int) -> Iterator[None]:
    """No file may get larger meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def full_disk(recorder: Recorder) -> Iterator[None]:
    room, full = os.dup(recorder._fd), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder._fd)
    yield
    os.dup2(room, recorder._fd)


def written(path: Path) -> list[int]:
    return [line["line"] for line in read_record(path) if "line" in line]


def test_report_agrees_with_the_live_counts(tmp_path: Path) -> None:
    flight = Flight(tmp_path, slow(0.05, lambda k: k in (5, 6, 15))).run()
    made = report.build(flight.path)
    ledger = flight.loop.ledger
    for name in ("releases", "ticks", "on_time", "misses", "skipped_releases", "miss_rate", "null", "held"):
        assert made[name] == getattr(ledger, name), name
    assert made["misses_by_cause"] == dict(ledger.misses_by_cause)
    assert made["longest_miss_run"] == ledger.longest_miss_run
    assert made["safe_calls"] == ledger.safe_calls
    assert set(made) >= {*FIELDS.split()}
    assert set(made["latency_ms"]) == {"p50", "p90", "p99", "p99_9", "max", "mean"}
    # Late decisions are in the figures too: leaving them out would flatter.
    assert made["decide_ms"]["max"] >= 50
    assert made["warmup"]["decisions"] == 5
    assert made["forward_passes"]["total"] == ledger.on_time
    assert report.write(made, tmp_path / "report.json") is None
    assert json.loads((tmp_path / "report.json").read_text())["releases"] == ledger.releases


def test_a_full_disk_does_not_stop_the_loop_and_what_waited_is_written_when_there_is_room(tmp_path: Path) -> None:
    def decide(request: DecisionRequest) -> Decision:
        assert request.tick != 3, "fails"
        return good(request)

    flight = Flight(tmp_path, decide)
    recorder, told = flight.recorder, []
    recorder._tell = told.append
    with full_disk(recorder):
        flight.loop.run()
        assert flight.loop.ledger.releases == 25
        lost = recorder.lost
        assert lost >= 25 and len(told) == 1 and "No space left" in told[0]
        made = report.build(flight.path, vars(flight.loop.ledger), recorder)
        assert (made["releases"], made["on_time"]) == (25, flight.loop.ledger.on_time)
        assert made["misses_by_cause"] == flight.causes and flight.causes["decide"] >= 1
        assert report.write(made, tmp_path / "report.json") is None
        assert (made["record"]["lost_lines"], made["ended_by"]) == (lost, "duration")
        assert made["latency_ms"]["p50"] is not None
    recorder.write({"late": 1, "used": False})
    assert recorder.lost == 0
    recorder.close()
    assert report.build(flight.path)["releases"] == 25


@pytest.mark.parametrize("room", [60, 66, 76])
def test_a_line_cut_short_is_written_whole_when_there_is_room(tmp_path: Path, room: int) -> None:
    recorder = Recorder(tmp_path / "r.jsonl", {})
    with files_of(room):
        for k in range(10):
            recorder.write({"line": k})
    assert 5 < recorder.lost < 10
    recorder.write({"line": 10})
    recorder.close()
    assert written(tmp_path / "r.jsonl") == [*range(11)]


def test_all_that_waits_is_written_at_the_end_where_there_is_room(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.jsonl", {})
    with full_disk(recorder):
        for k in range(500):
            recorder.write({"line": k})
    recorder.close()
    assert recorder.lost == 0
    assert written(tmp_path / "r.jsonl") == [*range(500)]


def test_more_than_can_wait_is_counted_and_the_live_counts_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "KEPT", 5)
    flight = Flight(tmp_path)
    with full_disk(flight.recorder):
        flight.run()
    assert flight.recorder.lost > 25 and len([*flight.recorder.unwritten()]) == 5
    flight.loop.ledger.misses_by_cause["pause"] += 1
    made = report.build(flight.path, vars(flight.loop.ledger), flight.recorder)
    assert (made["ticks"], made["misses_by_cause"]["pause"]) == (flight.loop.ledger.ticks, 1)
    assert report.write(made, tmp_path / "report.json") is None


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
        ({"releases": 4}, False),
        ({"schema_version": 0, "releases": 6}, False),
        ({"releases": None}, False),
    ],
)
def test_only_a_richer_report_of_the_same_run_is_kept(tmp_path: Path, old: dict[str, object], kept: bool) -> None:
    made = {"schema_version": 1, "started_at": "now", "releases": 5, "ended_by": "killed"}
    report.write(made | old, tmp_path / "report.json")
    assert (report.richer(tmp_path / "report.json", made) is not None) == kept
    assert report.richer(tmp_path / "none.json", made) is None


def test_lines_cut_short_are_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.jsonl", {})
    recorder.write({"kind": "call"})
    recorder.close()
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"kind": "ca')
    assert [*read_record(tmp_path / "r.jsonl")][1:] == [{"kind": "call"}]


def test_nowhere_to_write_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--out"):
        Recorder(tmp_path / "file" / "r.jsonl", {})
    with pytest.raises(UserError, match="No record"):
        report.build(tmp_path / "nothing.jsonl")


def test_sigkill_leaves_a_record_that_can_be_read(tmp_path: Path) -> None:
    code = f"""
import sys; sys.path[:0] = [{str(Path(__file__).parents[1])!r}]
from pathlib import Path
from cart import Flight
Flight(Path({str(tmp_path)!r}), duration_s=60.0).run()
"""
    process = Program(["-c", code], tmp_path / "stderr")
    wait_for_ticks(tmp_path, 21)
    process.kill()
    made = report.build(tmp_path / "record.jsonl")
    assert made["ticks"] > 20
    assert made["ended_by"] == "killed"
    assert made["releases"] == made["ticks"] + made["skipped_releases"]


def test_memory_stays_flat(tmp_path: Path) -> None:
    # In lockstep ten thousand ticks take seconds.
    flight = Flight(tmp_path, clock="lockstep", hz=100, duration_s=60.0)
    sizes: list[int] = []
    plain = flight.agent.observe

    def observe(data: object) -> str:
        if flight.loop.ledger.ticks in (1000, 5500):
            sizes.append(tracemalloc.get_traced_memory()[0])
        return plain(data)  # type: ignore[arg-type]

    object.__setattr__(flight.agent, "observe", observe)
    flight.world.executed = _Forgetful()
    tracemalloc.start()
    try:
        flight.run()
    finally:
        tracemalloc.stop()
    assert flight.loop.ledger.ticks == 6000
    assert sizes[-1] - sizes[0] < 100_000, sizes


class _Forgetful(list):  # type: ignore[type-arg]
    def append(self, item: object) -> None:
        self[:] = [item]
