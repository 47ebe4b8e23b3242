"""A small machine that fails on demand: two actuators, a step that can hang, calls that can raise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from rtcontrol.agents import Agent, Fallback, OneOf, Tools, tool
from rtcontrol.envs.base import Episode
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Call, Decision
from tests.rtcontrol.cart import Flight

MOVE, STOP, OPEN = Call("move", {"speed": 1}), Call("move", {"speed": 0}), Call("grip", {"closed": 0})


@tool
def move(speed: Annotated[int, OneOf(0, 1)]) -> None:
    """Move on, or stop."""


@tool
def grip(closed: Annotated[int, OneOf(0, 1)]) -> None:
    """Close or open the gripper."""


class Arm:
    """A simulation with 100 steps a second. `acts` has the executed calls with their times. `refuse` is called before
    each call and may raise an error. From `hang()` to `let_go()` the current step does not end."""

    step_s = 0.01

    def __init__(self) -> None:
        self.acts: list[tuple[int, Call]] = []
        self.refuse: Callable[[Call], None] = lambda call: None
        self.on_step: Callable[[], None] = lambda: None
        self.bindings: Mapping[str, Callable[..., Any]] = {
            "move": lambda speed: self._act(Call("move", {"speed": speed})),
            "grip": lambda closed: self._act(Call("grip", {"closed": closed})),
        }
        self._free = threading.Event()
        self._free.set()
        self.hanging = threading.Event()

    def hang(self) -> None:
        """Make the next step hang, and return as soon as it does."""
        self.hanging.clear()
        self._free.clear()
        assert self.hanging.wait(10)

    def let_go(self) -> int:
        """Let the hanging step end, and return the time."""
        now = time.monotonic_ns()
        self._free.set()
        return now

    def _act(self, call: Call) -> None:
        self.refuse(call)
        self.acts.append((time.monotonic_ns(), call))

    def reset(self, seed: int) -> None:
        pass

    def step(self) -> None:
        self.on_step()
        if not self._free.is_set():
            self.hanging.set()
            self._free.wait()

    def observe(self) -> Mapping[str, Any]:
        return {}

    def outcome(self) -> Episode | None:
        return None

    def instruct(self, text: str) -> None:
        pass


def arm_agent(*calls: Call) -> Agent:
    return Agent(
        name="arm",
        description="Moves.",
        tools=Tools([move, grip]),
        observe=lambda data: "-",
        instruction="go",
        fallback=Fallback(calls=calls or (STOP,), hold_ms=100.0),
        model="none",
    )


def on(request: DecisionRequest) -> Decision:
    """Always on."""
    return Decision(MOVE)


def flight(out: Path, arm: Arm, decide: Any = on, **more: Any) -> Flight:
    settings = {"hz": 20, "duration_s": None, "agent": arm_agent(), **more}
    return Flight(out, decide, world=PacedEnvironment("arm", arm), **settings)
