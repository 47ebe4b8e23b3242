"""What the actuator is given, and what it says became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rtcontrol.envs.base import Effect, Emission
from rtcontrol.models.call import Call


@dataclass(slots=True, eq=False)
class Order:
    """A valid call to execute, its arguments converted to the annotated types; never begun after `not_after_ns`.

    `fresh` and `void` are what an emitting world is told: that it acted, or that its epoch was over. `asked_ns` is when
    its decision was asked for. It is the `Barrier` of its own call: what was shut once stays shut, whoever resumes.
    """

    tick: int
    call: Call
    epoch: int
    not_after_ns: int | None
    fresh: Emission | None = None
    void: Emission | None = None
    asked_ns: int = 0
    demand: int = 0
    shut: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of an order. `stands`: no safe call was demanded since it was given."""

    tick: int
    effect: Effect | Literal["failed"]
    began_ns: int
    ended_ns: int
    stands: bool
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SafeAttempt:
    """One try to bring one safe call (None: the agent has none) in force. `in_force`: now all that were demanded are;
    `acted`: False where the world is over and takes no calls; `over`: there, or where it makes no step with it."""

    call: Call | None
    why: str
    attempt: int
    ended_ns: int
    in_force: bool
    acted: bool
    error: BaseException | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """The environment raised over what it was told."""

    doing: str
    error: BaseException
