"""Which light governs our way, and how far its stop line is; and that whoever is called by it stops and goes by it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

from rtcontrol.bridges.carla.driver import Driver, observe  # noqa: E402
from rtcontrol.bridges.carla.intent import Turn  # noqa: E402
from rtcontrol.bridges.carla.lanes import TownRoad  # noqa: E402
from rtcontrol.bridges.carla.lights import Lamp, govern  # noqa: E402
from rtcontrol.bridges.carla.observing import LIGHT_SIGHT_M, Light, Scene, _light  # noqa: E402
from rtcontrol.bridges.carla.route import LaneLine, Route  # noqa: E402
from rtcontrol.bridges.carla.standin.roads import ARMS, LANES, REACH_M, incoming, signal_number  # noqa: E402
from rtcontrol.bridges.carla.standin.town import opendrive  # noqa: E402
from tests.bridges.carla.approaches import BY_HAND, by_rule, crossing, table  # noqa: E402
from tests.bridges.carla.drives import DT, HALF_LENGTH, KMH, Drive, all_lights, body, lane_line, road  # noqa: E402

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
