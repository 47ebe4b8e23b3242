"""Pedals and steering: never out of their range, and good for vehicles whose figures are not known."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.bridges.carla.control import Steer, Throttle

DT = 1 / 16
wild = st.floats(-1e6, 1e6, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(wild, st.floats(0, 1e4)), min_size=1, max_size=40))
def test_pedals_stay_within_their_range_and_never_act_both(steps: list[tuple[float, float]]) -> None:
    throttle = Throttle(DT)
    for wanted, speed in steps:
        told = throttle.step(wanted, speed)
        assert 0.0 <= told.throttle <= 1.0 and 0.0 <= told.brake <= 1.0
        assert told.throttle == 0.0 or told.brake == 0.0
        assert math.isfinite(throttle.hold) and math.isfinite(throttle.more)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(wild, wild, st.floats(0, 1e4), wild), min_size=1, max_size=40))
def test_steering_stays_within_its_range_and_rate(steps: list[tuple[float, float, float, float]]) -> None:
    steer, last = Steer(DT, 2.85, 70.0), 0.0
    for forward, right, speed, off in steps:
        told = steer.step(forward, right, speed, off)
        assert -1.0 <= told <= 1.0 and abs(told - last) <= 2.0 * DT + 1e-9
        last = told


def test_fast_driving_is_steered_by_no_more_than_the_lateral_acceleration() -> None:
    for speed in (5.0, 15.0, 30.0):
        steer = Steer(DT, 2.85, 70.0, curve=((0.0, 1.0), (200.0, 1.0)))
        for _ in range(50):
            value = steer.step(5.0, 5.0, speed, 10.0)
        lateral = speed * speed * math.tan(value * math.radians(70.0)) / 2.85
        assert 0 < lateral <= 6.6
        assert value == pytest.approx(-_mirrored(speed), abs=1e-6)


@pytest.mark.parametrize("curve", [((0.0, 1.0),), ((0.0, 1.0), (0.0, 0.9), (50.0, 0.5)), ((10.0, 0.0),), ()])
def test_an_odd_steering_curve_is_no_hindrance(curve: tuple[tuple[float, float], ...]) -> None:
    for speed in (0.0, 5.0, 60.0):
        assert 0.0 < Steer(DT, 2.85, 70.0, curve).step(10.0, 1.0, speed, 0.0) <= 1.0


def _mirrored(speed: float) -> float:
    steer = Steer(DT, 2.85, 70.0, curve=((0.0, 1.0), (200.0, 1.0)))
    return [steer.step(5.0, -5.0, speed, -10.0) for _ in range(50)][-1]


def drive(speed: float, wanted: Callable[[float], float], engine: float, brakes: float, seconds: float) -> list[float]:
    """Speeds of a vehicle that lags by 0.2 s, has air and rolling drag, and pedals of its own strength."""
    throttle, acceleration, speeds = Throttle(DT), 0.0, []
    for _ in range(round(seconds / DT)):
        told = throttle.step(wanted(speed), speed)
        push = told.throttle * min(engine, 40.0 * engine / 4.0 / max(speed, 0.1))
        down = brakes * max(told.brake, float(told.hand_brake)) + (0.15 + 0.0006 * speed * speed if speed > 0 else 0)
        acceleration += (push - down - acceleration) * min(1.0, DT / 0.2)
        speed = max(0.0, speed + acceleration * DT)
        speeds.append(speed)
    return speeds


@pytest.mark.parametrize(("engine", "brakes"), [(2.5, 5.0), (4.0, 8.0), (8.0, 12.0)])
def test_a_speed_is_reached_and_kept_with_any_engine(engine: float, brakes: float) -> None:
    for start, goal in ((0.0, 8.0), (5.0, 16.7), (25.0, 12.0), (10.0, 28.0)):
        speeds = drive(start, lambda v, g=goal: max(-3.0, min(2.0, 0.8 * (g - v))), engine, brakes, 60.0)  # type: ignore[misc]
        assert speeds[-1] == pytest.approx(goal, abs=0.15)
        assert max(abs(speed - goal) for speed in speeds[-320:]) < 0.3
        # No farther beyond the goal than 1 m/s on the way.
        assert max(speeds) < max(start, goal) + 1.0


@pytest.mark.parametrize(("engine", "brakes"), [(2.5, 5.0), (4.0, 8.0), (8.0, 12.0)])
def test_a_wanted_deceleration_is_kept_with_any_brakes(engine: float, brakes: float) -> None:
    speeds = drive(25.0, lambda v: -3.0, engine, brakes, 12.0)
    down = [(a - b) / DT for a, b in pairwise(speeds) if b > 1.0]
    assert sum(down) / len(down) == pytest.approx(3.0, rel=0.2)
    assert speeds[-1] == 0.0


def test_full_throttle_that_does_not_do_is_forgotten_when_it_is_over() -> None:
    # Up a hill that is too steep: the integral must not wind up meanwhile.
    throttle = Throttle(DT)
    for _ in range(16 * 60):
        told = throttle.step(2.0, 5.0)
    assert told.throttle == 1.0 and throttle.hold <= 0.8
    told = throttle.step(-1.0, 5.0)
    for _ in range(16):
        told = throttle.step(-3.0, 5.0)
    assert told.throttle == 0.0


def test_it_stands_with_its_brakes_on_and_goes_when_wanted() -> None:
    throttle = Throttle(DT)
    for _ in range(5):
        told = throttle.step(-0.1, 0.05)
    assert told.hand_brake and told.brake >= 0.3 and told.throttle == 0.0
    told = throttle.step(1.0, 0.0)
    assert told.throttle > 0.0 and told.brake == 0.0 and not told.hand_brake
