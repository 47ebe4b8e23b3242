"""Handlers of calls: what is too old is not begun; safe does not wait, and is tried until it is done."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rtcontrol_client import AsyncClient, Client, ClientError, Declined, Standing
from rtcontrol_client.client.link import Link
from rtcontrol_client.wire import Message
from rtcontrol_client.wire.messages import Bye, Executed, FunctionCall, Hello, Observe
from tests.bridges.client.worlds import OWN, STRAIGHT, environment, joined, until
from tests.conformance.check.stand import Stand

LONG_MS = 60_000.0


class Fleet:
    """A client in a thread of its own: an AsyncClient with its event loop, or a Client."""

    def __init__(self, stand: Stand, cls: type[AsyncClient] | type[Client], **options: Any) -> None:
        self.stand = stand
        self.client: Any = None
        self.loop: Any = None
        self._block, self._blocked, self._go, self._over = (threading.Event() for _ in range(4))
        target = self._async if cls is AsyncClient else self._plain
        self._thread = threading.Thread(target=target, args=(options,), daemon=True)
        self._thread.start()
        stand.expect(Hello, 10.0, "hello")
        stand.welcome()
        stand.pump(0.1)
        until(lambda: self.client is not None, "not connected")

    def _plain(self, options: dict[str, Any]) -> None:
        self.client = Client.connect(self.stand.endpoint, **OWN, **options)
        self._over.wait(60)
        self.client.close()

    def _async(self, options: dict[str, Any]) -> None:
        async def fly() -> None:
            self.loop = asyncio.get_running_loop()
            async with await AsyncClient.connect(self.stand.endpoint, **OWN, **options) as client:
                self.client = client
                while not self._over.is_set():
                    if self._block.is_set():
                        self._blocked.set()
                        self._go.wait(60)
                    await asyncio.sleep(0.01)

        asyncio.run(fly())

    def block(self) -> None:
        """The event loop stands still from now on."""
        self._block.set()
        assert self._blocked.wait(10)

    def unblock(self) -> None:
        self._block.clear()
        self._go.set()

    def called(self, ttl_ms: float) -> int:
        """The tick of a fresh call for a new observation."""
        self.client.observe(text="left 1")
        return self.stand.call(self.stand.observation(), ttl_ms=ttl_ms).tick

    def told(self, tick: int) -> Executed:
        said = [m for m in self.stand.heard if isinstance(m, Executed) and m.tick == tick]
        return said[0] if said else self.stand.expect(Executed, 10.0, f"executed for {tick}", lambda m: m.tick == tick)

    def end(self) -> None:
        self._over.set()
        self.unblock()
        self._thread.join(10)
        assert not self._thread.is_alive()


def noting(seen: list[Standing]) -> Callable[[Standing], Coroutine[Any, Any, None]]:
    async def on_call(standing: Standing) -> None:
        seen.append(standing)

    return on_call


def test_call_that_ran_out_while_the_event_loop_was_busy_is_not_begun(stand: Stand) -> None:
    seen: list[Standing] = []
    fleet = Fleet(stand, AsyncClient, on_call=noting(seen))
    fleet.block()
    tick = fleet.called(ttl_ms=200.0)
    stand.pump(0.5)
    assert seen == []
    fleet.unblock()
    assert fleet.told(tick).outcome == "expired"
    until(lambda: bool(seen), "safe was not told")
    assert [s.status for s in seen] == ["safe"]
    fleet.end()


def declining(standing: Standing) -> None:
    if standing.status != "safe":
        raise Declined("beyond the fence") if standing.arguments.get("side") != "right" else OSError("no motor")


async def declining_too(standing: Standing) -> None:
    declining(standing)


@pytest.mark.parametrize(("cls", "on_call"), [(Client, declining), (AsyncClient, declining_too)])
def test_handler_that_declines_is_told_as_refused_and_one_that_throws_as_failed(
    stand: Stand, cls: type[Client] | type[AsyncClient], on_call: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(stand, cls, on_call=on_call)
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


def test_safe_cancels_the_coroutine_that_runs(stand: Stand) -> None:
    seen: list[str] = []

    async def on_call(standing: Standing) -> None:
        seen.append(standing.status)
        if standing.status != "safe":
            try:
                await asyncio.sleep(60)
            finally:
                seen.append("cancelled")

    fleet = Fleet(stand, AsyncClient, on_call=on_call)
    tick = fleet.called(ttl_ms=500.0)
    until(lambda: seen[:1] == ["fresh"], "not begun")
    told = fleet.told(tick)
    assert (told.outcome, told.error) == ("failed", "cancelled before its end")
    until(lambda: seen == ["fresh", "cancelled", "safe"], f"{seen}")
    fleet.end()


def test_coroutine_that_does_not_heed_its_cancellation_does_not_keep_safe_waiting(stand: Stand) -> None:
    seen: list[str] = []
    go = asyncio.Event()

    async def on_call(standing: Standing) -> None:
        seen.append(standing.status)
        while standing.status != "safe" and not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    fleet = Fleet(stand, AsyncClient, on_call=on_call)
    fleet.called(ttl_ms=200.0)
    stand.pump(0.3)
    until(lambda: seen == ["fresh", "safe"], f"{seen}")
    fleet.loop.call_soon_threadsafe(go.set)
    fleet.end()


def test_coroutine_that_resets_the_episode_goes_on_to_its_end(stand: Stand) -> None:
    seen: list[str] = []

    async def on_call(standing: Standing) -> None:
        if standing.status == "fresh":
            fleet.client.reset()
            seen.append("reset")
            await asyncio.sleep(0.2)
            seen.append("end")

    fleet = Fleet(stand, AsyncClient, on_call=on_call)
    fleet.called(LONG_MS)
    until(lambda: seen == ["reset", "end"], f"{seen}")
    fleet.end()


def test_coroutines_run_one_at_a_time_and_the_newest_call_follows(stand: Stand) -> None:
    seen: list[int | None] = []
    go = asyncio.Event()

    async def on_call(standing: Standing) -> None:
        seen.append(standing.tick)
        await go.wait()

    fleet = Fleet(stand, AsyncClient, on_call=on_call)
    first = fleet.called(LONG_MS)
    until(lambda: seen == [first], "not begun")
    second, third = fleet.called(LONG_MS), fleet.called(LONG_MS)
    stand.pump(0.2)
    assert seen == [first]
    fleet.loop.call_soon_threadsafe(go.set)
    assert [fleet.told(tick).outcome for tick in (first, second, third)] == ["executed", "expired", "executed"]
    fleet.end()


@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_handler_of_safe_is_called_while_a_plain_on_call_has_not_returned(stand: Stand, cls: Any) -> None:
    go, safe = threading.Event(), []
    inside = threading.Event()

    def on_call(standing: Standing) -> None:
        inside.set()
        go.wait(60)

    fleet = Fleet(stand, cls, on_call=on_call, on_safe=safe.append)
    tick = fleet.called(ttl_ms=200.0)
    assert inside.wait(10)
    until(lambda: bool(safe), "safe waits for on_call")
    assert not go.is_set()
    assert safe[0].status == "safe"
    go.set()
    assert fleet.told(tick).outcome == "executed"
    fleet.end()


def test_handler_of_safe_is_called_while_the_event_loop_is_blocked(stand: Stand) -> None:
    seen: list[Standing] = []
    safe: list[Standing] = []
    fleet = Fleet(stand, AsyncClient, on_call=noting(seen), on_safe=safe.append)
    fleet.called(LONG_MS)
    until(lambda: bool(seen), "not begun")
    fleet.block()
    tick = stand.call(
        next(m for m in reversed(stand.heard) if isinstance(m, Observe)), status="safe", call=None, cause="decide"
    ).tick
    stand.pump(0.1)
    until(lambda: bool(safe), "safe waits for the event loop")
    assert fleet.told(tick).outcome == "executed"
    fleet.end()
    assert [s.status for s in seen] == ["fresh"]


@pytest.mark.parametrize("name", ["on_call", "on_safe"])
def test_coroutine_function_where_nothing_would_await_it_is_told(name: str) -> None:
    with pytest.raises(ClientError, match=f"{name}= is a coroutine function"):
        Client.connect("tcp://127.0.0.1:9", **OWN, **{name: noting([])})


class Act:
    """Called as a coroutine function is, and none."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, standing: Standing) -> None:
        self.seen.append(standing.status)


