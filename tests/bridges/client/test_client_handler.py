"""Handlers of calls: a call that is too old does not start; a safe call does not wait, and is retried."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from rtcontrol_client import Declined, Standing
from rtcontrol_client.wire.messages import Bye, Executed, FunctionCall, Hello
from tests.bridges.client.worlds import OWN, STRAIGHT, environment, joined, until
from tests.conformance.check.stand import Stand

LONG_MS = 60_000.0


class Fleet:
    """A client that the scripted server has welcomed."""

    def __init__(self, stand: Stand, **options: Any) -> None:
        self.stand, self.client = stand, joined(stand, **options)
        stand.pump(0.1)

    def called(self, ttl_ms: float) -> int:
        """Send a fresh call for a new observation; return the call's tick."""
        self.client.observe(text="left 1")
        return self.stand.call(self.stand.observation(), ttl_ms=ttl_ms).tick

    def told(self, tick: int) -> Executed:
        said = [m for m in self.stand.heard if isinstance(m, Executed) and m.tick == tick]
        return said[0] if said else self.stand.expect(Executed, 10.0, f"executed for {tick}", lambda m: m.tick == tick)

    def end(self) -> None:
        self.client.close()


class Mute:
    def __str__(self) -> str:
        raise ZeroDivisionError


class Awaitable:
    def __await__(self) -> Any:
        raise AssertionError("it is awaited")


def raises(error: Exception) -> Any:
    def act(standing: Standing) -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "outcome", "error"),
    [
        (raises(Declined("beyond the fence")), "refused", "beyond the fence"),
        (raises(OSError("no motor")), "failed", "OSError: no motor"),
        (lambda standing: Awaitable(), "failed", "an awaitable"),
        (lambda standing: "\ud800", "executed", None),
        (lambda standing: Mute(), "executed", None),
    ],
    ids=["declines", "raises", "awaitable", "surrogate", "no words"],
)
def test_handler_result_is_reported_and_failure_makes_safe(
    stand: Stand, caplog: pytest.LogCaptureFixture, act: Any, outcome: str, error: str | None
) -> None:
    safe: list[Standing] = []
    fleet = Fleet(stand, on_call=act, on_safe=safe.append)
    told = fleet.told(fleet.called(LONG_MS))
    assert told.outcome == outcome and (error in str(told.error) if error else told.result)
    if outcome == "failed":
        until(lambda: [s.cause for s in safe] == ["failed"], f"{safe}")
    assert ("A handler failed." in caplog.text) == (outcome == "failed")
    fleet.end()


def test_on_safe_is_called_while_on_call_still_runs(stand: Stand) -> None:
    go, safe = threading.Event(), []
    fleet = Fleet(stand, on_call=lambda standing: go.wait(60), on_safe=safe.append)
    tick = fleet.called(ttl_ms=200.0)
    until(lambda: bool(safe), "safe waits for on_call")
    assert not go.is_set() and safe[0].status == "safe"
    go.set()
    assert fleet.told(tick).outcome == "executed"
    fleet.end()


LEFT, RIGHT, AHEAD = (FunctionCall(name="turn", arguments={"side": side}) for side in ("left", "right", "ahead"))


@pytest.mark.parametrize("overtaken", [False, True])
def test_several_calls_act_once_in_order_unless_superseded(stand: Stand, overtaken: bool) -> None:
    seen: list[Standing] = []
    go = threading.Event()

    def on_call(standing: Standing) -> str:
        seen.append(standing)
        go.wait(10)
        return f"did {standing.arguments.get('side')}"

    fleet = Fleet(stand, on_call=on_call, on_safe=print, calls_per_tick=3)
    fleet.client.observe(text="left 1")
    look, last = stand.observation(), AHEAD
    more = ((LEFT, True), (RIGHT, True), (AHEAD, False))
    first, *waiting = (stand.call(look, call=call, more=on, ttl_ms=LONG_MS).tick for call, on in more)
    until(lambda: bool(seen) and fleet.client.call().calls == (LEFT, RIGHT, AHEAD), "they were not heard")
    if overtaken:
        fleet.client.observe(text="left 2")
        newer, last = stand.call(stand.observation(), call=LEFT, ttl_ms=LONG_MS).tick, LEFT
        assert {fleet.told(tick).outcome for tick in waiting} == {"expired"}
        waiting = [newer]
    go.set()
    assert [fleet.told(tick).outcome for tick in (first, *waiting)] == ["executed"] * (1 + len(waiting))
    assert fleet.told(waiting[-1]).result == f"did {last.arguments['side']}"
    acted = [(LEFT,), (LEFT,)] if overtaken else [(LEFT,), (RIGHT,), (AHEAD,)]
    assert [standing.calls for standing in seen] == acted
    fleet.end()


