"""What training and evaluation need to know of a world that can be told what to do: the lander, the paddle."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rtcontrol.envs.base import Simulation
from rtcontrol.envs.demonstrations import Policy
from rtcontrol.models.call import Call


class Task(Protocol):
    """A goal: its `text()` is the canonical instruction."""

    def text(self) -> str: ...


class Judged(Simulation, Protocol):
    """A simulation that can be told what to judge by, apart from what its controller is told."""

    def judge_by(self, goal: Any) -> None: ...


@dataclass(frozen=True)
class Skill:
    """`make` builds the world; `observe` and `read_back` turn an observation into text and back; `recognise` reads an
    instruction's goal (None: it names none plainly); `expert` is the scripted player; `still` the call that does
    nothing; `any_call` a random one.

    What it is scored by: `goals`, told canonically; the goal to tell instead (`opposite`), by what is judged; `mixed`,
    goals spread over the same seeds under one title; lists of `phrasings` by their names, each with its sentences for
    each of `kinds`.
    """

    name: str
    make: Callable[[], Judged]
    observe: Callable[[Mapping[str, Any]], str]
    read_back: Callable[[str], Mapping[str, float]]
    recognise: Callable[[str], Any]
    expert: Callable[[Mapping[str, float], Any], Call]
    still: Call
    any_call: Callable[[random.Random], Call]
    goals: Sequence[Task] = ()
    opposite: Mapping[Any, Task] = field(default_factory=dict)
    mixed: Mapping[str, Sequence[Task]] = field(default_factory=dict)
    kinds: Sequence[Any] = ()
    phrasings: Mapping[str, Callable[[Any], Sequence[tuple[str, Any]]]] = field(default_factory=dict)

    def expert_policy(self, situations: Sequence[tuple[str, str]]) -> list[Call]:
        """The expert on exactly what a model sees; ValueError for an instruction that names no goal plainly."""
        calls = []
        for instruction, observation in situations:
            goal = self.recognise(instruction)
            if goal is None:
                raise ValueError(f"the expert does not know what {instruction!r} asks for")
            calls.append(self.expert(self.read_back(observation), goal))
        return calls

    def no_op_policy(self, situations: Sequence[tuple[str, str]]) -> list[Call]:
        """Nothing, whatever happens."""
        return [self.still] * len(situations)

    def random_policy(self, seed: int = 0) -> Policy:
        """A random call at every tick."""
        rng = random.Random(seed)
        return lambda situations: [self.any_call(rng) for _ in situations]
