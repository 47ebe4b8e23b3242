"""Tests of operator control: nothing acts during a pause or after a stop, and named tools wait for a yes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arm import MOVE, STOP, Arm, arm_agent, flight, on
from cart import Flight, cart_agent

from rtcontrol.agents import Agent, InvalidCall
from rtcontrol.loop import operator_control
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.rules import CallValidator, ConfidenceGate, check_names
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.records import LowConfidence
from rtcontrol.run import assembly
from rtcontrol.settings import parse_confidence
from tests.helpers.processes import until

PERIOD_S = 0.05
CLOSE = Call("grip", {"closed": 1})


def run_with_operator(
    out: Path, person: Callable[[Flight, Arm], Any], decide: Any = on, **more: Any
) -> tuple[Flight, Arm]:
    """Run the arm while a function acts as the operator. The run ends with this function."""
    arm = Arm()
    flown = flight(out, arm, decide, **{"hold_ms": 60_000.0, **more})
    return flown.run_beside(lambda: person(flown, arm)), arm


def acted(arm: Arm, call: Call, since_ns: int, until_ns: int) -> int:
    return sum(one == call and since_ns < t < until_ns for t, one in arm.acts)


def people(flight: Flight) -> list[str]:
    return [line["people"] for line in flight.lines if "people" in line]


def hanging() -> tuple[threading.Event, Agent]:
    """Return an agent whose code blocks the loop's thread until the event is set."""
    free = threading.Event()
    free.set()

    def observe(data: Any) -> str:
        free.wait(20)
        return "-"

    return free, replace(arm_agent(), observe=observe)


@pytest.mark.realtime
def test_calls_act_only_before_and_after_pause(tmp_path: Path) -> None:
    at: dict[str, int] = {}

    def person(flight: Flight, arm: Arm) -> None:
        assert "paused" in flight.loop.operator.execute_command("pause", "keyboard")
        at["paused"] = time.monotonic_ns()
        time.sleep(8 * PERIOD_S)
        at["resuming"] = time.monotonic_ns()
        flight.loop.operator.execute_command("resume", "page")
        until(lambda: acted(arm, MOVE, at["resuming"], time.monotonic_ns()) >= 3)

    flight, arm = run_with_operator(tmp_path, person)
    # One that was being executed at that instant ends before the safe call; after that, none.
    assert acted(arm, MOVE, at["paused"] + 5_000_000, at["resuming"]) == 0
    assert acted(arm, STOP, at["paused"] - 20_000_000, at["resuming"]) in (1, 2)
    held = [t for t in flight.ticks if t.get("why") == "paused"]
    assert len(held) >= 5 and all(t["kind"] == "held" and "cause" not in t for t in held)
    assert people(flight) == ["pause", "resume"]
    assert [line["by"] for line in flight.lines if "people" in line] == ["keyboard", "page"]
    assert any(line.get("safe") and line["why"] == "pause" and line["in_force"] for line in flight.lines)


@pytest.mark.realtime
def test_process_does_not_halt_without_safe_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_control, "HALT_WAIT_S", 0.2)
    halts: list[int] = []

    def refuse(call: Call) -> None:
        raise OSError("the drive does not answer")

    def person(flight: Flight, arm: Arm) -> None:
        arm.refuse = refuse
        flight.loop.suspend(lambda: halts.append(1))
        until(lambda: any("Not suspended" in line for line in flight.said))
        assert flight.loop.operator.state == "paused"
        arm.refuse = lambda call: None

    run_with_operator(tmp_path, person)
    assert not halts


