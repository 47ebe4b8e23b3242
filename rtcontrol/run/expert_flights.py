"""An agent's own expert, tried for every goal and from several seeds: it may be wrong for one goal, or only later."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rtcontrol.agents import Agent, Goal
from rtcontrol.envs.stepping import StepCarry
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.run.skills import LIMIT_S, BlamedWorld, expert_call
from rtcontrol.run.users import OwnExpert

GOALS = 1_000  # of more, so many are tried
SEEDS = 3
ASKED_S, FLOWN_S, BESIDE_S = 3.0, 7.0, 3.0  # so long it is asked at beginnings, flies, and is asked beside others
ENDS = "Return True or False from outcome() by then: fit and score need each episode to end."
PERIOD_NS = round(1e9 / 16)


class ExpertFlights:
    """Of the `agent`, which has goals, in a `world` that is reset for each flight. `expert` is None where it has none;
    `wrong` is what was found, one for each line of the expert's; `ended` counts episodes."""

    def __init__(self, env: str, agent: Agent, world: BlamedWorld) -> None:
        assert agent.goals is not None, "experts are asked about goals"
        self.expert = None if agent.expert is None else OwnExpert(agent)
        self._env, self._world, self._until = env, world, 0.0
        self._goals = _in_turn(agent.goals.spread(GOALS))
        self._places: set[str] = set()
        self.wrong: list[UserError] = []
        self.ended = self.succeeded = 0
        self._asked: set[str] = set()
        self._stuck = False

    def goal(self, n: int) -> Goal:
        """One of them, in turn."""
        return self._goals[n % len(self._goals)]

    @property
    def kinds(self) -> list[Goal]:
        """One of each kind."""
        return [*{goal.kind: goal for goal in reversed(self._goals)}.values()]

    def ask(self, seen: dict[str, Any], goal: Goal) -> list[UserError]:
        """What is wrong with what the expert calls here, unless that is known. Nothing once its time is over."""
        if self.expert is None or time.monotonic() > self._until:
            return []
        before = len(self.wrong)
        self._call(seen, goal)
        return self.wrong[before:]

    def fly(self, seed: int, look: Callable[[dict[str, Any]], None]) -> None:
        """Ask it at the beginning of each episode, then fly them. `look` is shown what is seen."""
        each = [(one, goal) for one in range(seed, seed + SEEDS) for goal in self._goals]
        try:
            self._until = time.monotonic() + ASKED_S
            for one, goal in each:
                if self._over():
                    break
                self._call(self._begin(one, goal), goal)
                self._asked.add(goal.text())
            self._until = time.monotonic() + FLOWN_S
            for one, goal in each:
                if self._over():
                    break
                self._fly(one, goal, look)
        except UserError as error:  # the world's own
            self.wrong.append(error)
        self._until = time.monotonic() + BESIDE_S

    def told(self) -> str:
        """What was tried."""
        asked = f"its expert was asked about {len(self._asked)} of {len(self._goals)} goals from {SEEDS} seeds"
        flown = f"and flew {self.ended} of {SEEDS * len(self._goals)} episodes to their end"
        return f"{asked}, {flown} ({self.succeeded} succeeded)"

    def _over(self) -> bool:
        return self._stuck or time.monotonic() > self._until

    def _begin(self, seed: int, goal: Goal) -> dict[str, Any]:
        self._world.judge_by(goal)
        self._world.reset(seed)
        return dict(self._world.observe())

    def _fly(self, seed: int, goal: Goal, look: Callable[[dict[str, Any]], None]) -> None:
        world, carry, steps = self._world, StepCarry(self._world.step_s), 0
        seen = self._begin(seed, goal)
        while not self._over():
            look(seen)
            if (call := self._call(seen, goal)) is None:
                return
            world.bindings[call.name](**call.arguments)
            for _ in range(carry.steps(PERIOD_NS)):
                world.step()
                steps += 1
                if (ended := world.outcome()) is not None:
                    self.ended += 1
                    self.succeeded += bool(ended.success)
                    return
            seen = dict(world.observe())
            if steps * world.step_s >= LIMIT_S:
                self._stuck = True
                what = f'told "{goal.text()}" and flown by the expert, the episode of seed {seed} has not ended'
                after = f"after {LIMIT_S:g} s of its own time ({steps} steps)"
                self.wrong.append(UserError(f"The world {self._env}: {what} {after}.", ENDS))

    def _call(self, seen: dict[str, Any], goal: Goal) -> Call | None:
        """What the expert calls; None where that is wrong."""
        assert self.expert is not None, "only where there is one"
        try:
            return expert_call(self.expert, seen, goal)
        except UserError as error:
            place = getattr(error.__cause__, "place", "") or str(error)
            if place not in self._places:
                self._places.add(place)
                self.wrong.append(error)
            return None


def _in_turn(goals: list[Goal]) -> list[Goal]:
    """One of each kind, then the next of each."""
    seen = Counter[str]()
    turns = []
    for goal in goals:
        turns.append((seen[goal.kind], goal))
        seen[goal.kind] += 1
    return [goal for _, goal in sorted(turns, key=lambda one: one[0])]
