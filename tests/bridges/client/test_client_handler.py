"""Handlers of calls: what is too old is not begun; safe does not wait, and is tried until it is done."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from rtcontrol_client import Client, ClientError, Declined, Standing
from rtcontrol_client.client.link import Link
from rtcontrol_client.wire import Message
from rtcontrol_client.wire.messages import Bye, Executed, FunctionCall, Hello
from tests.bridges.client.worlds import OWN, STRAIGHT, environment, joined, until
from tests.conformance.check.stand import Stand

LONG_MS = 60_000.0


class Fleet:
    """A client that has been welcomed by the stand."""

    def __init__(self, stand: Stand, **options: Any) -> None:
        self.stand, self.client = stand, joined(stand, **options)
        stand.pump(0.1)

    def called(self, ttl_ms: float) -> int:
        """The tick of a fresh call for a new observation."""
        self.client.observe(text="left 1")
        return self.stand.call(self.stand.observation(), ttl_ms=ttl_ms).tick

    def told(self, tick: int) -> Executed:
        said = [m for m in self.stand.heard if isinstance(m, Executed) and m.tick == tick]
        return said[0] if said else self.stand.expect(Executed, 10.0, f"executed for {tick}", lambda m: m.tick == tick)

    def end(self) -> None:
        self.client.close()


def declining(standing: Standing) -> None:
    if standing.status != "safe":
        raise Declined("beyond the fence") if standing.arguments.get("side") != "right" else OSError("no motor")


def test_handler_that_declines_is_told_as_refused_and_one_that_throws_as_failed(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(stand, on_call=declining)
    told = fleet.told(fleet.called(ttl_ms=LONG_MS))
    assert (told.outcome, told.error, caplog.records) == ("refused", "beyond the fence", [])
    fleet.client.observe(text="left 1")
    right = FunctionCall(name="turn", arguments={"side": "right"})
    assert fleet.client.call().status == "fresh"
    told = fleet.told(stand.call(stand.observation(), call=right, ttl_ms=LONG_MS).tick)
    assert (told.outcome, told.error) == ("failed", "OSError: no motor")
    until(lambda: fleet.client.call().cause == "failed", "what was done before goes on")
    assert "A handler failed." in caplog.text and "no motor" in caplog.text
    fleet.end()


def test_handler_of_safe_is_called_while_on_call_has_not_returned(stand: Stand) -> None:
    go, safe = threading.Event(), []
    inside = threading.Event()

    def on_call(standing: Standing) -> None:
        inside.set()
        go.wait(60)

    fleet = Fleet(stand, on_call=on_call, on_safe=safe.append)
    tick = fleet.called(ttl_ms=200.0)
    assert inside.wait(10)
    until(lambda: bool(safe), "safe waits for on_call")
    assert not go.is_set()
    assert safe[0].status == "safe"
    go.set()
    assert fleet.told(tick).outcome == "executed"
    fleet.end()


async def coroutine(standing: Standing) -> None:
    pass


@pytest.mark.parametrize("name", ["on_call", "on_safe"])
def test_coroutine_function_where_nothing_would_await_it_is_told(name: str) -> None:
    with pytest.raises(ClientError, match=f"{name}= is a coroutine function"):
        Client.connect("tcp://127.0.0.1:9", **OWN, **{name: coroutine})


def test_plain_handler_that_gives_an_awaitable_has_failed(stand: Stand) -> None:
    class Awaitable:
        def __await__(self) -> Any:
            raise AssertionError("it is awaited")

    fleet = Fleet(stand, on_call=lambda standing: Awaitable(), on_safe=print)
    told = fleet.told(fleet.called(LONG_MS))
    assert told.outcome == "failed" and "nothing awaits" in str(told.error)
    fleet.end()


def test_on_safe_is_given_safe_at_once_where_on_call_fails(stand: Stand) -> None:
    safe: list[Standing] = []
    fleet = Fleet(stand, on_call=lambda standing: 1 / 0, on_safe=safe.append)
    assert fleet.told(fleet.called(LONG_MS)).outcome == "failed"
    until(lambda: [s.cause for s in safe] == ["failed"], f"{safe}")
    fleet.end()


# What a handler of the safe call is owed: also when the program ends, and when it raises.


LEFT: dict[str, Any] = {"name": "steer", "arguments": {"angle": -10}}
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
def test_last_thing_that_a_program_does_is_its_safe_call(stand: Stand, how: str) -> None:
    command = [sys.executable, "-c", PROGRAM, stand.endpoint, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        stand.expect(Hello, 20.0, "hello")
        stand.welcome()
        stand.call(stand.observation(), ttl_ms=LONG_MS)
        stand.expect(Bye, 10.0, "bye")
        said, _ = process.communicate(timeout=20)
    assert said.split()[-1] == "safe"
    assert process.returncode == 0


def test_close_gives_up_a_handler_that_does_not_return_and_one_may_close_in_it(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    go, begun = threading.Event(), threading.Event()

    def on_call(standing: Standing) -> None:
        if standing.status == "safe":
            client.close()  # does not wait for itself
        else:
            begun.set()
            go.wait(20)

    client = joined(stand, on_call=on_call)
    client.observe(text="left 1")
    stand.call(stand.observation(), ttl_ms=LONG_MS)
    assert begun.wait(10)
    began_s = time.monotonic()
    client.close()
    assert 0.9 < time.monotonic() - began_s < 4
    assert "has not carried out the safe call" in caplog.text
    go.set()
    began_s = time.monotonic()
    client.close()
    assert time.monotonic() - began_s < 0.9


class Motors:
    """Two, of which the first does not stop the first `faults` times that it shall."""

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
        return {"safe_call": [STRAIGHT, LEFT], "acknowledge": True, how: self.act}


@pytest.mark.parametrize("error", [OSError, SystemExit])
@pytest.mark.parametrize("how", ["on_safe", "on_call"])
def test_safe_call_that_raises_is_tried_again_each_period_until_it_returns(
    stand: Stand, how: str, error: type[BaseException]
) -> None:
    motors = Motors(3, error)
    with joined(stand, **motors.options(how)) as client:
        client.observe(text="left 1")
        observed = stand.observation()
        began_s = time.monotonic()
        tick = stand.call(observed, status="safe", call=None, cause="decide").tick
        told = stand.expect(Executed, 5.0, "executed")
        assert (told.tick, told.outcome, told.error) == (tick, "failed", f"{error.__name__}: stuck")
        until(lambda: len(motors.seen) == 5, "not tried again")
        assert time.monotonic() - began_s > 0.29  # three periods of 100 ms
        stand.pump(0.3)
    # The other one is not done twice; what was told once is not told again.
    assert motors.seen == [0, -10, 0, 0, 0]
    assert sum(isinstance(m, Executed) for m in stand.heard) == 1


@pytest.mark.parametrize("how", ["on_safe", "on_call"])
def test_safe_call_that_raises_is_tried_no_more_once_another_call_is_in_force(stand: Stand, how: str) -> None:
    motors = Motors(10**6, OSError)
    with joined(stand, **motors.options(how)) as client:
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


def test_socket_that_fails_ends_safe_though_no_goodbye_can_be_sent(stand: Stand) -> None:
    seen: list[str] = []
    client = joined(stand, ttl_ms=0.0, on_call=lambda standing: seen.append(standing.status))
    client.observe(text="left 1")
    stand.call(stand.observation(), ttl_ms=0.0)
    until(lambda: seen == ["fresh"], "no call")
    link = client._link

    def send(messages: list[Message]) -> None:
        link._socket.close(linger=0)
        Link._send(link, messages)

    link._send = send  # type: ignore[method-assign]
    client.observe(text="left 2")
    until(lambda: seen == ["fresh", "safe"], "the call stays in force")
    assert client.call().status == "safe" and "The client failed (ZMQError" in str(client.error)
    client.close()
