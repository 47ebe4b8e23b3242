"""A small machine that fails on demand: two actuators, a step that can hang, calls that can raise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rtcontrol.agents import Agent, Fallback, OneOf, Tools, tool
from rtcontrol.envs.base import Episode
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Call, Decision
from tests.helpers import processes as helpers
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

    def world(self) -> PacedEnvironment:
        return PacedEnvironment("arm", self)


@contextmanager
def held(world: PacedEnvironment) -> Iterator[None]:
    """Keep the thread of the world busy, as a hanging step would."""
    busy, free = threading.Event(), threading.Event()

    def hang() -> None:
        busy.set()
        free.wait()

    threading.Thread(target=world.thread.do, args=(hang,), daemon=True).start()
    assert busy.wait(10)
    try:
        yield
    finally:
        free.set()


def arm_agent(*calls: Call, hold_ms: float = 100.0) -> Agent:
    return Agent(
        name="arm",
        description="Moves.",
        tools=Tools([move, grip]),
        observe=lambda data: "-",
        instruction="go",
        fallback=Fallback(calls=calls or (STOP,), hold_ms=hold_ms),
        model="none",
    )


def on(request: DecisionRequest) -> Decision:
    """Always on."""
    return Decision(MOVE)


def failing(times: int, only: Call = STOP, error: type[BaseException] = OSError) -> Callable[[Call], None]:
    """Return a function for `Arm.refuse` that raises an error the first `times` times that `only` is called."""
    left = [times]

    def refuse(call: Call) -> None:
        if call == only and left[0] > 0:
            left[0] -= 1
            raise error("the drive does not answer")

    return refuse


HZ, PERIOD_S = 20, 0.05
until = partial(helpers.until, every=0.002)


def flight(out: Path, arm: Arm, decide: Any = on, *calls: Call, hold_ms: float = 100.0, **more: Any) -> Flight:
    settings = {"hz": HZ, "duration_s": None, "agent": arm_agent(*calls, hold_ms=hold_ms), **more}
    return Flight(out, decide, world=arm.world(), **settings)  # type: ignore[arg-type]


def beside(other: Callable[[], None], run: Callable[[], Any]) -> None:
    """Call `run` while another thread executes `other`."""
    thread = threading.Thread(target=other)
    thread.start()
    try:
        run()
    finally:
        thread.join()


def safes(flown: Flight, why: str = "miss") -> list[dict[str, Any]]:
    return [line for line in flown.lines if line.get("why") == why]
