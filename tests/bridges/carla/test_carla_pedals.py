"""Pedals and steering, the time grid and trace of a paced drive, and the journal of changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol_client import Standing
from rtcontrol_client.carla import bridge, journal
from rtcontrol_client.carla.bridge import StepTimer, Trace
from rtcontrol_client.carla.control import Control, PedalController, SteeringController
from rtcontrol_client.carla.journal import Journal
from rtcontrol_client.carla.observing import Body

DT = 1 / 16
wild = st.floats(-1e6, 1e6, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(wild, wild, st.floats(0, 1e4), wild), min_size=1, max_size=40))
def test_steering_stays_within_range_and_rate(steps: list[tuple[float, float, float, float]]) -> None:
    steer, last = SteeringController(DT), 0.0
    for forward, right, speed, off in steps:
        told = steer.step(forward, right, speed, off)
        assert -1.0 <= told <= 1.0 and abs(told - last) <= 2.0 * DT + 1e-9
        last = told


def drive(speed: float, wanted: Callable[[float], float], engine: float, brakes: float, seconds: float) -> list[float]:
    """Return the speeds of a vehicle with a lag of 0.2 s, air and rolling drag, and pedals of a given strength."""
    throttle, acceleration, speeds = PedalController(DT), 0.0, []
    for _ in range(round(seconds / DT)):
        told = throttle.step(wanted(speed), speed)
        push = told.throttle * min(engine, 40.0 * engine / 4.0 / max(speed, 0.1))
        down = brakes * max(told.brake, float(told.hand_brake)) + (0.15 + 0.0006 * speed * speed if speed > 0 else 0)
        acceleration += (push - down - acceleration) * min(1.0, DT / 0.2)
        speed = max(0.0, speed + acceleration * DT)
        speeds.append(speed)
    return speeds


@pytest.mark.parametrize(("engine", "brakes"), [(2.5, 5.0), (4.0, 8.0), (8.0, 12.0)])
def test_speed_is_reached_and_kept_with_any_engine(engine: float, brakes: float) -> None:
    for start, goal in ((0.0, 8.0), (5.0, 16.7), (25.0, 12.0), (10.0, 28.0)):
        speeds = drive(start, lambda v, g=goal: max(-3.0, min(2.0, 0.8 * (g - v))), engine, brakes, 60.0)  # type: ignore[misc]
        assert speeds[-1] == pytest.approx(goal, abs=0.15)
        assert max(abs(speed - goal) for speed in speeds[-320:]) < 0.3
        # The speed overshoots the goal by at most 1 m/s.
        assert max(speeds) < max(start, goal) + 1.0


# The time grid of a paced drive, its figures and its trace.


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
    return made


def test_missed_steps_are_skipped_and_the_phase_is_kept(clock: Clock) -> None:
    steps = StepTimer(0.0625)
    assert steps.wait() == 0
    clock.sleep(0.01)
    assert steps.wait() == 0
    assert clock.now == 100.0625
    clock.sleep(0.0625 * 3.5)
    assert steps.wait() == 2
    steps.wait()
    assert clock.now == pytest.approx(100.0 + 5 * 0.0625)


def test_full_disk_ends_the_trace_but_not_the_drive(caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace(Path("/dev/full"))
    with caplog.at_level(logging.WARNING, "rtcontrol.carla"):
        for frame in range(3):
            trace.write(frame, CAR, NOTHING, Control())
        trace.close()
    (told,) = caplog.messages
    assert "/dev/full is incomplete" in told and "No space left" in told


# The journal that the bridge writes before it changes a server.


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path))


def test_journal_records_every_change_before_it_is_made() -> None:
    path = journal.journal_path("127.0.0.1", 2000)
    mine = Journal(path, "127.0.0.1", 2000)
    mine.record_world(7)
    assert journal.read_journal(path).is_empty
    mine.record_settings({"synchronous_mode": False})
    mine.record_actor(9)
    left = journal.read_journal(path)
    assert (left.episode, left.settings, left.actors) == (7, {"synchronous_mode": False}, [9])
    mine.close()
    assert list(path.parent.iterdir()) == []
