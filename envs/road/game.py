"""The driver's road as a `Simulation`, and the judge of its episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rtcontrol.agents.road.goals import PHRASINGS, RoadGoal
from rtcontrol.agents.road.tools import agent
from rtcontrol.envs.judge import GoalWorld, Judge
from rtcontrol.envs.road.world import DT, STEPS_A_SECOND, Car, Road
from rtcontrol_client.carla.intent import KMH

LIMIT_S, FREE_S = 120.0, 60.0  # seconds: limit of an episode with a goal, duration without a goal
CRUISE_S, CRUISE_NEAR_KMH, CRUISE_MIN_KMH = 6.0, 4.0, 15.0
CLEAR_AHEAD_M = 60.0
LANE_S = 3.0
FOLLOW_S, FOLLOW_KMH = 4.0, 10.0
STOP_S, STOP_WITHIN_S = 2.0, 15.0
FAULTS = ("crash", "red light", "corner")  # each of these makes any goal fail


class RoadJudge(Judge[RoadGoal]):
    """Judges an episode of the driver.

    A crash, a red light or a fast corner makes any goal fail, as does a time limit of 120 s (15 s for `stop`). `drive`
    and `speed` succeed after 6 s within 4 km/h of the limit or the value, or of the speed of a slower car within 60 m,
    with no junction near. `lane` succeeds after 3 s of driving in that lane, `follow` after 4 s with a gap to a moving
    car within 30 % (or 4 m) of the value, `turn` if our car leaves the next junction in that direction, `overtake` if
    our car passes a car that was ahead, `stop` after 2 s at rest. Without a goal, an episode lasts 60 s and is neither
    a success nor a failure.
    """

    steps_a_second = STEPS_A_SECOND

    def __init__(self, road: Road) -> None:
        self._road = road

    def reset(self, goal: RoadGoal | None) -> None:
        super().reset(goal)
        self._fulfilled_s = 0.0
        self._start_way_count = len(self._road.ways)
        self._slower_cars: list[Car] = []
        self._start_counts = self._road.counts.copy()

    def step(self) -> None:
        """Judge one physics step. May set `end` to crash, red light, corner, wrong way, done or time."""
        if self.end is not None:
            return
        self._steps += 1
        self.end = next((name for name in FAULTS if self._road.counts[name] > self._start_counts[name]), None)
        if self.end is not None:
            return
        if self.goal is None:
            self.end = "time" if self.seconds >= FREE_S else None
        elif self._is_done(self.goal):
            self.end, self._succeeded = "done", True
        elif self.seconds >= (STOP_WITHIN_S if self.goal.kind == "stop" else LIMIT_S):
            self.end = "time"

    def _is_done(self, goal: RoadGoal) -> bool:
        road = self._road
        match goal.kind:
            case "turn":
                return self._has_turned(goal)
            case "overtake":
                return self._has_overtaken()
            case "stop":
                return self._has_lasted(road.car.speed < 0.3, STOP_S)
            case "lane":
                target = {"left": 1, "right": road.lanes}.get(str(goal.value), (road.lanes + 1) // 2)
                there = road.car.lane == target and not road.shift and road.junction_m() != 0
                return self._has_lasted(there and road.car.speed * KMH > FOLLOW_KMH, LANE_S)
            case "follow":
                return self._has_lasted(_follows_at_gap(road, float(goal.value or 0)), FOLLOW_S)
            case _:
                kmh = road.limit * KMH if goal.value is None else float(goal.value)
                return self._has_lasted(_keeps_speed(road, kmh), CRUISE_S)

    def _has_lasted(self, fulfilled: bool, seconds: float) -> bool:
        """Return whether the condition has been fulfilled for `seconds` without interruption."""
        self._fulfilled_s = self._fulfilled_s + DT if fulfilled else 0.0
        return self._fulfilled_s >= seconds

    def _has_turned(self, goal: RoadGoal) -> bool:
        ways = self._road.ways
        if len(ways) == self._start_way_count:
            return False
        if ways[-1] != goal.value:
            self.end = "wrong way"
        return self.end is None

    def _has_overtaken(self) -> bool:
        road = self._road
        ahead = road.neighbours(road.car.lane)[0]
        if ahead is not None and ahead.s - road.car.s < CLEAR_AHEAD_M and ahead not in self._slower_cars:
            self._slower_cars.append(ahead)
        self._slower_cars = [car for car in self._slower_cars if abs(car.s - road.car.s) < 2 * CLEAR_AHEAD_M]
        return any(car.s < road.car.s - 5.0 for car in self._slower_cars)

    def detail(self) -> dict[str, Any]:
        counts = {name: self._road.counts[name] for name in (*FAULTS, "emergency brakes", "refused calls")}
        return {**super().detail(), **counts, "ways": list(self._road.ways)}


def _follows_at_gap(road: Road, gap_m: float) -> bool:
    """Return whether the car ahead is moving, and our gap to it is about `gap_m`."""
    ahead = road.neighbours(road.car.lane)[0]
    if ahead is None or ahead.speed * KMH < FOLLOW_KMH:
        return False
    return abs(road.observe().get("ahead_m", 1e9) - gap_m) <= max(4.0, 0.3 * gap_m)


def _keeps_speed(road: Road, kmh: float) -> bool:
    """Return whether our speed is about `kmh`, or about that of a slower car ahead, while no junction is near."""
    ahead = road.neighbours(road.car.lane)[0]
    if ahead is not None and ahead.s - road.car.s < CLEAR_AHEAD_M and ahead.speed * KMH < kmh - CRUISE_NEAR_KMH:
        kmh = ahead.speed * KMH
    near = abs(road.car.speed * KMH - kmh) <= CRUISE_NEAR_KMH
    return near and road.car.speed * KMH > CRUISE_MIN_KMH and road.junction_m() is None


class RoadGame(GoalWorld[RoadGoal]):
    """The driver's road as a simulation.

    The seed determines the road, its traffic and its lights. The return is the driven distance in km. `road` is public,
    so that training can set its state.
    """

    step_s = DT
    judge: RoadJudge

    def __init__(self, goal: RoadGoal | str | None = None) -> None:
        hint = (
            "Write, for example: drive at 50, keep in the left lane, follow the car ahead at 20 metres, "
            "turn right at the next junction, overtake slow cars, stop the car."
        )
        self.road = Road()
        super().__init__(RoadJudge(self.road), goal, PHRASINGS.goal_of, "road", hint)
        self.bindings: Mapping[str, Callable[..., Any]] = {
            tool.name: partial(self._obey_call, tool.name) for tool in agent.tools
        }

    def _obey_call(self, call: str, /, **arguments: Any) -> None:
        self.road.obey(call, arguments)

    def observe(self) -> dict[str, Any]:
        return self.road.observe()

    def _start(self, seed: int) -> None:
        self.road.reset(seed)

    def _advance(self) -> None:
        self.road.step()
        self.judge.step()

    def _sum_rewards(self) -> float:
        return self.road.car.s / 1000
