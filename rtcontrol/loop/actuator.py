"""Whatever reaches the environment goes through here, on a thread of its own: calls, safe calls, what it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from rtcontrol.agents import Agent
from rtcontrol.envs.base import Emission, Environment
from rtcontrol.loop.acting import Acting
from rtcontrol.loop.actuator_core import Action, ActuatorCore, Perform
from rtcontrol.loop.realtime import beside
from rtcontrol.loop.safe_calls import Attempt
from rtcontrol.records import Command

T = TypeVar("T")
JOIN_S, JOIN_UNTRIED_S = 1.0, 0.5  # the end waits so long for the thread: the latter where the safe calls are untried


class Actuator:
    """The thread, lock and bell around an `ActuatorCore`, which decides, and says what its attributes mean.

    A world that blocks stops this thread alone. Any thread may give orders: none blocks. `wake` tells of `effects`."""

    parting, over = property(attrgetter("core.parting")), property(attrgetter("core.over"))
    attempting, pending = property(attrgetter("core.attempting")), property(attrgetter("core.pending"))

    def __init__(self, agent: Agent, env: Environment, retry_ns: int | None, wake: Callable[[], None]) -> None:
        self._acting, self._wake = Acting(agent, env), wake
        self.core = ActuatorCore(agent.fallback.safe_calls, retry_ns)
        self.effects, self.doings, self._news = self.core.effects, self.core.doings, 0
        self._lock, self._bell, self._in_force = threading.Lock(), SimpleQueue[None](), threading.Event()
        self.thread = threading.Thread(target=self._work, name="actuator", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def arm(self, guard_ns: int | None, parting: Emission | None) -> None:
        """Expect the loop to call this again by `guard_ns` (None: no limit)."""
        with self._lock:
            first = self.core.guard_ns is None and guard_ns is not None
            self.core.arm(guard_ns, parting)
        if first:  # else the thread wakes by itself
            self._bell.put(None)

    def disarm(self) -> None:
        self.core.guard_ns = None  # nothing is expected of the loop until it arms again

    def execute(self, command: Command) -> Command | None:
        """Act as soon as the world lets it. Return the command that waited until now, which is dropped."""
        return self._order(self.core.execute, command)

    def withdraw(self, tick: int) -> bool:
        """Drop the command of `tick`; False if it does not wait any more."""
        return self._order(self.core.withdraw, tick)

    def bar(self, why: str | None) -> None:
        """Let no command act from now on, nor one that waits or is under way; None: those asked for from now on may."""
        self._order(self.core.bar, why, time.monotonic_ns())

    def safe(self, why: str, emission: Emission | None = None) -> Command | None:
        """Bring each safe call in force; `emission` is told before. Return the command that waited: it is dropped."""
        return self._order(self.core.demand, why, emission)

    def retry(self) -> bool:
        """A period of the world's time is over: try again what is not in force. False: all is."""
        return self._order(self.core.retry)

    def tell(self, emission: Emission) -> None:
        self._order(self.core.tell, emission)

    def instruct(self, text: str) -> None:
        self._order(self.core.instruct, text)

    def wait_safe(self, timeout_s: float) -> bool:
        """Whether what `safe` demanded is in force, or the world `over`, within the time."""
        return self._in_force.wait(timeout_s)

    def close(self) -> None:
        """Start nothing any more but what is wanted and was not tried: an interrupt comes here before it, and the world
        is closed next. A world that blocks is left to the process's end: the thread is a daemon."""
        self.core.closed = True
        self._bell.put(None)
        if self.thread.ident is not None:
            self.thread.join(JOIN_S if self._in_force.is_set() else JOIN_UNTRIED_S)

    def _order(self, order: Callable[..., T], *given: Any) -> T:
        with self._lock:
            result = order(*given)
            if self._in_force.is_set() and not self.core.safe.in_force:
                self._in_force.clear()
        self._bell.put(None)
        return result

    def _work(self) -> None:
        while not self.core.done:
            with suppress(Empty):
                self._bell.get(timeout=self.work())

    def work(self) -> float | None:
        """Do all that is to be done now. Return for how long nothing is, in s; None: until an order comes."""
        while True:
            now_ns = time.monotonic_ns()
            with self._lock:
                action = self.core.next(now_ns)
                wake_ns = self.core.wake_ns if action is None else None
            if action is not None:
                self._do(action)
            self._report()
            if action is None:
                return None if wake_ns is None else max(0.0, (wake_ns - now_ns) / 1e9)

    def _do(self, action: Action) -> None:
        if isinstance(action, Perform):
            self._perform(action.command)
        elif isinstance(action, Attempt):
            beside("safe-call", self._attempt, action) if action.threaded else self._attempt(action)
        else:
            error = self._acting.tell(action)
            with self._lock:
                self.core.sent(action, error)

    def _perform(self, command: Command) -> None:
        effect, error = self._acting.perform(command)
        with self._lock:  # a world elsewhere is told of no call after a bar
            if (emit := self.core.confirmation(command, effect)) is not None:
                error = self._acting.tell(emit)
            self.core.performed(command, effect, error, time.monotonic_ns())

    def _attempt(self, attempt: Attempt) -> None:
        result = self._acting.attempt(attempt)
        with self._lock:
            self.core.attempted(attempt, result, time.monotonic_ns())
        self._report()
        self._bell.put(None)

    def _report(self) -> None:
        core = self.core
        if core.safe.in_force and not self._in_force.is_set():
            with self._lock:
                if core.safe.in_force:
                    self._in_force.set()
        if core.news != self._news:
            self._news = core.news
            self._wake()
