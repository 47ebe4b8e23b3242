"""Tests of the actuator's shell in an environment, without its thread, which calls `work` in a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from arm import MOVE, OPEN, STOP, arm_agent

from rtcontrol.agents import Agent, Fallback, Tools, tool
from rtcontrol.envs.base import Barrier, Effect, Emission, Observation
from rtcontrol.loop.actuator import Actuator, CallExecutor
from rtcontrol.loop.actuator_core import ActuatorCore, Attempt, SafeCall
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Completion, SafeAttempt

FOREVER = 1 << 62


class World:
    """An environment that logs all calls and emissions. Each call runs `does`."""

    name, finished, bindings = "elsewhere", False, {"move": print}

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.does: Callable[[], Any] = lambda: None
        self.stepped: bool | None = True

    def latest(self) -> Observation:
        return Observation(1, 1, 0, {})

    def execute(self, call: Call, epoch: int | None, not_after_ns: int | None, barrier: Barrier | None) -> Effect:
        self.heard.append((call, epoch, not_after_ns, barrier))
        self.does()
        return "acted"

    def instruct(self, text: str) -> None:
        self.heard.append(text)
        self.does()

    def has_stepped(self, since_ns: int) -> bool | None:
        return self.stepped

    def emit(self, emission: Emission) -> None:
        self.heard.append(emission.tick)


def nudging(does: Callable[[], Any] = lambda: None) -> tuple[Agent, list[str]]:
    """Return an agent whose only tool is a local function, and the times at which the function was called."""
    log: list[str] = []

    @tool
    def nudge() -> None:
        """Nudge."""
        log.append("nudge")
        return does()

    return replace(arm_agent(), tools=Tools([nudge]), fallback=Fallback(Call("nudge", {}))), log


def attempt(acted_ns: int | None = None, call: Call = STOP) -> Attempt:
    return Attempt(SafeCall(call), 1, "miss", 1, acted_ns, None, False)


@pytest.mark.parametrize(
    ("epoch", "not_after_ns", "shut", "effect"),
    [
        (1, None, None, "acted"),
        (1, FOREVER, None, "acted"),
        (1, 1, None, "too_late"),
        (2, None, None, "epoch_over"),
        (1, None, "paused", "refused"),
    ],
)
def test_local_function_runs_only_while_it_may(
    epoch: int, not_after_ns: int | None, shut: str | None, effect: str
) -> None:
    agent, log = nudging()
    acting = CallExecutor(agent, World())  # type: ignore[arg-type]
    command = Command(0, Call("nudge", {}), epoch, not_after_ns, block_reason=shut)
    assert acting.perform(command) == (effect, None)
    assert log == ["nudge"] * (effect == "acted")


def test_bound_tool_has_limits_a_safe_call_none() -> None:
    world = World()
    acting = CallExecutor(arm_agent(), world)  # type: ignore[arg-type]
    command = Command(0, MOVE, 3, 5)
    acting.perform(command)
    acting.attempt(attempt())
    assert world.heard == [(MOVE, 3, 5, command), (STOP, None, None, None)]


@pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt])
def test_tool_that_raises_anything_has_failed(error: type[BaseException]) -> None:
    def does() -> None:
        raise error("no")

    agent, _ = nudging(does)
    acting = CallExecutor(agent, World())  # type: ignore[arg-type]
    effect, raised = acting.perform(Command(0, Call("nudge", {}), 1, None))
    assert effect == "failed" and isinstance(raised, error)
    assert isinstance(acting.attempt(attempt(call=Call("nudge", {}))).error, error)


@pytest.mark.parametrize("stepped", [True, False, None])
def test_safe_call_that_acted_is_only_settled(stepped: bool | None) -> None:
    world = World()
    world.stepped = stepped
    acting = CallExecutor(arm_agent(), world)  # type: ignore[arg-type]
    first = acting.attempt(attempt())
    again = acting.attempt(attempt(first.acted_ns))
    assert first.acted_ns is not None and first == again and first.stepped is stepped
    assert len(world.heard) == 1


def shell(*calls: Call) -> tuple[Actuator, World, list[int]]:
    """Return an actuator whose thread is not started, its world, and a list with an entry for each wake of the loop."""
    world, woken = World(), list[int]()
    return Actuator(arm_agent(*calls), world, 50_000_000, lambda: woken.append(1)), world, woken  # type: ignore[arg-type]


def test_command_is_performed_emitted_and_reported_once() -> None:
    actuator, world, woken = shell()
    fresh = Emission(4, 1, 1, 0, "fresh", MOVE)
    actuator.call_core(ActuatorCore.instruct, "go")
    actuator.call_core(ActuatorCore.execute, Command(4, MOVE, 1, None, fresh))
    assert actuator.execute_due_actions() is None and [
        heard for heard in world.heard if not isinstance(heard, tuple)
    ] == ["go", 4]
    [done] = actuator.core.effects
    assert isinstance(done, Completion) and (done.tick, done.effect) == (4, "acted") and woken == [1]


def test_newer_demand_starts_the_safe_call_again() -> None:
    actuator, world, woken = shell()
    actuator.call_core(ActuatorCore.demand_safe_calls, "miss", Emission(1, 1, 1, 0, "safe"))
    assert actuator.core.state.attempting and actuator.core.state.pending and not actuator.wait_safe(0)
    actuator.execute_due_actions()
    assert actuator.wait_safe(0) and not actuator.core.state.pending and not actuator.core.safe.world_over and woken
    assert [type(heard) for heard in world.heard] == [int, tuple]
    actuator.call_core(ActuatorCore.demand_safe_calls, "exit", None)
    assert not actuator.wait_safe(0)
    actuator.close()
    actuator.execute_due_actions()
    assert actuator.wait_safe(0)
    assert [e.why for e in actuator.core.effects if isinstance(e, SafeAttempt)] == ["miss", "exit"]


def test_safe_calls_without_threads_run_on_the_same_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    actuator, world, _ = shell(STOP, OPEN)
    world.bindings = {"move": print, "grip": print}  # type: ignore[misc]
    actuator = Actuator(arm_agent(STOP, OPEN), world, None, lambda: None)  # type: ignore[arg-type]
    actuator.call_core(ActuatorCore.demand_safe_calls, "miss", None)
    actuator.execute_due_actions()
    assert [heard[0] for heard in world.heard] == [STOP, OPEN] and actuator.wait_safe(0)
