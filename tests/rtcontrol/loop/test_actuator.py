"""Tests of the actuator when something breaks, with real threads, a real paced world and real time. The rules
themselves are in test_actuator_core.py, by a fake clock."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arm import MOVE, STOP, Arm, arm_agent, flight
from cart import report_of

from rtcontrol.models.call import Call
from rtcontrol.records import ExitStarted
from tests.helpers.processes import until

pytestmark = pytest.mark.realtime
# What is active stays so: no miss of a busy machine's brings the safe call before the end does.
PATIENT = {"hold_ms": 60_000.0}


def test_interrupt_of_ending_run_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtcontrol.envs.thread.CLOSE_S", 0.0)
    arm = Arm()
    arm.refuse = lambda call: time.sleep(2.0) if call == STOP else None
    run = flight(tmp_path, arm, **PATIENT)

    def third() -> None:
        run.loop.stop("SIGTERM")
        raise KeyboardInterrupt

    run.after(5, lambda: setattr(run.world, "latest", third))
    began = []
    with pytest.raises(KeyboardInterrupt):
        try:
            run.run()
        finally:
            began.append(run.loop.state.t_end_ns)
    assert time.monotonic_ns() - began[0] < 1.5e9
    assert not run.loop.state.safe_active and run.lines[-1]["end"] == "SIGTERM"


@pytest.mark.parametrize("times", [3, 10**9])
@pytest.mark.parametrize("clock", ["wall", "lockstep"])
def test_step_that_raises_ends_run_with_safe_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str, times: int
) -> None:
    monkeypatch.setattr("rtcontrol.loop.loop.EXIT_WAIT_S", 1.0)
    arm, left = Arm(), [times]

    def broken() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise ZeroDivisionError("no wheel left")
        arm.acts.append((time.monotonic_ns(), Call("step")))

    run = flight(tmp_path, arm, clock=clock)
    run.after(4, lambda: setattr(arm, "on_step", broken))
    run.run()
    assert run.loop.ended_by == "error" and run.loop.state.failure is not None
    assert "ZeroDivisionError: no wheel left (tests/rtcontrol/loop/test_actuator.py:" in run.loop.state.failure
    ends = times == 3
    assert run.loop.state.safe_active is run.lines[-1]["safe_in_force"] is ends is not run.loop.state.unsafe
    attempts = [line for line in run.lines if line.get("why") == "exit"]
    assert [a["in_force"] for a in attempts] == [False] * (len(attempts) - 1) + [ends] and len(attempts) >= 3
    assert all("no wheel left" in a["error"] for a in attempts[:-1])
    assert [call.name for _, call in arm.acts if call != MOVE][-2:] == (["move", "step"] if ends else ["move"] * 2)
    assert run.lines[-1]["end"] == "error" and any("THE SAFE CALL IS NOT" in line for line in run.said) is not ends
    assert report_of(run.path)["errors"][0]["cause"] == "world"


def test_third_signal_during_hung_observe_brings_safe_call(tmp_path: Path) -> None:
    arm = Arm()
    seen, hangs = [0], threading.Event()

    def observe(data: Any) -> str:
        seen[0] += 1
        if seen[0] == 12:  # the first five are for the warm-up
            hangs.set()
            time.sleep(30.0)
        return "-"

    run = flight(tmp_path, arm, agent=replace(arm_agent(), observe=observe), **PATIENT)

    def leave() -> None:
        assert hangs.wait(10)
        time.sleep(0.05)  # a signal just before it sleeps would not wake it
        run.loop.stop("SIGTERM")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.run_beside(leave)
    assert arm.acts[-1][1] == STOP and run.loop.state.safe_active


@pytest.mark.parametrize("when", ["conclude", "leave", "wait_safe", "close", "process_events"])
def test_interrupt_of_shutdown_leaves_the_records_end(tmp_path: Path, when: str) -> None:
    arm = Arm()
    run = flight(tmp_path, arm, **PATIENT, duration_s=0.2)
    shell = run.loop.runner
    actuator, dispatch, process_events = shell.ports.actuator, shell.dispatch, shell.process_events

    def interrupted(*given: Any) -> bool:
        raise KeyboardInterrupt

    def dispatched(event: Any, *now_ns: Any) -> None:
        if isinstance(event, ExitStarted):
            shell.dispatch = dispatch  # type: ignore[method-assign]
            interrupted()
        dispatch(event, *now_ns)

    if when == "conclude":
        run.world.conclude = interrupted  # type: ignore[assignment]
    elif when == "leave":
        shell.dispatch = dispatched  # type: ignore[method-assign]
    elif when == "process_events":
        shell.process_events = lambda: interrupted() if run.loop.state.t_end_ns else process_events()  # type: ignore
    else:
        setattr(actuator, when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.lines[-1]["end"] == "duration"
    assert run.lines[-1]["safe_in_force"] is (when not in ("conclude", "leave", "wait_safe"))
    until(lambda: arm.acts[-1][1] == STOP)
