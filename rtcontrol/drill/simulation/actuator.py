"""Simulate the actuator's thread: the real `ActuatorCore` executes calls that take simulated time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rtcontrol.drill.simulation.referee import Referee
from rtcontrol.drill.simulation.timeline import S, Thread
from rtcontrol.drill.simulation.world import SimWorld
from rtcontrol.envs.base import Effect
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.actuator_core import Action, ActuatorCore, Attempt, AttemptResult
from rtcontrol.records import Command


class SimActuator(Actuator):
    """An actuator whose thread is simulated. `work` returns when a call starts, and is called again when the call ends.

    `busy_ns`: when the running call started, or 0. `referee` checks orders, calls and safe calls. `confirm`: names of
    the tools whose calls need approval."""

    def __init__(
        self, agent: Any, env: Any, wake: Callable[[], None], thread: Thread, referee: Referee, confirm: frozenset[str]
    ) -> None:
        super().__init__(agent, env, referee.retry_ns, wake)
        self.worker, self.time, self.referee, self.confirm = thread, thread.process.time, referee, confirm
        self._world = env if isinstance(env, SimWorld) else None
        self._wakeups: Any = SimpleNamespace(put=lambda item: self._schedule_turn())
        self._scheduled = self.ended = False
        self.busy_ns = self._timer_ns = 0

    def start(self) -> None:
        """Do nothing, because there is no real thread."""

    def call_core(self, order: Any, *args: Any, **kwargs: Any) -> Any:
        if order is ActuatorCore.execute:
            self.referee.check_order(args[0].tick, args[0].call.name in self.confirm)
        elif order is ActuatorCore.demand_safe_calls:
            self.referee.record_demand(args[0])
        return super().call_core(order, *args, **kwargs)

    def wait_safe(self, timeout_s: float) -> bool:
        self.time.run(self.time.now_ns + int(timeout_s * S), lambda: self.core.safe.active)
        return super().wait_safe(0)

    def close(self) -> None:
        self.core.closed = True
        self._schedule_turn()
        self.time.run(self.time.now_ns + S // 2, lambda: self.core.done and not self.busy_ns)
        self.ended = True

    def _schedule_turn(self) -> None:
        if not (self._scheduled or self.busy_ns or self.ended):
            self._scheduled = True
            self.worker.process.at(self.worker.next_run_ns(), self._take_turn)

    def _take_turn(self) -> None:
        self._scheduled = False
        self.worker.start_running()
        if not self.busy_ns and not self.ended:
            self.execute_due_actions()

    def execute_due_actions(self) -> float | None:
        core, time = self.core, self.time
        while not self.busy_ns and not core.done:
            action = core.next_action(time.now_ns)
            if action is None:
                self._set_timer()
                break
            self._execute_action(action)
        self._report()
        return None

    def _set_timer(self) -> None:
        """Set a timer for the core's `wake_ns`, unless an earlier timer is set."""
        at_ns = max(self.core.wake_ns or 0, self.time.now_ns)
        if self.core.wake_ns is not None and (not self._timer_ns or at_ns < self._timer_ns):
            self._timer_ns = at_ns
            self.worker.process.at(at_ns, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_ns = 0
        if self.core.wake_ns is not None and self.time.now_ns >= self.core.wake_ns:
            self._schedule_turn()
        else:
            self._set_timer()

    def _execute_action(self, action: Action) -> None:
        world = self._world
        if isinstance(action, Command):
            self.referee.check_start(action.tick)
            if world is None:
                super()._execute_action(action)
                return
            self.busy_ns = self.time.now_ns
            world.perform(action.call, action, lambda *end: self._finish_call(action, *end))
        elif not isinstance(action, Attempt):
            super()._execute_action(action)
        elif world is None:
            self._attempt(action)  # a remote safe call does not block, so it needs no thread
        else:
            self.referee.safes.append(self.time.now_ns)
            if not action.threaded:
                self.busy_ns = self.time.now_ns
            if action.acted_ns is not None or action.safe.call is None:
                self._finish_safe_call(action, "acted", None)
            else:
                world.perform(action.safe.call, None, lambda *end: self._finish_safe_call(action, *end))

    def _finish_call(self, command: Command, effect: Effect, error: BaseException | None) -> None:
        self.core.record_command_result(command, effect, error, self.time.now_ns)
        if effect == "acted" and error is None:
            self.referee.record_renewal()
        self._release_world()

    def _finish_safe_call(self, attempt: Attempt, effect: Effect, error: BaseException | None) -> None:
        if error is not None:
            self.referee.expect_retry()
        self.core.record_attempt_result(attempt, AttemptResult(effect, self.time.now_ns, True, error), self.time.now_ns)
        if attempt.threaded:
            self._report()
            self._schedule_turn()
        else:
            self._release_world()

    def _release_world(self) -> None:
        if self.busy_ns:
            self.worker.blocked_spans.append((self.busy_ns, self.time.now_ns))
        self.busy_ns = 0
        self.execute_due_actions()
