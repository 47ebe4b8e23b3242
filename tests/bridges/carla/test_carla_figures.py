"""The grid that a paced drive keeps to, and what comes of it: figures and a trace."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rtcontrol.bridges.carla import bridge, stats
from rtcontrol.bridges.carla.bridge import Grid, Trace
from rtcontrol.bridges.carla.control import Control
from rtcontrol.bridges.carla.neighbours import Body
from rtcontrol.bridges.carla.stats import Figures, quantiles
from rtcontrol.bridges.client import Standing

CAR = Body(7, 1.0, 2.0, 0.0, 90.0, 3.0, 4.0, 2.4, 1.0)
NOTHING = Standing(None, "safe", cause="no_session")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(bridge, "time", made)
    monkeypatch.setattr(stats, "time", made)
    return made


def test_whole_steps_that_were_missed_are_passed_over_and_the_phase_is_kept(clock: Clock) -> None:
    steps = Grid(0.0625)
    assert steps.wait() == (0.0, 0)
    clock.sleep(0.01)
    assert steps.wait() == (0.0, 0)
    assert clock.now == 100.0625
    clock.sleep(0.0625 * 3.5)
    late_s, skipped = steps.wait()
    assert (late_s, skipped) == (pytest.approx(0.03125), 2)
    steps.wait()
    assert clock.now == pytest.approx(100.0 + 5 * 0.0625)


def test_figures_tell_what_was_on_the_grid_and_how_fast_the_world_went(clock: Clock) -> None:
    made = Figures()
    made.released(1.0, 9)
    made.begin()
    for late_s, skipped in ((0.0, 0), (0.004, 0), (0.006, 0), (0.0, 1)):
        made.released(late_s, skipped)
        made.simulated_s += 0.0625
        clock.sleep(0.125)
    made.instruction("go")
    made.end()
    clock.sleep(60)
    told = made.to_dict({"fresh": 3, "errors": 1}, {"distance_m": 1.23456, "steps": 4})
    assert (told["on_grid"], told["late"], told["skipped"], told["on_grid_share"]) == (3, 1, 1, 0.6)
    assert (told["seconds"], told["simulated_s"], told["real_time_factor"]) == (0.5, 0.25, 0.5)
    assert told["calls"] == {"fresh": 3, "held": 0, "safe": 0, "expired": 0, "reconnects": 0}
    assert told["driver"] == {"distance_m": 1.2, "steps": 4}
    assert told["instructions"] == [{"t_s": 0.5, "text": "go"}]


def test_times_of_the_newest_steps_only(clock: Clock) -> None:
    made = Figures()
    for ms in (900, 800, 2, 1):
        made.took("tick", ms / 1e3)
    assert made.to_dict({}, {}, newest=2)["tick_ms"] == {"p50": 2.0, "p99": 2.0, "max": 2.0}
    assert made.to_dict({}, {})["tick_ms"]["max"] == 900.0
    assert quantiles([]) == {}


def test_trace_of_another_bridge_is_gone_on_in(tmp_path: Path) -> None:
    for frame in (1, 2):
        trace = Trace(tmp_path / "trace.jsonl")
        trace.write(frame, CAR, NOTHING, Control(brake=1.0))
        trace.close()
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [(line["frame"], line["kmh"], line["status"], line["brake"]) for line in lines] == [
        (1, 18.0, "safe", 1.0),
        (2, 18.0, "safe", 1.0),
    ]


def test_full_disk_ends_the_trace_and_not_the_drive(caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace(Path("/dev/full"))
    with caplog.at_level(logging.WARNING, "rtcontrol.carla"):
        for frame in range(3):
            trace.write(frame, CAR, NOTHING, Control())
        trace.close()
    (told,) = caplog.messages
    assert "/dev/full ends here" in told and "No space left" in told
