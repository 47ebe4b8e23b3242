"""The interface of a world with instructions for training and evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.envs.judge import Judged, Task
from rtcontrol.models.call import Call

__all__ = ["Demonstration", "Judged", "Policy", "Skill", "StepCarry", "Task"]


class StepCarry:
    """A counter of physics steps per tick without drift: at 16 Hz and 20 ms, 3, 3, 3, 3, 3, 3, 3 and then 4."""

    def __init__(self, step_s: float) -> None:
        self.step_ns = round(step_s * 1e9)
        self._left_ns = 0

    def steps(self, dt_ns: int) -> int:
        """Return the whole steps that are due after `dt_ns` more nanoseconds."""
        count, self._left_ns = divmod(self._left_ns + dt_ns, self.step_ns)
        return count

    def run(self, dt_ns: int, step: Callable[[], None], act: Callable[[], object] | None = None, late: int = 0) -> None:
        """Make the steps of a tick. `act` runs before the first step or `late` steps later, even if no step is due."""
        steps = self.steps(dt_ns)
        for index in range(max(steps, 1)):
            if act is not None and index == min(late, max(steps - 1, 0)):
                act()
            if index < steps:
                step()

    def reset(self) -> None:
        """Forget the remainder, so that a new episode starts on a tick."""
        self._left_ns = 0


Policy = Callable[[Sequence[tuple[str, str]]], Sequence[Call]]
"""(instruction, observation text) of many worlds in lock step -> one call each."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A training example: the model's input at one tick, and the call of the expert, which knows the goal."""

    instruction: str
    observation: str
    call: Call
    goal: Any = None


@dataclass(frozen=True)
class Skill:
    """A world for training and evaluation. `make` builds the world; `observe` and `read_back` convert an observation to
    text and back; `recognise` returns the goal of an instruction (None: no goal is named plainly); `expert` is the
    scripted player; `still` the call that does nothing; `any_call` a random one.

    For scores: `goals`; the goal to name instead (`opposite`), by the judged one; `mixed`, goals spread over the same
    seeds under one title; `phrasings`, lists of sentences for each of `kinds`.
    """

    name: str
    make: Callable[..., Judged]
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
        """Return the calls of the expert for a model's inputs. Raises ValueError for an instruction that names no
        goal."""
        calls = []
        for instruction, observation in situations:
            goal = self.recognise(instruction)
            if goal is None:
                raise ValueError(f"the expert does not know what {instruction!r} asks for")
            calls.append(self.expert(self.read_back(observation), goal))
        return calls
