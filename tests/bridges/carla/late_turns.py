"""`python -m tests.bridges.carla.late_turns [TOWN.xodr]`: turns told early and late, at 20 to 90 km/h.

The unmodified client's map of a town (ours, or any OpenDRIVE file, such as CARLA's Town01), the bridge's driver on the
stand-in's bicycle. Every turn that is accepted must be taken within its lane, and none may be refused that the
published rule allows (docs/bridges.md).
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import carla

from rtcontrol_client.carla.hazards import BEND_DOWN
from rtcontrol_client.carla.intent import Turn
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.route import LaneLine
from tests.bridges.carla.drives import DT, KMH, Drive, body, road

TURNS: tuple[Turn, ...] = ("left", "right")
SPEEDS_KMH = (20, 30, 40, 50, 60, 70, 80, 90)
LEFT_M = (6.0, 100.0)


class Told(NamedTuple):
    """A turn told so many metres before the junction, at a speed: at most the one at which the driver would be there on
    the way that it is on."""

    lane: LaneLine
    turn: Turn
    left_m: float
    kmh: float


def ways(on: TownRoad) -> list[tuple[LaneLine, Turn]]:
    """Lanes that lead over a junction by a turn, where another way is there too. Under a bridge the flat bicycle would
    find itself on it: such lanes are left out."""
    found = []
    for lane in on.lanes():
        middle = body(lane, 0.5 * lane.length)
        placed = on.place(middle.x, middle.y, 0.0, middle.yaw_deg)
        if lane.junction or lane.length < 10.0 or placed is None or placed.lane is not lane:
            continue
        taken = {turn: on.route(lane, turn) for turn in ("straight", *TURNS)}
        found += [
            (lane, turn)
            for turn in TURNS
            if lane.after and lane.after[0].junction and taken[turn].taken == turn and taken["straight"].taken != turn
        ]
    return found


def told(on: TownRoad, count: int, seed: int = 0) -> Iterator[Told]:
    dice, known = random.Random(seed), ways(on)
    for _ in range(count):
        lane, turn = dice.choice(known)
        left = dice.uniform(LEFT_M[0], min(LEFT_M[1], lane.length - 2.0))
        route, s = on.route(lane, "straight"), lane.length - left
        most = min(math.sqrt(slow * slow + 2.0 * BEND_DOWN * ahead) for ahead, slow in route.bends(s, 150.0))
        yield Told(lane, turn, left, min(dice.choice(SPEEDS_KMH), most * KMH))


def drive(on: TownRoad, case: Told) -> tuple[str | None, bool, float]:
    """Why it was refused; whether the turn was taken; how far it was off the middle of its lane at most, m."""
    car = Drive(body(case.lane, case.lane.length - case.left_m, case.kmh / KMH), on=on)
    car.obey("set_speed", kmh=case.kmh)
    refused = car.obey("turn", at_next_junction=case.turn)
    off, behind_s = 0.0, 0.0
    for _ in range(round(60.0 / DT)):
        car.step()
        view = car.driver.view
        assert view is not None
        off = max(off, abs(view.lateral_m))
        behind_s += DT if car.driver.counts.ways else 0.0
        if behind_s > 1.5:
            break
    return refused, car.driver.counts.ways[case.turn] > 0, off


def table(on: TownRoad, count: int) -> dict[str, object]:
    found: Counter[str] = Counter()
    worst = 0.0
    for case in told(on, count):
        refused, taken, off = drive(on, case)
        found["refused" if refused else "accepted"] += 1
        found["taken"] += taken and refused is None
        found["off_the_road"] += off > 0.5 * case.lane.width
        worst = max(worst, off)
    names = ("accepted", "taken", "refused", "off_the_road")
    return {"turns_told": count, **{name: found[name] for name in names}, "farthest_off_m": round(worst, 2)}


if __name__ == "__main__":
    given = sys.argv[1:]
    town = TownRoad(carla.Map("town", Path(given[0]).read_text())) if given else road()
    print(json.dumps(table(town, int(given[1]) if len(given) > 1 else 400)))
