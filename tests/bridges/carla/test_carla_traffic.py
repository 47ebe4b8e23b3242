"""The bridge's own traffic keeps its lanes and gaps; lights govern our way, and who is called by them stops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

import carla
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol_client.carla.driver import Driver, observe
from rtcontrol_client.carla.intent import Turn
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.lights import Lamp, govern
from rtcontrol_client.carla.neighbours import Body
from rtcontrol_client.carla.observing import LIGHT_SIGHT_M, Light, Scene, _light
from rtcontrol_client.carla.route import LaneLine, Route
from rtcontrol_client.carla.standin.actors import Control
from rtcontrol_client.carla.standin.roads import ARMS, LANES, REACH_M, incoming, signal_number
from rtcontrol_client.carla.standin.town import opendrive
from rtcontrol_client.carla.traffic import TrafficDrivers
from tests.bridges.carla.approaches import BY_HAND, by_rule, crossing, table
from tests.bridges.carla.drives import DT, HALF_LENGTH, KMH, Car, Drive, all_lights, body, lane_line, road


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


# Which light governs our way, and how far its stop line is; and that whoever is called by it stops and goes by it.


TURNS: tuple[Turn, ...] = ("straight", "left", "right")
ENTERING = [(arm, lane) for arm in ARMS for lane in range(1, LANES + 1)]


def lit(*told: Lamp) -> TownRoad:
    found = TownRoad(carla.Map("standin", opendrive()))
    govern(found, told)
    return found


def enters(on: TownRoad, arm: str, lane: int) -> LaneLine:
    number, lane_id = incoming(arm, lane)
    return next(known for known in on.lanes() if (known.key[0], known.key[2]) == (number, lane_id))


def line(route: Route) -> float:
    return route.stop_lines[0][0]


def lights(route: Route) -> tuple[int, ...]:
    """Of the first stop line."""
    return route.stop_lines[0][1] if route.stop_lines else ()


@pytest.mark.parametrize(("arm", "lane"), ENTERING)
def test_every_way_has_its_own_arms_light_and_its_line_where_the_lane_ends(arm: str, lane: int) -> None:
    entry = enters(road(), arm, lane)
    for turn in TURNS:
        for start, before in ((entry, 0.0), (entry.before[0], entry.before[0].length)):
            route = road().route(start, turn)
            assert lights(route) == (signal_number(arm),)
            assert line(route) == pytest.approx(before + entry.length, abs=0.05)
        # Over the junction the light is behind us, on the other side there is none.
        over = entry.after[0]
        assert lights(road().route(over, turn)) == ()


@pytest.mark.parametrize(("town", "signs"), [(None, ["1", "2", "3", "4"]), (BY_HAND, ["1", "", "", ""])])
def test_client_tells_of_every_ways_light_and_line_by_whatever_it_knows(town: str | None, signs: list[str]) -> None:
    with crossing(town) as here:
        told = sorted(here.world.lamps())
        arms = {lamp.number: arm for lamp, arm in zip(told, ARMS, strict=True)}
        assert [lamp.sign for lamp in told] == signs
        # By their boxes alone, too, as where the map names no signal of theirs.
        for known in (told, [lamp._replace(sign="") for lamp in told]):
            govern(here.road, known)
            for (arm, lane), turn in product(ENTERING, TURNS):
                route = here.road.route(enters(here.road, arm, lane), turn)
                assert [arms[number] for number in lights(route)] == [arm]
                assert route.junction_at is not None
                assert REACH_M + route.junction_at - line(route) == pytest.approx(here.line_m[arm], abs=0.05)
        # A signal of elsewhere says nothing of the lanes that its box lies on.
        govern(here.road, [told[0]._replace(sign="3")])
        assert lights(here.road.route(enters(here.road, "E", 2), "straight")) == (told[0].number,)


@pytest.mark.parametrize("back", [8.0, 15.0])
def test_box_placed_by_hand_far_before_the_junction_sets_the_line_back(back: float) -> None:
    entry = enters(road(), "N", 2)
    x, y, _, _ = entry.at(entry.length - back)
    route = lit(Lamp(7, "2", (x, y))).route(entry, "straight")
    assert (lights(route), line(route)) == ((7,), pytest.approx(entry.length - back + 3.0, abs=0.05))
    # Landmarks alone, or a box that is elsewhere: where the lane ends.
    for middle in (None, (x + 60.0, y), entry.at(entry.length - 80.0)[:2]):
        assert line(lit(Lamp(7, "2", middle)).route(entry, "straight")) == pytest.approx(entry.length, abs=0.05)


def test_the_line_behind_the_first_is_seen_once_the_first_is_passed() -> None:
    entry = enters(road(), "N", 2)
    first, second = entry.length - 40.0, entry.length - 22.0
    route = Route([entry], "straight", None, None, {entry.key: {7: first, 8: second}})
    for s, told in ((first - 12.0, "green"), (first + 1.0, "red"), (second + 1.0, "none")):
        assert _light(Scene(body(entry, s, 10.0), (), 60.0, {7: "green", 8: "red"}), route, s) == told


def seen(left: float, light: Light) -> tuple[str, float | None]:
    """What is told of a red light, our front bumper so far before the line."""
    known = lane_line(2)
    own = body(known, known.length - left - HALF_LENGTH, 10.0)
    number = lights(road().route(known, "straight"))[0]
    data = observe(road(), Scene(own, (), 60.0, {number: light, number % 4 + 1: "green"}), Driver(road(), DT))
    return data["light"], data["junction_m"]


def test_light_is_told_from_45_m_on_until_our_middle_is_over_the_line() -> None:
    assert LIGHT_SIGHT_M == 45.0  # what the driver model has learnt; another figure needs another model
    for light in ("red", "yellow", "green", "none"):
        assert seen(45.5, light) == ("none", pytest.approx(45.5, abs=0.1))
        for left in (44.5, 20.0, 3.0):
            assert seen(left, light) == (light, pytest.approx(left, abs=0.1))
    # A bumper over the line, at red: it is told as waiting at it, not as inside the junction, where lights are passed.
    assert seen(-1.0, "red") == ("red", 1.0)
    assert seen(-1.0, "green") == ("green", 0.0)
    assert seen(-HALF_LENGTH - 0.5, "red") == ("none", 0.0)


@pytest.mark.parametrize("town", [None, BY_HAND])
@pytest.mark.parametrize("count", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_reds_are_not_run_and_greens_are_passed_without_a_stop(
    count: int, town: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table in docs/bridges.md, `python -m tests.bridges.carla.approaches`, and a sample of it."""
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path))
    found = table(count, by_rule, town=town)
    assert (found["reds"], found["reds_run"], found["greens"]) == (count, 0, count), found
    assert found["greens_passed"] >= 0.95 * count, found


