"""The interface that training and evaluation use for a world with instructions, and helper classes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.envs.judge import JudgedSimulation, Task
from rtcontrol.models.call import Call

__all__ = ["Demonstration", "JudgedSimulation", "Policy", "Skill", "StepAccumulator", "Task"]


class StepAccumulator:
    """Compute the number of physics steps of each tick without drift: for steps of 20 ms at 16 Hz, 3 or 4."""

    def __init__(self, step_s: float) -> None:
        self.step_ns = round(step_s * 1e9)
        self._remainder_ns = 0

    def steps(self, dt_ns: int) -> int:
        """Advance time by `dt_ns`; return the number of steps that are now due, and keep the remainder."""
        count, self._remainder_ns = divmod(self._remainder_ns + dt_ns, self.step_ns)
        return count

    def run(self, dt_ns: int, step: Callable[[], None], act: Callable[[], Any] | None = None, delay: int = 0) -> None:
        """Make the steps of a tick. Call `act` before the first step, or `delay` steps later; always call it once."""
        steps = self.steps(dt_ns)
        for index in range(max(steps, 1)):
            if act is not None and index == min(delay, max(steps - 1, 0)):
                act()
            if index < steps:
                step()

    def reset(self) -> None:
        """Set the remainder to zero, at the start of an episode."""
        self._remainder_ns = 0


Policy = Callable[[Sequence[tuple[str, str]]], Sequence[Call]]
"""A function that takes a pair (instruction, observation text) for each world and returns a call for each world."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A training example: the model's input at one tick, the expert's call for this input, and the goal."""

    instruction: str
    observation: str
    call: Call
    goal: Any = None


@dataclass(frozen=True)
class Skill:
    """A world for training and evaluation. `make` creates the world. `observe` and `parse_observation` convert an
    observation to text and back. `recognise` returns the goal of an instruction, or None. `expert` returns the correct
    call for an observation and a goal. `noop_call` has no effect; `any_call` returns a random call.

    `rtcontrol score` evaluates `goals`. `opposite` maps a goal to its opposite, whose instruction must make the agent
    fail the goal. `mixed` maps the title of a test to several goals, one for each seed in turn. `phrasings` maps a name
    to a function that returns sentences with their goals for each of `kinds`.
    """

    name: str
    make: Callable[..., JudgedSimulation]
    observe: Callable[[Mapping[str, Any]], str]
    parse_observation: Callable[[str], Mapping[str, float]]
    recognise: Callable[[str], Any]
    expert: Callable[[Mapping[str, float], Any], Call]
    noop_call: Call
    any_call: Callable[[random.Random], Call]
    goals: Sequence[Task] = ()
    opposite: Mapping[Any, Task] = field(default_factory=dict)
    mixed: Mapping[str, Sequence[Task]] = field(default_factory=dict)
    kinds: Sequence[Any] = ()
    phrasings: Mapping[str, Callable[[Any], Sequence[tuple[str, Any]]]] = field(default_factory=dict)

    def expert_policy(self, situations: Sequence[tuple[str, str]]) -> list[Call]:
        """Return the expert's calls for (instruction, observation text) pairs. Raises ValueError without a goal."""
        calls = []
        for instruction, observation in situations:
            goal = self.recognise(instruction)
            if goal is None:
                raise ValueError(f"the expert does not recognise a goal in the instruction {instruction!r}")
            calls.append(self.expert(self.parse_observation(observation), goal))
        return calls