# What a handler of the safe call is owed: also when the program ends, and when it raises.


ASIDE: dict[str, Any] = {"name": "steer", "arguments": {"angle": -10}}
# A program that ends as soon as a call is in force: its handler takes 0.3 s for that call, and as long for safe.
PROGRAM = f"""
import sys, time
from rtcontrol_client import Client

endpoint, how = sys.argv[1:]
begun = []


def act(standing):
    begun.append(standing.status)
    time.sleep(0.3)
    print(standing.status, flush=True)


client = Client.connect(endpoint, on_call=act, **{OWN!r})
client.observe(text="left 1")
while not begun:
    time.sleep(0.01)
if "close" in how:
    client.close()
"""


@pytest.mark.parametrize("how", ["close", "exit"])
def test_program_executes_safe_call_last(stand: Stand, how: str) -> None:
    command = [sys.executable, "-c", PROGRAM, stand.endpoint, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        stand.expect(Hello, 20.0, "hello")
        stand.welcome()
        stand.call(stand.observation(), ttl_ms=LONG_MS)
        stand.expect(Bye, 10.0, "bye")
        said, _ = process.communicate(timeout=20)
    assert said.split()[-1] == "safe"
    assert process.returncode == 0


def test_close_gives_up_hanging_handler_and_works_inside_handler(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    go, begun, closed = threading.Event(), threading.Event(), threading.Event()

    def on_call(standing: Standing) -> None:
        if standing.status == "safe":
            client.close()  # does not wait for itself
            closed.set()
        else:
            begun.set()
            go.wait(60)

    client = joined(stand, on_call=on_call)
    client.observe(text="left 1")
    stand.call(stand.observation(), ttl_ms=LONG_MS)
    assert begun.wait(10)
    client.close()
    assert not go.is_set() and "has not executed the safe call" in caplog.text
    go.set()
    assert closed.wait(10)


class Motors:
    """Two motors; the first one fails to stop the first `faults` times."""

    def __init__(self, faults: int, error: type[BaseException]) -> None:
        self.faults, self.error = faults, error
        self.seen: list[int] = []

    def act(self, standing: Standing) -> None:
        angle = standing.arguments["angle"]
        if standing.status == "safe":
            self.seen.append(angle)
            if angle == 0 and self.seen.count(0) <= self.faults:
                raise self.error("stuck")

    def options(self, how: str) -> dict[str, Any]:
        return {"safe_call": [STRAIGHT, ASIDE], "acknowledge": True, how: self.act}


@pytest.mark.parametrize(("how", "error"), [("on_safe", OSError), ("on_call", SystemExit)])
def test_raising_safe_call_is_retried_each_period(stand: Stand, how: str, error: type[BaseException]) -> None:
    motors = Motors(3, error)
    with joined(stand, **motors.options(how)) as client:
        client.observe(text="left 1")
        observed = stand.observation()
        tick = stand.call(observed, status="safe", call=None, cause="decide").tick
        told = stand.expect(Executed, 5.0, "executed")
        assert (told.tick, told.outcome, told.error) == (tick, "failed", f"{error.__name__}: stuck")
        until(lambda: len(motors.seen) == 5, "not tried again")
        stand.pump(0.3)
    # The other one is not done twice; what was reported once is not reported again.
    assert motors.seen == [0, -10, 0, 0, 0]
    assert sum(isinstance(m, Executed) for m in stand.heard) == 1


def test_raising_safe_call_is_not_retried_after_next_call(stand: Stand) -> None:
    motors = Motors(10**6, OSError)
    with joined(stand, ttl_ms=LONG_MS, **motors.options("on_call")) as client:
        client.observe(text="left 1")
        observed = stand.observation()
        stand.call(observed, status="safe", call=None, cause="decide")
        until(lambda: motors.seen.count(0) >= 2, "not tried again")
        stand.call(observed, ttl_ms=LONG_MS)
        until(lambda: client.call().status == "fresh", "no call")
        stand.pump(0.1)
        tried = len(motors.seen)
        stand.pump(0.4)
        assert len(motors.seen) == tried
        motors.faults = 0
    assert motors.seen[-2:] == [0, -10]  # at the end they are safe