@pytest.mark.parametrize(("light", "kmh"), [("red", 30), ("red", 70), ("yellow", 30), ("yellow", 60)])
def test_who_is_called_on_at_red_is_braked_before_the_line(light: Light, kmh: int) -> None:
    """The last net: a model that does not see the light at all."""
    known = lane_line(2)
    drive = Drive(body(known, known.length - 100.0, kmh / KMH))
    drive.lights = all_lights(light)
    drive.obey("set_speed", kmh=kmh)
    drive.run(25.0)
    left = known.length - known.search(drive.scene.own.x, drive.scene.own.y)[0] - HALF_LENGTH
    assert drive.scene.own.speed < 0.05 and -0.3 < left < 1.0
    assert drive.driver.counts.lights >= 1
    drive.lights = all_lights("green")
    assert drive.run(12.0, until=lambda: bool(drive.driver.counts.ways))


def test_who_is_too_near_to_stop_as_the_light_changes_goes_on() -> None:
    known = lane_line(2)
    for light, left in (("yellow", 20.0), ("red", 10.0)):
        drive = Drive(body(known, known.length - left - HALF_LENGTH, 50 / KMH))
        drive.lights = all_lights(light)  # type: ignore[arg-type]
        drive.obey("set_speed", kmh=50)
        drive.run(3.0)
        assert drive.driver.counts.emergencies == 0 and drive.scene.own.speed * KMH > 49.0
