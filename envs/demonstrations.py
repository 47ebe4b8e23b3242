"""Demonstrations of any skill: disturbed worlds under an expert's eye, flown by the expert or by the learner (DAgger).

S. Ross, G. Gordon, D. Bagnell: A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning (AISTATS 2011): the learner visits the states, the expert labels them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rtcontrol.models.call import Call

Policy = Callable[[Sequence[tuple[str, str]]], Sequence[Call]]
"""(instruction, observation text) of many worlds in lock step -> one call each."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demonstration: what the model would see, and what the expert would call, who knows the goal."""

    instruction: str
    observation: str
    call: Call
    goal: Any = None


class Curriculum(Protocol):
    """One world that is told, disturbed and restarted for ever."""

    rng: random.Random

    def look(self) -> Demonstration: ...

    def act(self, call: Call) -> None:
        """One tick under the call, or under whatever disturbs it."""


def interleave(
    lessons: Sequence[Curriculum], policy: Policy | None = None, beta: float = 0.0
) -> Iterator[Demonstration]:
    """Endless rows of all lessons, tick by tick.

    Without `policy` the expert acts. With one the model acts and each lesson's tick is the expert's with probability
    `beta`; the label is always the expert's.
    """
    while True:
        rows = [lesson.look() for lesson in lessons]
        calls = [row.call for row in rows]
        if policy is not None:
            own = policy([(row.instruction, row.observation) for row in rows])
            calls = [
                mine if lesson.rng.random() < beta else its
                for lesson, mine, its in zip(lessons, calls, own, strict=True)
            ]
        yield from rows
        for lesson, call in zip(lessons, calls, strict=True):
            lesson.act(call)
