"""The road as a `Simulation`: one car among others, and whatever the goal asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rtcontrol.agents.road.goals import PHRASINGS, RoadGoal
from rtcontrol.agents.road.tools import agent
from rtcontrol.envs.base import Episode
from rtcontrol.envs.road.world import DT, Car, Road
from rtcontrol.envs.skill import GoalWorld
from rtcontrol.models.errors import UserError
from rtcontrol_client.carla.intent import KMH

LIMIT_S, FREE_S = 120.0, 60.0  # how long an episode lasts, with a goal and without
CRUISE_S, CRUISE_NEAR_KMH, CRUISE_MIN_KMH = 6.0, 4.0, 15.0
CLEAR_AHEAD_M = 60.0
LANE_S = 3.0
FOLLOW_S, FOLLOW_KMH = 4.0, 10.0
STOP_S, STOP_WITHIN_S = 2.0, 15.0


class RoadJudge:
    """Follows one episode step by step; counts begin with the reset or the latest change of the goal.

    A crash, a red light passed, or a corner taken too fast spoils any goal. drive, speed: 6 s within 4 km/h of the
    limit (the figure) with no junction near, or of the speed of a slower car that is followed within 60 m. lane: 3 s in
    it, driving. follow: 4 s within 30 % (at least 4 m) of the gap, behind a car that drives. turn: the next junction is
    left that way. overtake: a slower car that was ahead in our lane is behind. stop: stands for 2 s, within 15 s. All
    within 120 s. Without a goal an episode lasts 60 s, unjudged.
    """

    def __init__(self, goal: RoadGoal | None, road: Road) -> None:
        self.reset(goal, road)

    def reset(self, goal: RoadGoal | None, road: Road) -> None:
        self.goal = goal
        self.end: str | None = None
        self._success = False
        self.seconds = 0.0
        self._run_s = 0.0
        self._ways = len(road.ways)
        self._slower: list[Car] = []
        self._faults = _faults(road)

    def change(self, goal: RoadGoal | None, road: Road) -> None:
        """A new goal in flight: its clock starts now."""
        if self.end is None and goal != self.goal:
            self.reset(goal, road)

    @property
    def success(self) -> bool | None:
        """The verdict; None without a goal."""
        return None if self.goal is None else self._success

    def step(self, road: Road) -> None:
        """One physics step later; once `end` is set it stays: crash, red light, corner, done, time."""
        if self.end is not None:
            return
        self.seconds += DT
        faults = _faults(road)
        spoiled = next((name for name, now in faults.items() if now > self._faults[name]), None)
        if spoiled is not None:
            self.end = spoiled
        elif self.goal is None:
            self.end = "time" if self.seconds >= FREE_S else None
        elif self._done(self.goal, road):
            self.end, self._success = "done", True
        elif self.seconds >= (STOP_WITHIN_S if self.goal.kind == "stop" else LIMIT_S):
            self.end = "time"

    def _done(self, goal: RoadGoal, road: Road) -> bool:
        match goal.kind:
            case "turn":
                if len(road.ways) == self._ways:
                    return False
                if road.ways[-1] != goal.value:
                    self.end = "wrong way"
                    return False
                return True
            case "overtake":
                return self._overtook(road)
            case "stop":
                return self._lasts(road.car.speed < 0.3, STOP_S)
            case "lane":
                target = {"left": 1, "right": road.lanes}.get(str(goal.value), (road.lanes + 1) // 2)
                there = road.car.lane == target and not road.shift and road.junction_m() != 0
                return self._lasts(there and road.car.speed * KMH > FOLLOW_KMH, LANE_S)
            case "follow":
                ahead = road.neighbours(road.car.lane)[0]
                if ahead is None or ahead.speed * KMH < FOLLOW_KMH:
                    return self._lasts(False, FOLLOW_S)
                gap, asked = road.observe().get("ahead_m", 1e9), float(goal.value or 0)
                return self._lasts(abs(gap - asked) <= max(4.0, 0.3 * asked), FOLLOW_S)
            case _:
                return self._lasts(
                    _cruises(road, road.limit * KMH if goal.value is None else float(goal.value)), CRUISE_S
                )

    def _lasts(self, now: bool, seconds: float) -> bool:
        self._run_s = self._run_s + DT if now else 0.0
        return self._run_s >= seconds

    def _overtook(self, road: Road) -> bool:
        ahead = road.neighbours(road.car.lane)[0]
        if ahead is not None and ahead.s - road.car.s < CLEAR_AHEAD_M and ahead not in self._slower:
            self._slower.append(ahead)
        self._slower = [car for car in self._slower if abs(car.s - road.car.s) < 2 * CLEAR_AHEAD_M]
        return any(car.s < road.car.s - 5.0 for car in self._slower)

    def detail(self, road: Road) -> dict[str, Any]:
        """What an episode's record keeps: goal, how it ended, and what went wrong."""
        return {
            "goal": None if self.goal is None else self.goal.text(),
            "end": self.end,
            **_faults(road),
            "emergency brakes": road.emergencies,
            "refused calls": road.refused,
            "ways": list(road.ways),
        }


