"""The road: its physics, its judge, its expert and its demonstrations."""

from __future__ import annotations

import itertools
import random

import pytest

from rtcontrol.agents.road.goals import KINDS, VALUES, RoadGoal, RoadKind
from rtcontrol.agents.road.tools import observe
from rtcontrol.bridges.carla.pace import KMH
from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.envs.road.skill import SKILL, random_call
from rtcontrol.envs.road.world import LENGTH, STEPS_A_SECOND, Car, Road

UNSEEN = range(5000, 5004)


def empty(lanes: int = 3, lane: int = 2, kmh: float = 50.0, junction_m: float = 5_000.0) -> Road:
    """A road without others, far from a junction."""
    road = Road(0)
    road.lanes = road.traffic.lanes = lanes
    road.car.lane, road.car.speed = lane, kmh / KMH
    road.limit = 60.0 / KMH
    road.traffic.cars = []
    road.junction = road.car.s + junction_m
    return road


def drive(road: Road, seconds: float) -> None:
    for _ in range(round(seconds * STEPS_A_SECOND)):
        road.step()
        road.traffic.cars = [car for car in road.traffic.cars if car.wish >= 0]


def test_the_same_seed_drives_the_same_way_and_another_seed_another() -> None:
    def trace(seed: int) -> list[str]:
        road, rng, seen = Road(seed), random.Random(1), []
        for _ in range(200):
            call = random_call(rng)
            road.obey(call.name, call.arguments)
            road.step()
            seen.append(observe(road.observe()))
        return seen

    assert trace(3) == trace(3)
    assert trace(3) != trace(4)


def test_it_reaches_the_called_speed_and_keeps_it() -> None:
    road = empty(kmh=30.0)
    road.obey("set_speed", {"kmh": 70})
    drive(road, 15)
    assert road.car.speed * KMH == pytest.approx(70, abs=1)


def test_it_stops_when_told_and_stands() -> None:
    road = empty(kmh=60.0)
    road.obey("stop", {})
    drive(road, 8)
    place = road.car.s
    drive(road, 5)
    assert road.car.speed == 0
    assert road.car.s == place


def test_a_lane_change_takes_three_seconds_and_one_lane_however_often_it_is_called() -> None:
    road = empty(lane=3)
    road.obey("set_speed", {"kmh": 50})
    for _ in range(10):
        road.obey("change_lane", {"direction": "left"})
        drive(road, 0.2)
    assert road.shift == -1
    drive(road, 1.5)
    assert (road.car.lane, road.shift) == (2, 0)


@pytest.mark.parametrize(
    ("lane", "direction", "kmh", "junction_m"),
    [(1, "left", 50, 500), (3, "right", 50, 500), (2, "left", 2, 500), (2, "left", 50, 10)],
    ids=["no lane left", "no lane right", "too slow", "junction near"],
)
def test_a_lane_change_that_cannot_be_is_refused(lane: int, direction: str, kmh: float, junction_m: float) -> None:
    road = empty(lane=lane, kmh=kmh, junction_m=junction_m)
    road.obey("change_lane", {"direction": direction})
    assert road.shift == 0
    assert road.refused == 1


def test_following_keeps_the_called_gap() -> None:
    road = empty(kmh=50)
    road.traffic.lead(road.car, 60.0, 40.0 / KMH)
    road.obey("follow", {"gap": 15})
    drive(road, 40)
    assert road.observe()["ahead_m"] == pytest.approx(15, abs=1.5)
    assert road.crashes == road.emergencies == 0


def test_the_last_net_brakes_for_a_car_that_set_speed_ignores() -> None:
    road = empty(kmh=60)
    road.traffic.lead(road.car, 70.0, 20.0 / KMH)
    road.obey("set_speed", {"kmh": 60})
    drive(road, 10)
    assert road.emergencies >= 1
    assert road.crashes == 0


def test_a_car_put_into_another_is_a_crash() -> None:
    road = empty()
    road.traffic.cars = [Car(road.car.s + LENGTH / 2, road.car.lane, road.car.speed, road.car.speed)]
    drive(road, 0.1)
    assert road.crashes == 1


@pytest.mark.parametrize(
    ("way", "lane", "taken", "lane_after"),
    [("left", 1, "left", 1), ("right", 3, "right", 3), ("straight", 2, "straight", 2), ("left", 3, "straight", 3)],
    ids=["left", "right", "straight", "left from the wrong lane"],
)
def test_a_junction_is_left_by_the_way_that_was_chosen_from_the_right_lane(
    way: str, lane: int, taken: str, lane_after: int
) -> None:
    road = empty(lane=lane, kmh=20, junction_m=30)
    road.obey("set_speed", {"kmh": 20})
    road.obey("turn", {"at_next_junction": way})
    while not road.ways:
        road.step()
    assert (road.ways, road.car.lane, road.intent.turn) == ([taken], lane_after, "straight")


def test_nobody_of_the_traffic_hits_another() -> None:
    for seed in range(6):
        road = Road(seed)
        road.obey("follow", {"gap": 20})
        for _ in range(60 * STEPS_A_SECOND):
            road.step()
            for a, b in itertools.combinations(road.traffic.cars, 2):
                assert a.lane != b.lane or abs(a.s - b.s) > 0.9 * LENGTH


@pytest.mark.parametrize("kind", KINDS)
def test_the_expert_does_what_it_is_told_and_doing_nothing_does_not(kind: RoadKind) -> None:
    goal = RoadGoal(kind, VALUES.get(kind, (None,))[0])
    told = cases(goal, UNSEEN)
    assert summary(evaluate(SKILL, SKILL.expert_policy, told))["successes"] >= 2
    if kind != "stop":
        assert summary(evaluate(SKILL, SKILL.no_op_policy, told))["successes"] <= 1


def test_a_red_light_passed_spoils_any_goal() -> None:
    sim = SKILL.make()
    sim.judge_by(RoadGoal("speed", 60))
    sim.reset(7)
    sim.bindings["set_speed"](kmh=60)
    for _ in range(120 * STEPS_A_SECOND):
        if (episode := sim.outcome()) is not None:
            break
        sim.road.traffic.cars.clear()  # type: ignore[attr-defined]
        if sim.road.light() in ("green", "yellow"):  # type: ignore[attr-defined]
            sim.road._phase += 0.5  # type: ignore[attr-defined]  # make each light red
        sim.road._lit = True  # type: ignore[attr-defined]
        sim.step()
        sim._judge._run_s = 0.0  # type: ignore[attr-defined]  # never done before the light
    assert episode is not None
    assert (episode.success, episode.detail["end"]) == (False, "red light")
