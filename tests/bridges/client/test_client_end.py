"""What a handler of the safe call is owed: also when the program ends, and when it raises."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from rtcontrol.bridges.client import AsyncClient, Standing
from rtcontrol.bridges.client.link import Link
from rtcontrol.bridges.wire import Message
from rtcontrol.bridges.wire.messages import Bye, Executed, Hello
from tests.bridges.client.joining import joined
from tests.bridges.client.worlds import OWN, STRAIGHT, environment, until
from tests.conformance.check.stand import Stand

LEFT: dict[str, Any] = {"name": "steer", "arguments": {"angle": -10}}
LONG_MS = 60_000.0
# A program that ends as soon as a call is in force: its handler takes 0.3 s for that call, and as long for safe.
PROGRAM = f"""
import asyncio, sys, time
from rtcontrol.bridges.client import AsyncClient, Client

endpoint, how = sys.argv[1:]
begun = []


def act(standing):
    begun.append(standing.status)
    time.sleep(0.3)
    print(standing.status, flush=True)


async def act_too(standing):
    begun.append(standing.status)
    await asyncio.sleep(0.3)
    print(standing.status, flush=True)


def fly():
    client = Client.connect(endpoint, on_call=act, **{OWN!r})
    client.observe(text="left 1")
    while not begun:
        time.sleep(0.01)
    if "close" in how:
        client.close()


async def fly_too():
    client = await AsyncClient.connect(endpoint, on_call=act_too, **{OWN!r})
    client.observe(text="left 1")
    while not begun:
        await asyncio.sleep(0.01)
    if "close" in how:
        await client.close()


asyncio.run(fly_too()) if "async" in how else fly()
"""


@pytest.mark.parametrize("how", ["close", "exit", "async close", "async exit"])
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

    async def act_too(self, standing: Standing) -> None:
        self.act(standing)

    def options(self, how: str) -> dict[str, Any]:
        handler = {"on_safe": {"on_safe": self.act}, "on_call": {"on_call": self.act}}
        return {"safe_call": [STRAIGHT, LEFT], "acknowledge": True, **handler.get(how, {"on_call": self.act_too})}


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


def test_coroutine_of_the_safe_call_that_raises_or_is_cancelled_is_tried_again(stand: Stand) -> None:
    motors = Motors(2, asyncio.CancelledError)

    async def fly() -> None:
        async with await AsyncClient.connect(stand.endpoint, **{**OWN, **motors.options("async")}):
            pass

    thread = threading.Thread(target=lambda: asyncio.run(fly()), daemon=True)
    thread.start()
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    stand.pump(0.1)
    thread.join(10)
    assert motors.seen == [0, -10, 0, 0] and not thread.is_alive()


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
