"""`python -m tests.bridges.carla.approaches [COUNT [model] [by-hand]]`: does who is called obey the lights?

COUNT cars come to a junction's light that will be red, as many to one that stays green, at 30 to 70 km/h, seeded and in
lockstep: the unmodified client, the bridge's world and driver, calls from the observation's text alone, by the scripted
driver or by the bundled model; by-hand: lights as a map's maker placed them. In the CARLA stand-in, which is not CARLA.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import carla

from rtcontrol.agents.road.goals import RoadGoal
from rtcontrol.agents.road.tools import agent, read_back
from rtcontrol.envs.road.skill import expert
from rtcontrol.models.call import Call
from rtcontrol_client.carla.control import Control
from rtcontrol_client.carla.driver import Driver, observe
from rtcontrol_client.carla.journal import Journal
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.lights import govern
from rtcontrol_client.carla.options import WorldOptions
from rtcontrol_client.carla.standin import lights
from rtcontrol_client.carla.standin.roads import ARMS, REACH_M, WIDTH_M, incoming
from rtcontrol_client.carla.standin.wire import RED
from rtcontrol_client.carla.world import CarlaWorld
from tests.bridges.carla.standin_process import StandIn

SPEEDS_KMH = (30, 40, 50, 60, 70)
NEAR_KMH = 50  # faster than this no driver comes to a junction
DT = 1 / 16
BY_HAND = "Standin2"
Decide = Callable[[str, RoadGoal], Call | None]


@dataclass(frozen=True)
class Approach:
    """A car in a lane (counted from the left), its front so far before the line at a speed, so many seconds after its
    arm's green began."""

    red: bool
    kmh: int
    lane: int
    metres: float
    phase_s: float


@dataclass
class Seen:
    """What became of it. `ran`: its front went over the line at red."""

    ran: bool = False
    passed: bool = False
    least_kmh: float = math.inf
    stood_m: float | None = None


def approaches(count: int, seed: int = 0) -> Iterator[Approach]:
    """As many of each kind, in turns."""
    dice = random.Random(seed)
    for number in range(2 * count):
        red, kmh, lane = number % 2 == 0, dice.choice(SPEEDS_KMH), dice.randint(1, 3)
        seconds = dice.uniform(4.5, 7.5)
        metres = seconds * min(kmh, NEAR_KMH) / 3.6
        # Red when it would be at the line, from the end of yellow on; or green until it is over it.
        at_line = dice.uniform(lights.GREEN_S + lights.YELLOW_S, lights.CYCLE_S)
        phase_s = at_line - seconds if red else dice.uniform(0.0, lights.GREEN_S - seconds - 1.0)
        yield Approach(red, kmh, lane, metres, phase_s)


def by_rule(text: str, goal: RoadGoal) -> Call | None:
    return expert(read_back(text), goal)


def by_model() -> Decide:
    from rtcontrol.models.decider import DeciderSpec

    decider = DeciderSpec(agent.model, tuple(agent.tools.openai()), history=agent.history).build()
    return lambda text, goal: decider.decide(text, goal.text()).call


