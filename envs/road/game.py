"""The road as a `Simulation`: one car among others, and whatever the goal asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rtcontrol.agents.road.goals import RoadGoal
from rtcontrol.agents.road.phrasings import meant
from rtcontrol.agents.road.tools import agent
from rtcontrol.envs.base import Episode
from rtcontrol.envs.road.judge import RoadJudge
from rtcontrol.envs.road.world import DT, Road
from rtcontrol.models.errors import UserError


class RoadGame:
    """The `Simulation` of one drive.

    Lanes, limits, traffic and lights follow from the seed. The goal that an episode is judged by is read off the
    instruction, unless `goal` sets it for good. The return is the distance driven, km. `road` is open to whoever makes
    starts for training.
    """

    step_s = DT

    def __init__(self, goal: RoadGoal | str | None = None) -> None:
        if isinstance(goal, str):
            named = meant(goal)
            if named is None:
                raise UserError(
                    f"The road's option goal={goal!r} names no goal.",
                    "Write, say: drive at 50, keep in the left lane, follow the car ahead at 20 metres, "
                    "turn right at the next junction, overtake slow cars, stop the car.",
                )
            goal = named
        self._fixed = self._goal = goal
        self.road = Road()
        self._judge = RoadJudge(goal, self.road)
        self._seed = self._steps = 0
        self.bindings: Mapping[str, Callable[..., Any]] = {
            tool.name: partial(self._obey, tool.name) for tool in agent.tools
        }

    @property
    def goal(self) -> RoadGoal | None:
        """What the present episode is judged by."""
        return self._goal

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

    def judge_by(self, goal: RoadGoal | None) -> None:
        """Judge by `goal` from now on, whatever the instruction says; None: by the instructions still to come."""
        self._fixed = self._goal = goal
        self._judge.change(goal, self.road)

    def instruct(self, text: str) -> None:
        """Judge by what `text` asks for, from now on; an instruction that names no goal is not judged."""
        if self._fixed is None:
            self._goal = meant(text)
            self._judge.change(self._goal, self.road)