def _faults(road: Road) -> dict[str, int]:
    return {"crash": road.crashes, "red light": road.red_runs, "corner": road.fast_turns}


def _cruises(road: Road, kmh: float) -> bool:
    """At this speed on a free road, or behind a slower car; not near a junction, where slower is right."""
    ahead = road.neighbours(road.car.lane)[0]
    if ahead is not None and ahead.s - road.car.s < CLEAR_AHEAD_M and ahead.speed * KMH < kmh - CRUISE_NEAR_KMH:
        kmh = ahead.speed * KMH
    near = abs(road.car.speed * KMH - kmh) <= CRUISE_NEAR_KMH
    return near and road.car.speed * KMH > CRUISE_MIN_KMH and road.junction_m() is None


class RoadGame(GoalWorld[RoadGoal]):
    """The `Simulation` of one drive.

    Lanes, limits, traffic and lights follow from the seed. The return is the distance driven, km. `road` is open to
    whoever makes starts for training.
    """

    step_s = DT

    def __init__(self, goal: RoadGoal | str | None = None) -> None:
        hint = (
            "Write, say: drive at 50, keep in the left lane, follow the car ahead at 20 metres, "
            "turn right at the next junction, overtake slow cars, stop the car."
        )
        super().__init__(goal, PHRASINGS.meant, "road", hint)
        self.road = Road()
        self._judge = RoadJudge(self._goal, self.road)
        self._seed = self._steps = 0
        self.bindings: Mapping[str, Callable[..., Any]] = {
            tool.name: partial(self._obey, tool.name) for tool in agent.tools
        }

    def _obey(self, call: str, /, **arguments: Any) -> None:
        self.road.obey(call, arguments)

    def reset(self, seed: int) -> None:
        if seed < 0:
            raise UserError(f"The road has no seed {seed}.", "Give 0 or more.")
        self.road.reset(seed)
        self._seed, self._steps = seed, 0
        self._judge.reset(self._goal, self.road)

    def step(self) -> None:
        """One physics step; nothing once the episode is over."""
        if self._judge.end is not None:
            return
        self.road.step()
        self._steps += 1
        self._judge.step(self.road)

    def observe(self) -> dict[str, Any]:
        return self.road.observe()

    def outcome(self) -> Episode | None:
        """The finished episode, None while it runs. `seconds` is simulated time."""
        if self._judge.end is None:
            return None
        return Episode(
            self._seed,
            self.road.car.s / 1000,
            self._judge.success,
            self._steps * self.step_s,
            self._judge.detail(self.road),
        )

    def _goal_changed(self) -> None:
        self._judge.change(self._goal, self.road)
