"""Tests of records of ticks on time, and of a killed run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cart import Flight, report_of, slow
from commands import wait_for_ticks

from rtcontrol.telemetry.record_reader import read_stamped, training_rows
from tests.helpers.processes import Program

pytestmark = pytest.mark.realtime


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
    *_, (last_ns, _) = read_stamped(tmp_path / "record.mcap")
    assert last_ns is not None and time.time_ns() - last_ns < 1e9
    made = report_of(tmp_path / "record.mcap")
    assert made["ticks"] > 20
    assert made["ended_by"] == "killed"
    assert made["releases"] == made["ticks"] + made["skipped_releases"]
