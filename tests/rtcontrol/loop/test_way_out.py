"""The end of a run, where something holds it up: the safe call, signals, the record. Robust beside other work."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from arm import OPEN, STOP, Arm, failing, on
from armed import beside, flight, safes, until

from rtcontrol.loop import loop as loops
from rtcontrol.models.call import Call

# What is in force stays so: no miss of a busy machine's brings the safe call before the end does.
PATIENT = {"hold_ms": 60_000.0}


@pytest.mark.parametrize("calls", [(STOP,), (STOP, OPEN)])
def test_the_way_out_waits_until_the_safe_call_is_in_force(tmp_path: Path, calls: tuple[Call, ...]) -> None:
    arm = Arm()
    arm.refuse = failing(3, calls[-1])
    flown = flight(tmp_path, arm, on, *calls, **PATIENT, duration_s=0.3).run()
    assert flown.loop.safe_in_force and arm.acts[-1][1] == calls[-1]
    assert [a["attempt"] for a in safes(flown, "exit") if a["safe"] == calls[-1].text()] == [1, 2, 3, 4]
    assert flown.lines[-1]["safe_in_force"]


def test_a_safe_call_that_never_succeeds_is_told_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LEAVE_S", 0.3)
    arm = Arm()
    arm.refuse = failing(1000, error=SystemExit)
    flown = flight(tmp_path, arm, **PATIENT, duration_s=0.3).run()
    assert not flown.loop.safe_in_force and not flown.lines[-1]["safe_in_force"]
    assert any("NOT IN FORCE" in line for line in flown.said)
    assert len(safes(flown, "exit")) >= 3 and not any(a["in_force"] for a in safes(flown, "exit"))


@pytest.mark.parametrize("interrupts", [False, True])
def test_only_an_interrupt_on_the_way_out_leaves_a_slow_safe_call(tmp_path: Path, interrupts: bool) -> None:
    arm, ended = Arm(), threading.Event()
    arm.refuse = lambda call: ended.wait(20.0 if interrupts else 0.7) if call == STOP else None
    flown = flight(tmp_path, arm, **PATIENT)
    came: list[int] = []

    def handle(number: int, frame: object) -> None:
        came.append(number)
        if len(came) == 1:
            flown.loop.stop("SIGINT")
        elif len(came) == 3:
            raise KeyboardInterrupt

    def send() -> None:
        until(lambda: flown.loop.account.ticks >= 3)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: arm.tries[-1][1] == STOP)
        for number in (2, 3) if interrupts else (2,):
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda n=number: len(came) == n)  # two at once would be one

    before = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
            beside(send, flown.run)
    finally:
        ended.set()
        signal.signal(signal.SIGINT, before)
    assert flown.loop.safe_in_force is not interrupts
    assert flown.lines[-1]["end"] == "SIGINT" and flown.lines[-1]["safe_in_force"] is not interrupts
    if not interrupts:
        assert arm.acts[-1][1] == STOP


@pytest.mark.parametrize("when", ["leave", "wait_safe", "close", "collect_effects"])
def test_an_interrupt_at_any_point_of_the_way_out_leaves_the_records_end(tmp_path: Path, when: str) -> None:
    arm = Arm()
    flown = flight(tmp_path, arm, **PATIENT, duration_s=0.2)
    actuator, outcomes = flown.loop._ticks.actuator, flown.loop._outcomes

    def interrupted(*given: Any) -> bool:
        raise KeyboardInterrupt

    if when == "leave":
        plainly, outcomes.leave = outcomes.leave, lambda: setattr(outcomes, "leave", plainly) or interrupted()  # type: ignore[func-returns-value,method-assign]
    elif when == "collect_effects":
        flown.loop._ticks.collect_effects = (  # type: ignore[method-assign]
            lambda plain=flown.loop._ticks.collect_effects: interrupted() if flown.loop.t_end_ns else plain()
        )
    else:
        setattr(actuator, when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        flown.run()
    assert flown.lines[-1]["end"] == "duration"
    assert flown.lines[-1]["safe_in_force"] is (when not in ("leave", "wait_safe"))
    until(lambda: arm.acts[-1][1] == STOP)


def test_a_world_is_closed_after_an_interrupt_only_once_its_safe_call_was_tried(tmp_path: Path) -> None:
    arm = Arm()
    flown = flight(tmp_path, arm, **PATIENT, duration_s=0.2)
    actuator, plainly = flown.loop._ticks.actuator, flown.loop._ticks.actuator._bring_in_force

    def starved() -> None:
        time.sleep(0.2)  # as on a busy machine: its thread is woken late
        plainly()

    def interrupted(timeout_s: float) -> bool:
        raise KeyboardInterrupt

    actuator._bring_in_force, actuator.wait_safe = starved, interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        flown.run()
    assert arm.acts[-1][1] == STOP


@pytest.mark.parametrize("signalled", [False, True])
def test_what_was_due_while_the_loop_was_away_at_the_end_is_missed(tmp_path: Path, signalled: bool) -> None:
    hangs = threading.Event()

    def observe(data: Any) -> str:
        if flown.loop._outcomes.newest_k >= 5 and not hangs.is_set():
            hangs.set()
            time.sleep(0.8)
        return "-"

    arm = Arm()
    flown = flight(tmp_path, arm, **PATIENT, duration_s=None if signalled else 0.6)
    object.__setattr__(flown.agent, "observe", observe)
    beside(lambda: hangs.wait(20) and signalled and flown.loop.stop("SIGTERM"), flown.run)
    account = flown.loop.account
    assert account.skipped_releases >= 12 and account.releases >= 18
    last = flown.ticks[-1]
    assert last["kind"] == "miss" and last["skipped"] >= 12 and flown.lines[-1]["safe_in_force"]
    assert arm.acts[-1][1] == STOP
