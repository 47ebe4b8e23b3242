"""Play many lockstep episodes at once with one batched policy, and summarise the results."""

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
from rtcontrol.envs.skill import Policy, Skill, StepCarry, Task
from rtcontrol.envs.thread import shut
from rtcontrol.models.call import Call
from rtcontrol.models.intervals import wilson

# An episode lasts at most so many seconds of simulated time.
LONGEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """One episode to play: the instruction, the goal that is judged, and the seed."""

    instruction: str
    goal: Task
    seed: int


def cases(goal: Task, seeds: Iterable[int], instruction: str | None = None) -> list[Case]:
    """Return a case for each seed with the same goal, in canonical words or as `instruction`, which may name another
    goal."""
    text = goal.text() if instruction is None else instruction
    return [Case(text, goal, seed) for seed in seeds]


def evaluate(
    skill: Skill, policy: Policy, episodes: Sequence[Case], hz: float = 16.0, parallel: int = 32
) -> list[Episode]:
    """Play every case in lockstep and return its episode, in the order of the cases; `play` by a plain policy."""

    def decide(seats: Sequence[Seat]) -> Sequence[Call]:
        return policy([(seat.case.instruction, seat.seen) for seat in seats])

    return [done.episode for done in play(skill, decide, episodes, hz, parallel)]


class Seat:
    """A world that plays one case after another.

    `seen` is the text of the latest observation of the current case, `called` its executed calls (as in histories),
    `tick` its number of decisions, `kept` any data of the policy.
    """

    def __init__(self, skill: Skill) -> None:
        self._skill, self._sim = skill, skill.make()
        self._carry = StepCarry(self._sim.step_s)

    def take(self, index: int, case: Case) -> None:
        """Start to play a case."""
        self.index, self.case = index, case
        self.called: list[str] = []
        self.kept: dict[str, Any] = {}
        self.tick = 0
        self._sim.judge_by(case.goal)
        self._sim.reset(case.seed)
        self._carry.reset()
        self.look()

    def close(self) -> None:
        shut(self._sim)

    def look(self) -> None:
        self.seen = self._skill.observe(self._sim.observe())

    def _act(self, call: Call) -> None:
        run_to_completion(self._sim.bindings[call.name], **call.arguments)
        self.called.append(call.text())

    def advance(self, call: Call | None, period_ns: int, longest_s: float) -> Episode | None:
        """Run one tick; return the episode if this tick ended it, else None."""
        self.tick += 1
        self._carry.run(period_ns, self._sim.step, None if call is None else partial(self._act, call))
        episode = self._sim.outcome()
        if episode is None and self.tick * period_ns >= longest_s * 1e9:
            episode = Episode(self.case.seed, 0.0, False, longest_s, {"end": "no end"})
        if episode is None:
            self.look()
        return episode


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a case: the episode, with the data of the policy."""

    case: Case
    episode: Episode
    kept: Mapping[str, Any]


def play(
    skill: Skill,
    decide: Callable[[Sequence[Seat]], Sequence[Call | None]],
    episodes: Sequence[Case],
    hz: float = 16.0,
    parallel: int = 32,
    longest_s: float = LONGEST_S,
) -> list[Played]:
    """Play every case in lockstep, in the order of the cases.

    `parallel` worlds run at once and ask `decide` together at each tick; None leaves the call active. An episode
    depends on its case and the answers only, not on `parallel`; one that does not end within `longest_s` has failed.
    """
    waiting = iter(enumerate(episodes))
    played: dict[int, Played] = {}
    period_ns = round(1e9 / hz)
    with ExitStack() as closing:  # close all worlds, even if one of them fails
        active: list[Seat] = []
        for index, case in itertools.islice(waiting, parallel):
            active.append(seat := Seat(skill))
            closing.callback(seat.close)
            seat.take(index, case)
        while active:
            calls = decide(active)
            for seat, call in zip(tuple(active), calls, strict=True):
                episode = seat.advance(call, period_ns, longest_s)
                if episode is None:
                    continue
                played[seat.index] = Played(seat.case, episode, seat.kept)
                if (following := next(waiting, None)) is None:
                    active.remove(seat)
                else:
                    seat.take(*following)
    return [played[index] for index in range(len(episodes))]


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return counts and means over finished episodes: successes, their Wilson interval, return, seconds, ends."""
    successes = sum(bool(episode.success) for episode in episodes)
    low, high = wilson(successes, len(episodes))
    count = max(len(episodes), 1)
    return {
        "episodes": len(episodes),
        "successes": successes,
        "wilson_95": [round(low, 3), round(high, 3)],
        "mean_return": round(sum(episode.ret for episode in episodes) / count, 1),
        "mean_seconds": round(sum(episode.seconds for episode in episodes) / count, 2),
        "ends": dict(Counter(str(episode.detail.get("end")) for episode in episodes)),
    }
