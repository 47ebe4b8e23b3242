"""The bridge's own traffic: it keeps its lanes, its gaps, and stops at red."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.bridges.carla.driver import Driver, observe
from rtcontrol.bridges.carla.neighbours import Body
from rtcontrol.bridges.carla.observing import Light, Scene
from rtcontrol.bridges.carla.standin.actors import Control
from rtcontrol.bridges.carla.traffic import TrafficDrivers
from tests.bridges.carla.drives import DT, HALF_LENGTH, KMH, Car, all_lights, body, lane_line, road


class Town:
    """Cars of a traffic on their bicycles; `light` is what all lights show."""

    def __init__(self, starts: list[Body], share: Callable[[int], float] = lambda number: 1.0) -> None:
        self.cars = {start.number: Car(start) for start in starts}
        self.traffic = TrafficDrivers(road(), DT)
        self.light: Light = "none"
        for number in self.cars:
            self.traffic.add(number, share(number))

    def bodies(self) -> list[Body]:
        return [car.body() for car in self.cars.values()]

    def run(self, seconds: float, each: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / DT)):
            limits: dict[int, float] = dict.fromkeys(self.cars, 50.0)
            for number, told in self.traffic.step(self.bodies(), limits, all_lights(self.light)):
                assert 0 <= told.throttle <= 1 and 0 <= told.brake <= 1 and -1 <= told.steer <= 1
                bicycle = self.cars[number].bicycle
                bicycle.control = Control(told.throttle, told.steer, told.brake, told.hand_brake)
                bicycle.step(DT, 7)
            each()


def test_a_loop_full_of_cars_drives_without_touching() -> None:
    rng = random.Random(5)
    loops = [lane_line(lane).before[0] for lane in (1, 2, 3)]
    starts = [
        body(loop, 20.0 + 45.0 * n, rng.uniform(0, 10), number=100 * lane + n)
        for lane, loop in enumerate(loops)
        for n in range(6)
    ]
    town = Town(starts, lambda number: rng.uniform(0.6, 1.0))
    nearest = [math.inf]

    def watch() -> None:
        here = town.bodies()
        apart = [math.dist(a[1:3], b[1:3]) for i, a in enumerate(here) for b in here[:i]]
        nearest[0] = min(nearest[0], *apart)

    town.run(30.0, watch)
    # Lanes are 3.5 m apart; in the same lane nobody is nearer than that.
    assert nearest[0] > 3.0
    driven = [driver.counts.distance_m for driver in town.traffic.drivers.values()]
    assert min(driven) > 150.0
    assert sum(driver.counts.emergencies for driver in town.traffic.drivers.values()) == 0
    views = [driver.view for driver in town.traffic.drivers.values()]
    assert all(view is not None and abs(view.lateral_m) < 0.3 for view in views)


def test_at_red_they_wait_before_the_line_and_at_green_they_go() -> None:
    known = lane_line(2)
    town = Town([body(known, known.length - 90.0 - 15.0 * n, 12.0, number=n) for n in range(3)])
    town.light = "red"
    town.run(20.0)
    lines = [known.search(it.x, it.y)[0] + HALF_LENGTH for it in town.bodies()]
    assert all(car.bicycle.speed < 0.05 for car in town.cars.values())
    assert known.length - 3.0 < lines[0] < known.length
    assert lines[0] - 14.0 < lines[1] + HALF_LENGTH * 2 < lines[0] - 2.0
    town.light = "green"
    town.run(15.0)
    assert all(driver.counts.ways == {"straight": 1} for driver in town.traffic.drivers.values())


def test_at_yellow_who_cannot_stop_goes_on() -> None:
    known = lane_line(2)
    for left, passes in ((12.0, True), (60.0, False)):
        town = Town([body(known, known.length - left - HALF_LENGTH, 14.0)])
        town.light = "yellow"
        town.run(8.0)
        assert (town.cars[1].bicycle.speed > 10.0) == passes


def test_a_lane_that_only_turns_is_followed_round() -> None:
    known = lane_line(1)
    left = road().route(known, "left").lanes[1]
    town = Town([body(left, 1.0, 8.0)])
    town.run(8.0)
    driver = town.traffic.drivers[1]
    assert driver.counts.ways == {"left": 1} and driver.counts.beyond_limits == 0


def test_who_is_not_ours_or_gone_is_told_nothing() -> None:
    known = lane_line(2)
    traffic = TrafficDrivers(road(), DT)
    traffic.add(1)
    traffic.add(2)
    one, stranger = body(known, 50.0, 10.0, number=1), body(known, 65.0, 0.0, number=9)
    told = dict(traffic.step([one, stranger], {}))
    assert set(told) == {1} and told[1].brake > 0.3
    assert traffic.step([stranger], {}) == []


CALLS = st.one_of(
    st.tuples(st.just("set_speed"), st.fixed_dictionaries({"kmh": st.integers(10, 120)})),
    st.tuples(st.just("follow"), st.fixed_dictionaries({"gap": st.integers(5, 50)})),
    st.tuples(st.just("brake"), st.fixed_dictionaries({"level": st.integers(20, 100)})),
    st.tuples(st.just("turn"), st.fixed_dictionaries({"at_next_junction": st.sampled_from(["left", "right"])})),
    st.tuples(st.just("change_lane"), st.fixed_dictionaries({"direction": st.sampled_from(["left", "right"])})),
    st.tuples(st.just("stop"), st.just({})),
)
NUMBER = st.floats(allow_nan=True, allow_infinity=True)
PLACE = st.tuples(st.floats(-30.0, 630.0), st.floats(-30.0, 30.0), st.floats(0.0, 60.0), st.floats(-1e4, 1e4))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CALLS, PLACE, NUMBER), min_size=1, max_size=12), st.integers(0, 48))
def test_whatever_is_called_and_wherever_it_is_the_outputs_are_in_range(steps: list, which: int) -> None:  # type: ignore[type-arg]
    lanes = road().lanes()
    lane, driver = lanes[which % len(lanes)], Driver(road(), DT)
    for (name, arguments), (s, lateral, speed, yaw), odd in steps:
        own = body(lane, s, speed, lateral)._replace(yaw_deg=yaw)
        others = [body(lane, s + 9.0, speed / 2, lateral, 2), own._replace(number=3, x=own.x + odd, vx=odd)]
        scene = Scene(own, others, odd)
        driver.look(scene)
        driver.obey(name, arguments)
        told = driver.step(scene)
        assert 0.0 <= told.throttle <= 1.0 and 0.0 <= told.brake <= 1.0 and -1.0 <= told.steer <= 1.0
        data = observe(road(), scene, driver)
        assert all(math.isfinite(v) for k, v in data.items() if isinstance(v, float) and k != "limit_kmh")


def test_traffic_slows_for_whom_it_does_not_drive() -> None:
    known = lane_line(2)
    town = Town([body(known, 50.0, 12.0)])
    standing = body(known, 150.0, number=7)
    town.cars[7] = Car(standing)
    town.run(30.0)
    gap = known.search(*town.bodies()[0][1:3])[0] - known.search(standing.x, standing.y)[0]
    assert town.cars[1].bicycle.speed < 0.1 and -gap - 2 * HALF_LENGTH == pytest.approx(5.0, abs=2.5)
    assert town.traffic.drivers[1].counts.top_kmh < 50.0 * 1.02 and KMH == 3.6