@pytest.mark.realtime
@pytest.mark.parametrize("said", ["pause", "stop"])
def test_waiting_call_does_not_act_after_pause(tmp_path: Path, said: str) -> None:
    at: dict[str, int] = {}

    def person(flight: Flight, arm: Arm) -> None:
        arm.hang()
        time.sleep(2.5 * PERIOD_S)  # a call is in the world's hands now, and has its deadline before it
        flight.loop.operator.execute_command(said, "wire")
        at["said"] = time.monotonic_ns()
        arm.let_go()
        until(lambda: acted(arm, STOP, at["said"], time.monotonic_ns()) >= 1)
        time.sleep(4 * PERIOD_S)
        at["end"] = time.monotonic_ns()

    # A deadline that is far off: nothing but the person's word keeps the call from acting.
    flight, arm = run_with_operator(tmp_path, person, pipeline=20, deadline_ms=900.0)
    assert acted(arm, MOVE, at["said"], at["end"]) == 0
    assert flight.loop.state.safe_active


@pytest.mark.realtime
@pytest.mark.parametrize("said", ["pause", "stop"])
def test_safe_call_acts_while_the_loop_hangs(tmp_path: Path, said: str) -> None:
    free, agent = hanging()

    def person(flight: Flight, arm: Arm) -> None:
        free.clear()
        time.sleep(2 * PERIOD_S)  # the loop is in the agent's code now
        try:
            since = time.monotonic_ns()
            flight.loop.operator.execute_command(said, "keyboard")
            until(lambda: acted(arm, STOP, since, time.monotonic_ns()) >= 1, seconds=5)
        finally:
            free.set()

    run_with_operator(tmp_path, person, agent=agent)


def test_confidence_of_unknown_head_is_refused() -> None:
    assert parse_confidence("0.5") == 0.5
    assert parse_confidence("0.2, function=0.6,main=0.3") == {"": 0.2, "function": 0.6, "main": 0.3}
    for wrong in ("sure", "main=", "=0.3", "main=0.3,main=0.4"):
        with pytest.raises(UserError, match="min_confidence="):
            RunConfig(env="lander", min_confidence=wrong)  # type: ignore[arg-type]
    lander = assembly.load_agent("lander")
    check_names(RunConfig(env="lander", min_confidence={"function": 0.6, "main": 0.3}, confirm=("engines",)), lander)
    with pytest.raises(UserError, match="has no head wheel"):
        check_names(RunConfig(env="lander", min_confidence={"wheel": 0.6}), lander)
    with pytest.raises(UserError, match="not a tool"):
        check_names(RunConfig(env="lander", confirm=("launch",)), lander)
    with pytest.raises(UserError, match="give probabilities between 0 and 1"):
        RunConfig(env="lander", min_confidence={"main": 1.5})


def test_calls_beyond_the_history_are_refused() -> None:
    config = RunConfig(env="cart", calls_per_tick=4)
    check_names(config, cart_agent(history=3))
    with pytest.raises(UserError, match="contains only the last 2 calls") as caught:
        check_names(config, cart_agent(history=2))
    assert "history=3" in caught.value.remedy
    for wrong in (0, 8):
        with pytest.raises(UserError, match="calls_per_tick="):
            RunConfig(env="cart", calls_per_tick=wrong)


def test_head_below_its_floor_is_in_doubt() -> None:
    unsure = Decision(MOVE, {"function": 0.9, "arg1": 0.4})
    assert ConfidenceGate({"speed": 0.5}, arm_agent().tools).doubt(unsure) == LowConfidence("speed", 0.4, 0.5)
    assert ConfidenceGate({"": 0.5}, arm_agent().tools).doubt(unsure) == LowConfidence("arg1", 0.4, 0.5)
    assert ConfidenceGate({"function": 0.8, "arg1": 0.3}, arm_agent().tools).doubt(unsure) is None
    assert (
        ConfidenceGate({}, arm_agent().tools, null_is_doubt=True).doubt(Decision(None, {"function": 0.9})) is not None
    )


@pytest.mark.parametrize("speed", [7, True])  # True equals a legal one, but only in Python's eyes
def test_illegal_value_is_refused_every_time(speed: int) -> None:
    legal = CallValidator(arm_agent().tools)
    for _ in range(2):
        assert legal.check(MOVE) == (MOVE, "move(speed=1)")
        with pytest.raises(InvalidCall, match=f"(?i)speed.*{speed}"):
            legal.check(Call("move", {"speed": speed}))