def test_object_whose_call_is_a_coroutine_function_is_awaited(stand: Stand) -> None:
    act = Act()
    with pytest.raises(ClientError, match="on_call= is a coroutine function"):
        Client.connect("tcp://127.0.0.1:9", **OWN, on_call=act)
    fleet = Fleet(stand, AsyncClient, on_call=act)
    assert fleet.told(fleet.called(LONG_MS)).outcome == "executed"
    fleet.end()
    assert act.seen == ["fresh", "safe"]


def test_plain_handler_that_gives_an_awaitable_has_failed(stand: Stand) -> None:
    class Awaitable:
        def __await__(self) -> Any:
            raise AssertionError("it is awaited")

    fleet = Fleet(stand, Client, on_call=lambda standing: Awaitable(), on_safe=print)
    told = fleet.told(fleet.called(LONG_MS))
    assert told.outcome == "failed" and "nothing awaits" in str(told.error)
    fleet.end()


def test_on_safe_is_given_safe_at_once_where_on_call_fails(stand: Stand) -> None:
    safe: list[Standing] = []
    fleet = Fleet(stand, Client, on_call=lambda standing: 1 / 0, on_safe=safe.append)
    assert fleet.told(fleet.called(LONG_MS)).outcome == "failed"
    until(lambda: [s.cause for s in safe] == ["failed"], f"{safe}")
    fleet.end()


# What a handler of the safe call is owed: also when the program ends, and when it raises.


LEFT: dict[str, Any] = {"name": "steer", "arguments": {"angle": -10}}
# A program that ends as soon as a call is in force: its handler takes 0.3 s for that call, and as long for safe.
PROGRAM = f"""
import asyncio, sys, time
from rtcontrol_client import AsyncClient, Client

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
