"""The actuator's thread: carries out in an environment what its core decides. All of that may block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Concatenate, Literal, ParamSpec, TypeVar

from rtcontrol.agents import Agent
from rtcontrol.agents.signatures import carry_out
from rtcontrol.envs.base import Effect, Emission, Emitting, Environment, Stepping
from rtcontrol.loop.actuator_core import Action, ActuatorCore, Attempt, AttemptResult, Emit
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Instruct

P = ParamSpec("P")
T = TypeVar("T")
JOIN_S, JOIN_UNTRIED_S = 1.0, 0.5  # how long the end waits for the thread: the latter where the safe calls are untried


class Acting:
    """The environment, and the agent's functions for tools that it has no binding for."""

    def __init__(self, agent: Agent, env: Environment) -> None:
        self.functions = {tool.name: tool.function for tool in agent.tools}
        self._convert, self._env, self._bindings = agent.tools.convert, env, env.bindings
        self.emit: Callable[[Emission], None] = env.emit if isinstance(env, Emitting) else lambda emission: None
        self._stepping = env if isinstance(env, Stepping) else None

    def act(self, call: Call, command: Command | None = None) -> Effect:
        """Execute the call; without a command: a safe call, which nothing holds back. Raises what it raises."""
        if call.name in self._bindings:
            epoch, not_after_ns = (None, None) if command is None else (command.epoch, command.not_after_ns)
            return self._env.execute(call, epoch, not_after_ns, command)
        if command is not None:
            if self._env.finished or ((newest := self._env.latest()) and newest.epoch != command.epoch):
                return "epoch_over"
            if command.not_after_ns is not None and time.monotonic_ns() > command.not_after_ns:
                return "too_late"
            if command.shut is not None:
                return "refused"
        carry_out(self.functions[call.name], **call.arguments)
        return "acted"

    def perform(self, command: Command) -> tuple[Effect | Literal["failed"], BaseException | None]:
        """Execute a command. Return its effect, and what it raises."""
        try:
            return self.act(command.call, command), None
        except BaseException as error:  # also SystemExit: a tool must not end the one thread that can stop it
            return "failed", error

    def attempt(self, attempt: Attempt) -> AttemptResult:
        """Execute a safe call, and ask whether the world has stepped with it."""
        effect: Effect = "acted"
        acted_ns, call = attempt.acted_ns, attempt.safe.call
        stepped: bool | None = True
        try:
            if acted_ns is None and call is not None:
                effect = self.act(Call(call.name, self._convert(call)))
                acted_ns = time.monotonic_ns()
            if effect == "acted" and acted_ns is not None and self._stepping is not None:
                stepped = self._stepping.settle(acted_ns)
        except BaseException as error:  # it is tried again
            return AttemptResult(effect, acted_ns, stepped, error)
        return AttemptResult(effect, acted_ns, stepped)

    def send(self, job: Emit | Instruct) -> BaseException | None:
        """Send it to the world. Return what that raises."""
        try:
            self._env.instruct(job.text) if isinstance(job, Instruct) else self.emit(job.emission)
        except BaseException as error:
            return error
        return None


class Actuator:
    """The thread, lock and bell around an `ActuatorCore`, which decides.

    A world that blocks stops this thread alone. Any thread may give orders: none blocks. `wake` announces effects."""

    def __init__(self, agent: Agent, env: Environment, retry_ns: int | None, wake: Callable[[], None]) -> None:
        self._acting, self._wake = Acting(agent, env), wake
        self.core = ActuatorCore(agent.fallback.safe_calls, retry_ns)
        self._news = 0
        self._lock, self._bell, self._active = threading.Lock(), SimpleQueue[None](), threading.Event()
        self.thread = threading.Thread(target=self._work, name="actuator", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def arm(self, guard_ns: int | None, parting: Emission | None) -> None:
        """Expect the loop to call this again by `guard_ns` (None: no limit)."""
        with self._lock:
            first = self.core.guard_ns is None and guard_ns is not None
            self.core.guard_ns, self.core.parting = guard_ns, parting
        if first:  # else the thread wakes by itself
            self._bell.put(None)

    def disarm(self) -> None:
        self.core.guard_ns = None  # nothing is expected of the loop until it arms again

    def order(self, order: Callable[Concatenate[ActuatorCore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Give the core an order, such as `ActuatorCore.execute`, and return its answer."""
        with self._lock:
            answer = order(self.core, *args, **kwargs)
            if self._active.is_set() and not self.core.safe.active:
                self._active.clear()
        self._bell.put(None)
        return answer

    def wait_safe(self, timeout_s: float) -> bool:
        """Whether the safe calls that were demanded are active, or the world over, within the time."""
        return self._active.wait(timeout_s)

    def close(self) -> None:
        """Start nothing any more but what is wanted and was not tried: an interrupt comes here before it, and the world
        is closed next. A world that blocks is left to the process's end: the thread is a daemon."""
        self.core.closed = True
        self._bell.put(None)
        if self.thread.ident is not None:
            self.thread.join(JOIN_S if self._active.is_set() else JOIN_UNTRIED_S)

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
        if isinstance(action, Command):
            self._perform(action)
        elif not isinstance(action, Attempt):
            error = self._acting.send(action)
            with self._lock:
                self.core.sent(action, error)
        elif action.threaded:
            try:
                threading.Thread(target=self._attempt, args=(action,), name="safe-call", daemon=True).start()
            except RuntimeError:  # no thread can be had
                self._attempt(action)
        else:
            self._attempt(action)

    def _perform(self, command: Command) -> None:
        effect, error = self._acting.perform(command)
        with self._lock:  # a world elsewhere receives no call after a bar
            if (emit := self.core.confirmation(command, effect)) is not None:
                error = self._acting.send(emit)
            self.core.performed(command, effect, error, time.monotonic_ns())

    def _attempt(self, attempt: Attempt) -> None:
        result = self._acting.attempt(attempt)
        with self._lock:
            self.core.attempted(attempt, result, time.monotonic_ns())
        self._report()
        self._bell.put(None)

    def _report(self) -> None:
        core = self.core
        if core.safe.active and not self._active.is_set():
            with self._lock:
                if core.safe.active:
                    self._active.set()
        if core.news != self._news:
            self._news = core.news
            self._wake()
