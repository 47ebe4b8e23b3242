"""What training and evaluation need to know of a world that can be told what to do: the lander, the paddle."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from rtcontrol.envs.base import Simulation
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError

GoalT = TypeVar("GoalT")


class StepCarry:
    """At 16 Hz a 20 ms physics runs 3, 3, 3, 3, 3, 3, 3 and then 4 steps a tick: no drift, the same every time."""

    def __init__(self, step_s: float) -> None:
        self.step_ns = round(step_s * 1e9)
        self._left_ns = 0

    def steps(self, dt_ns: int) -> int:
        """Whole steps due after `dt_ns` more nanoseconds."""
        count, self._left_ns = divmod(self._left_ns + dt_ns, self.step_ns)
        return count

    def reset(self) -> None:
        """Forget the remainder: a new episode starts on a tick."""
        self._left_ns = 0


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


class Task(Protocol):
    """A goal: its `text()` is the canonical instruction."""

    def text(self) -> str: ...


class Judged(Simulation, Protocol):
    """A simulation that can be told what to judge by, apart from what its controller is told."""

    def judge_by(self, goal: Any) -> None: ...


class GoalWorld(Generic[GoalT]):
    """What bundled worlds share: the goal that an episode is judged by. It is read off the instruction by `meant`,
    unless `goal` sets it for good (told right, judged left); UserError with the `hint` for one that names none."""

    def __init__(self, goal: GoalT | str | None, meant: Callable[[str], GoalT | None], title: str, hint: str) -> None:
        if isinstance(goal, str):
            named = meant(goal)
            if named is None:
                raise UserError(f"The {title}'s option goal={goal!r} names no goal.", hint)
            goal = named
        self._fixed = self._goal = goal
        self._meant = meant

    @property
    def goal(self) -> GoalT | None:
        """What the present episode is judged by."""
        return self._goal

    def judge_by(self, goal: GoalT | None) -> None:
        """Judge by `goal` from now on, whatever the instruction says; None: by the instructions still to come."""
        self._fixed = self._goal = goal
        self._goal_changed()

    def instruct(self, text: str) -> None:
        """Judge by what `text` asks for, from now on; an instruction that names no goal is not judged."""
        if self._fixed is None:
            self._goal = self._meant(text)
            self._goal_changed()

    def _goal_changed(self) -> None:
        raise NotImplementedError


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
        """The expert on exactly what a model sees; ValueError for an instruction that names no goal plainly."""
        calls = []
        for instruction, observation in situations:
            goal = self.recognise(instruction)
            if goal is None:
                raise ValueError(f"the expert does not know what {instruction!r} asks for")
            calls.append(self.expert(self.read_back(observation), goal))
        return calls
