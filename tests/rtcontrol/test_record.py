"""The record survives what happens to disks and processes; the report says what the record says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from cart import Flight, slow

from rtcontrol import report
from rtcontrol.models.errors import UserError
from rtcontrol.record import Recorder, read_record

FIELDS = {
    "releases",
    "ticks",
    "on_time",
    "misses",
    "skipped_releases",
    "miss_rate",
    "misses_by_cause",
    "null",
    "held",
    "longest_miss_run",
    "worst_window",
    "superseded_observations",
    "latency_ms",
    "decide_ms",
    "wake_ms",
    "observation_age_ms",
    "execute_ms",
    "jitter_ms",
    "forward_passes",
    "tokens",
    "warmup",
    "hz",
    "period_ms",
    "deadline_ms",
    "clock",
    "env",
    "agent",
    "model",
    "engine",
    "host",
    "machine",
    "started_at",
    "duration_s",
    "outcome",
    "schema_version",
    "host_events",
}


def test_report_agrees_with_the_live_counts(tmp_path: Path) -> None:
    flight = Flight(tmp_path, slow(0.05, lambda k: k in (5, 6, 15))).run()
    made = report.build(flight.path)
    ledger = flight.loop.ledger
    for name in ("releases", "ticks", "on_time", "misses", "skipped_releases", "miss_rate", "null", "held"):
        assert made[name] == getattr(ledger, name), name
    assert made["misses_by_cause"] == dict(ledger.misses_by_cause)
    assert made["longest_miss_run"] == ledger.longest_miss_run
    assert made["safe_calls"] == ledger.safe_calls
    assert set(made) >= FIELDS
    assert set(made["latency_ms"]) == {"p50", "p90", "p99", "p99_9", "max", "mean"}
    # Late decisions are in the figures too: leaving them out would flatter.
    assert made["decide_ms"]["max"] >= 50
    assert made["warmup"]["decisions"] == 5
    assert made["forward_passes"]["total"] == ledger.on_time
    assert report.write(made, tmp_path / "report.json") is None
    assert json.loads((tmp_path / "report.json").read_text())["releases"] == ledger.releases


def test_a_full_disk_does_not_stop_the_loop(tmp_path: Path) -> None:
    flight = Flight(tmp_path)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, flight.recorder._fd)
    flight.run()
    assert flight.loop.ledger.releases == 25
    assert flight.recorder.lost >= 25
    made = report.build(flight.path, flight.loop.ledger, flight.recorder.lost)
    assert (made["releases"], made["on_time"]) == (25, flight.loop.ledger.on_time)
    assert made["record"]["lost_lines"] >= 25


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
import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]
from pathlib import Path
from cart import Flight
Flight(Path({str(tmp_path)!r}), duration_s=60.0).run()
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    path = tmp_path / "record.jsonl"
    give_up = time.monotonic() + 30
    while time.monotonic() < give_up and not (path.exists() and path.read_bytes().count(b'"kind"') > 20):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    made = report.build(path)
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
