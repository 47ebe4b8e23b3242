"""The actuator: a thread that executes calls in the environment, in the order that `ActuatorCore` decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Concatenate, Literal, ParamSpec, TypeVar

from rtcontrol.agents import Agent
from rtcontrol.agents.signatures import run_to_completion
from rtcontrol.envs.base import Effect, Emission, EmittingEnvironment, Environment, SteppingEnvironment
from rtcontrol.loop.actuator_core import Action, ActuatorCore, Attempt, AttemptResult, Emit
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Instruct

P = ParamSpec("P")
T = TypeVar("T")
JOIN_S, JOIN_UNTRIED_S = 1.0, 0.5  # `close` waits for the thread: JOIN_S if safe calls are active, else JOIN_UNTRIED_S


class CallExecutor:
    """An executor of calls. It uses the environment, or the agent's function for a tool that the environment lacks."""

    def __init__(self, agent: Agent, env: Environment) -> None:
        self.functions = {tool.name: tool.function for tool in agent.tools}
        self._convert, self._env, self._bindings = agent.tools.convert, env, env.bindings
        self.emit: Callable[[Emission], None] = env.emit if isinstance(env, EmittingEnvironment) else lambda _: None
        self._stepping = env if isinstance(env, SteppingEnvironment) else None

    def act(self, call: Call, command: Command | None = None) -> Effect:
        """Execute a call, and return its effect. A safe call has no `command`. Raises the errors of the call."""
        if call.name in self._bindings:
            epoch, not_after_ns = (None, None) if command is None else (command.epoch, command.not_after_ns)
            return self._env.execute(call, epoch, not_after_ns, command)
        if command is not None:
            if self._env.finished or ((newest := self._env.latest()) and newest.epoch != command.epoch):
                return "epoch_over"
            if command.not_after_ns is not None and time.monotonic_ns() > command.not_after_ns:
                return "too_late"
            if command.block_reason is not None:
                return "refused"
        run_to_completion(self.functions[call.name], **call.arguments)
        return "acted"

    def perform(self, command: Command) -> tuple[Effect | Literal["failed"], BaseException | None]:
        """Execute a command. Return its effect and its error."""
        try:
            return self.act(command.call, command), None
        except BaseException as error:  # even SystemExit must not end this thread
            return "failed", error

    def attempt(self, attempt: Attempt) -> AttemptResult:
        """Execute a safe call unless an earlier attempt acted, and check whether the world has stepped since then."""
        effect: Effect = "acted"
        acted_ns, call = attempt.acted_ns, attempt.safe.call
        stepped: bool | None = True
        try:
            if acted_ns is None and call is not None:
                effect = self.act(Call(call.name, self._convert(call)))
                acted_ns = time.monotonic_ns()
            if effect == "acted" and acted_ns is not None and self._stepping is not None:
                stepped = self._stepping.has_stepped(acted_ns)
        except BaseException as error:  # ActuatorCore will retry the call
            return AttemptResult(effect, acted_ns, stepped, error)
        return AttemptResult(effect, acted_ns, stepped)

    def send(self, job: Emit | Instruct) -> BaseException | None:
        """Send an emission or an instruction to the environment. Return the raised error, or None."""
        try:
            self._env.instruct(job.text) if isinstance(job, Instruct) else self.emit(job.emission)
        except BaseException as error:
            return error
        return None


class Actuator:
    """The thread that executes calls, with a lock around the `ActuatorCore` that decides which calls act.

    An environment that blocks delays only this thread. Any thread may call `call_core` and `arm_watchdog`, which do not
    block. The thread calls `wake` when there are new results in `core.effects`."""

    def __init__(self, agent: Agent, env: Environment, retry_ns: int | None, wake: Callable[[], None]) -> None:
        self._executor, self._wake = CallExecutor(agent, env), wake
        self.core = ActuatorCore(agent.fallback.safe_calls, retry_ns)
        self._handled_changes = 0
        self._lock, self._wakeups, self._active = threading.Lock(), SimpleQueue[None](), threading.Event()
        self.thread = threading.Thread(target=self._run_thread, name="actuator", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def arm_watchdog(self, guard_ns: int | None, guard_emission: Emission | None) -> None:
        """Set the watchdog, which demands the safe calls at `guard_ns` (None: never) unless it is set again before."""
        with self._lock:
            first = self.core.guard_ns is None and guard_ns is not None
            self.core.guard_ns, self.core.guard_emission = guard_ns, guard_emission
        if first:  # wake the thread, which waits without a timeout
            self._wakeups.put(None)

    def disarm_watchdog(self) -> None:
        self.core.guard_ns = None

    def call_core(self, order: Callable[Concatenate[ActuatorCore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the core, such as `ActuatorCore.execute`, under the lock. Return the method's result."""
        with self._lock:
            answer = order(self.core, *args, **kwargs)
            if self._active.is_set() and not self.core.safe.active:
                self._active.clear()
        self._wakeups.put(None)
        return answer

    def wait_safe(self, timeout_s: float) -> bool:
        """Wait until the demanded safe calls are active or the environment has ended. Return False after a timeout."""
        return self._active.wait(timeout_s)

    def close(self) -> None:
        """Stop the thread after one attempt of each demanded safe call. If the environment blocks, the thread continues
        as a daemon until the process ends."""
        self.core.closed = True
        self._wakeups.put(None)
        if self.thread.ident is not None:
            self.thread.join(JOIN_S if self._active.is_set() else JOIN_UNTRIED_S)

    def _run_thread(self) -> None:
        while not self.core.done:
            with suppress(Empty):
                self._wakeups.get(timeout=self.execute_due_actions())

    def execute_due_actions(self) -> float | None:
        """Execute all due actions. Return the seconds until the next action is due, or None if none is scheduled."""
        while True:
            now_ns = time.monotonic_ns()
            with self._lock:
                action = self.core.next_action(now_ns)
                wake_ns = self.core.wake_ns if action is None else None
            if action is not None:
                self._execute_action(action)
            self._report()
            if action is None:
                return None if wake_ns is None else max(0.0, (wake_ns - now_ns) / 1e9)

    def _execute_action(self, action: Action) -> None:
        if isinstance(action, Command):
            self._perform(action)
        elif not isinstance(action, Attempt):
            error = self._executor.send(action)
            with self._lock:
                self.core.record_send_result(action, error)
        elif action.threaded:
            try:
                threading.Thread(target=self._attempt, args=(action,), name="safe-call", daemon=True).start()
            except RuntimeError:  # no thread can be started
                self._attempt(action)
        else:
            self._attempt(action)

    def _perform(self, command: Command) -> None:
        effect, error = self._executor.perform(command)
        with self._lock:  # an operator must not block calls between `call_emission` and `send`
            if (emit := self.core.call_emission(command, effect)) is not None:
                error = self._executor.send(emit)
            self.core.record_command_result(command, effect, error, time.monotonic_ns())

    def _attempt(self, attempt: Attempt) -> None:
        result = self._executor.attempt(attempt)
        with self._lock:
            self.core.record_attempt_result(attempt, result, time.monotonic_ns())
        self._report()
        self._wakeups.put(None)

    def _report(self) -> None:
        core = self.core
        if core.safe.active and not self._active.is_set():
            with self._lock:
                if core.safe.active:
                    self._active.set()
        if core.change_count != self._handled_changes:
            self._handled_changes = core.change_count
            self._wake()
