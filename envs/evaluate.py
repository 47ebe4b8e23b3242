"""How well a skill is mastered: many lockstep episodes at once under one batched policy, with the floors beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.envs.base import Episode
from rtcontrol.envs.demonstrations import Policy
from rtcontrol.envs.skill import Skill, Task
from rtcontrol.envs.stepping import StepCarry
from rtcontrol.models.call import Call


@dataclass(frozen=True, slots=True)
class Case:
    """One episode to play: what is told, what is judged, and the seed."""

    instruction: str
    goal: Task
    seed: int


def cases(goal: Task, seeds: Iterable[int], instruction: str | None = None) -> list[Case]:
    """The same goal on many seeds, told canonically or as `instruction` (told right, judged left, for instance)."""
    told = goal.text() if instruction is None else instruction
    return [Case(told, goal, seed) for seed in seeds]


def evaluate(
    skill: Skill,
    policy: Policy,
    episodes: Sequence[Case],
    hz: float = 16.0,
    parallel: int = 32,
    delay_steps: int = 0,
) -> list[Episode]:
    """Play every case in lockstep and return its episode, in the order of the cases.

    `parallel` worlds run at once and ask `policy` together at each tick; a call acts `delay_steps` physics steps
    after its observation. An episode depends on its case and the policy's answers only, not on `parallel`.
    """
    waiting = iter(enumerate(episodes))
    done: dict[int, Episode] = {}
    period_ns = round(1e9 / hz)
    active: list[_EvaluationWorld] = []
    for seat in (_EvaluationWorld(skill) for _ in range(min(parallel, len(episodes)))):
        index, case = next(waiting)
        seat.take(index, case)
        active.append(seat)
    while active:
        calls = policy([(seat.case.instruction, skill.observe(seat.sim.observe())) for seat in active])
        still: list[_EvaluationWorld] = []
        for seat, call in zip(active, calls, strict=True):
            episode = seat.play(call, period_ns, delay_steps)
            if episode is not None:
                done[seat.index] = episode
                following = next(waiting, None)
                if following is None:
                    continue
                seat.take(*following)
            still.append(seat)
        active = still
    return [done[index] for index in range(len(episodes))]


class _EvaluationWorld:
    """One world that plays case after case."""

    def __init__(self, skill: Skill) -> None:
        self.sim = skill.make()
        self._carry = StepCarry(self.sim.step_s)

    def take(self, index: int, case: Case) -> None:
        self.index, self.case = index, case
        self.sim.judge_by(case.goal)
        self.sim.reset(case.seed)
        self._carry.reset()

    def play(self, call: Call, period_ns: int, delay_steps: int) -> Episode | None:
        for step in range(self._carry.steps(period_ns)):
            if step == delay_steps:
                self.sim.bindings[call.name](**call.arguments)
            self.sim.step()
        return self.sim.outcome()


def wilson(successes: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval for a share (E. B. Wilson, 1927), by default at 95 %; (0, 1) for nothing counted."""
    if count == 0:
        return 0.0, 1.0
    share, spread = successes / count, z * z / count
    centre = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Counts and means over finished episodes: successes, their Wilson interval, return, seconds, how they ended."""
    successes = sum(bool(episode.success) for episode in episodes)
    low, high = wilson(successes, len(episodes))
    ends: dict[str, int] = {}
    for episode in episodes:
        end = str(episode.detail.get("end"))
        ends[end] = ends.get(end, 0) + 1
    count = max(len(episodes), 1)
    return {
        "episodes": len(episodes),
        "successes": successes,
        "wilson_95": [round(low, 3), round(high, 3)],
        "mean_return": round(sum(episode.ret for episode in episodes) / count, 1),
        "mean_seconds": round(sum(episode.seconds for episode in episodes) / count, 2),
        "ends": ends,
    }
