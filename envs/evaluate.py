"""Run many episodes at the same time in lockstep with one batched policy, and summarise the results."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from rtcontrol.agents.signatures import run_to_completion
from rtcontrol.envs.base import Episode
from rtcontrol.envs.skill import Policy, Skill, StepAccumulator, Task
from rtcontrol.envs.thread import close_world
from rtcontrol.models.call import Call
from rtcontrol.models.intervals import wilson_interval

LONGEST_S = 600.0  # maximum duration of an episode in seconds of simulated time


@dataclass(frozen=True, slots=True)
class Case:
    """An episode to run: the agent's instruction, the goal by which the episode is judged, and the seed."""

    instruction: str
    goal: Task
    seed: int


def cases(goal: Task, seeds: Iterable[int], instruction: str | None = None) -> list[Case]:
    """Return a case for each seed. `goal` judges the case; the instruction is the goal's text by default."""
    text = goal.text() if instruction is None else instruction
    return [Case(text, goal, seed) for seed in seeds]


def evaluate(
    skill: Skill, policy: Policy, episodes: Sequence[Case], hz: float = 16.0, parallel: int = 32
) -> list[Episode]:
    """Run an episode for each case with `policy` and return the episodes in the order of the cases."""

    def decide(worlds: Sequence[EvaluationWorld]) -> Sequence[Call]:
        return policy([(world.case.instruction, world.observation) for world in worlds])

    return [done.episode for done in run_cases(skill, decide, episodes, hz, parallel)]


class EvaluationWorld:
    """A world that runs one case after another.

    In the current case, `observation` is the text of the latest observation, `history` the executed calls as texts, and
    `tick` the number of decisions so far. The policy may store any data in `policy_data`.
    """

    def __init__(self, skill: Skill) -> None:
        self._skill, self._simulation = skill, skill.make()
        self._accumulator = StepAccumulator(self._simulation.step_s)

    def start_case(self, index: int, case: Case) -> None:
        """Start the episode of a case; `index` is the case's position in the list."""
        self.index, self.case = index, case
        self.history: list[str] = []
        self.policy_data: dict[str, Any] = {}
        self.tick = 0
        self._simulation.judge_by(case.goal)
        self._simulation.reset(case.seed)
        self._accumulator.reset()
        self._observe()

    def close(self) -> None:
        close_world(self._simulation)

    def _observe(self) -> None:
        self.observation = self._skill.observe(self._simulation.observe())

    def _execute(self, call: Call) -> None:
        run_to_completion(self._simulation.bindings[call.name], **call.arguments)
        self.history.append(call.text())

    def advance(self, call: Call | None, period_ns: int, longest_s: float) -> Episode | None:
        """Run one tick with a call (None: no new call). Return the episode if it has finished, else None."""
        self.tick += 1
        self._accumulator.run(period_ns, self._simulation.step, None if call is None else partial(self._execute, call))
        episode = self._simulation.outcome()
        if episode is None and self.tick * period_ns >= longest_s * 1e9:
            episode = Episode(self.case.seed, 0.0, False, longest_s, {"end": "no end"})
        if episode is None:
            self._observe()
        return episode


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case: its finished episode, and the data that the policy stored in the case's world."""

    case: Case
    episode: Episode
    policy_data: Mapping[str, Any]


def run_cases(
    skill: Skill,
    decide: Callable[[Sequence[EvaluationWorld]], Sequence[Call | None]],
    episodes: Sequence[Case],
    hz: float = 16.0,
    parallel: int = 32,
    longest_s: float = LONGEST_S,
) -> list[CaseResult]:
    """Run an episode for each case, and return the results in the order of the cases.

    `parallel` worlds run at the same time, which does not affect the results. In each tick, `decide` returns a call for
    each running world, or None to keep its active call. An episode fails if it does not end within `longest_s`.
    """
    waiting = iter(enumerate(episodes))
    played: dict[int, CaseResult] = {}
    period_ns = round(1e9 / hz)
    with ExitStack() as closing:  # closes all worlds, even if one of them fails
        active: list[EvaluationWorld] = []
        for index, case in itertools.islice(waiting, parallel):
            active.append(world := EvaluationWorld(skill))
            closing.callback(world.close)
            world.start_case(index, case)
        while active:
            calls = decide(active)
            for world, call in zip(tuple(active), calls, strict=True):
                episode = world.advance(call, period_ns, longest_s)
                if episode is None:
                    continue
                played[world.index] = CaseResult(world.case, episode, world.policy_data)
                if (following := next(waiting, None)) is None:
                    active.remove(world)
                else:
                    world.start_case(*following)
    return [played[index] for index in range(len(episodes))]


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return statistics: successes with their Wilson interval, mean return, mean duration, and how episodes ended."""
    successes = sum(bool(episode.success) for episode in episodes)
    low, high = wilson_interval(successes, len(episodes))
    count = max(len(episodes), 1)
    return {
        "episodes": len(episodes),
        "successes": successes,
        "wilson_95": [round(low, 3), round(high, 3)],
        "mean_return": round(sum(episode.ret for episode in episodes) / count, 1),
        "mean_seconds": round(sum(episode.seconds for episode in episodes) / count, 2),
        "ends": dict(Counter(str(episode.detail.get("end")) for episode in episodes)),
    }