class Crossing:
    """The stand-in with our car in it."""

    def __init__(self, world: CarlaWorld) -> None:
        self.world = world
        # From the junction's middle to the line: at most 3 m behind the middle of a trigger box (docs/bridges.md).
        hand = {arm: max(0.0, back - 3.0) for arm, (back, _, _) in lights.HAND.items()} if world.town == BY_HAND else {}
        self.line_m = {arm: REACH_M + hand.get(arm, 0.0) for arm in ARMS}
        self.road = TownRoad(world.map)
        govern(self.road, world.lamps())

    def drive(self, case: Approach, decide: Decide) -> Seen:
        arm = self._await(case.phase_s)
        self._put(case, arm)
        seen, goal = Seen(), RoadGoal("speed", case.kmh)
        driver = Driver(self.road, DT, **self.world.figures())
        left, stands_s = case.metres, 0.0
        for _ in range(round(40.0 / DT)):
            scene = self.world.scene()
            before, left = left, self._left(scene.own, arm)
            if before > 0.0 >= left:
                seen.passed = True
                seen.ran = lights.state(arm, self._now()) == RED
            kmh = 3.6 * scene.own.speed
            seen.least_kmh = min(seen.least_kmh, kmh)
            stands_s = stands_s + DT if kmh < 0.5 else 0.0
            # Whoever stands might still creep over the line.
            if left < -5.0 or stands_s >= 4.0:
                seen.stood_m = left if stands_s else None
                break
            call = decide(agent.observe(observe(self.road, scene, driver)), goal)
            if call is not None:
                driver.obey(call.name, call.arguments)
            self._step(driver.step(scene))
        return seen

    def _step(self, control: Control) -> None:
        self.world.control(control)
        self.world.tick()

    def _now(self) -> float:
        return float(self.world._world.get_snapshot().timestamp.elapsed_seconds)

    def _await(self, phase_s: float) -> str:
        """Until an arm's light is so far on in its cycle; that arm."""
        waits = {arm: (phase_s + lights.PHASE_S * n - self._now() - DT) % lights.CYCLE_S for n, arm in enumerate(ARMS)}
        arm = min(waits, key=lambda name: waits[name])
        for _ in range(round(waits[arm] / DT)):
            self._step(Control(brake=1.0))
        return arm

    def _put(self, case: Approach, arm: str) -> None:
        ego, angle = self.world.ego, ARMS[arm][2]
        away = self.line_m[arm] + case.metres + ego.bounding_box.extent.x
        # On the right of the arm's middle as seen by who comes in.
        beside = angle + math.pi / 2
        x = away * math.cos(angle) + WIDTH_M * (case.lane - 0.5) * math.cos(beside)
        y = away * math.sin(angle) + WIDTH_M * (case.lane - 0.5) * math.sin(beside)
        heading = angle + math.pi
        ego.set_transform(carla.Transform(carla.Location(x=x, y=-y), carla.Rotation(yaw=-math.degrees(heading))))
        speed = case.kmh / 3.6
        ego.set_target_velocity(carla.Vector3D(x=speed * math.cos(heading), y=-speed * math.sin(heading)))
        self._step(Control(throttle=0.1))
        lane = self.road.place(x, -y, 0.0, -math.degrees(heading))
        assert lane is not None and lane.lane.key[::2] == incoming(arm, case.lane), (lane, arm, case)

    def _left(self, own: Any, arm: str) -> float:
        """From the front bumper to the line."""
        angle = ARMS[arm][2]
        return float(own.x * math.cos(angle) - own.y * math.sin(angle)) - self.line_m[arm] - float(own.half_length_m)


@contextmanager
def crossing(town: str | None = None) -> Iterator[Crossing]:
    with tempfile.TemporaryDirectory() as folder, StandIn() as standin:
        path = Path(folder) / "journal.json"
        world = CarlaWorld(
            WorldOptions(port=standin.port, standin=True, wait_s=20.0, town=town),
            Journal(path, "127.0.0.1", standin.port),
        )
        world.open()
        try:
            yield Crossing(world)
        finally:
            world.close()


def table(count: int, decide: Decide = by_rule, seed: int = 0, town: str | None = None) -> dict[str, Any]:
    """The figures: reds and greens, run, passed without stopping."""
    found: Counter[str] = Counter()
    stood = []
    with crossing(town) as here:
        for case in approaches(count, seed):
            seen = here.drive(case, decide)
            found["reds" if case.red else "greens"] += 1
            found["reds_run"] += seen.ran
            found["greens_passed"] += not case.red and seen.passed and seen.least_kmh > 5.0
            if seen.ran:
                print("run:", case, seen, file=sys.stderr)
            if seen.stood_m is not None:
                stood.append(round(seen.stood_m, 1))
    names = ("reds", "reds_run", "greens", "greens_passed")
    told: dict[str, Any] = {"what": "the CARLA stand-in, not CARLA", **{name: found[name] for name in names}}
    return told | ({"stood_before_the_line_m": [min(stood), max(stood)]} if stood else {})


if __name__ == "__main__":
    asked = sys.argv[1:]
    calls, where = by_model() if "model" in asked else by_rule, BY_HAND if "by-hand" in asked else None
    print(json.dumps(table(int(asked[0]) if asked else 200, calls, town=where)))
