"""The client over sockets: against a scripted server, and against real ones that stop, die or are cut off."""

from __future__ import annotations

import runpy
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from rtcontrol_client import Client, Standing
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.options import Options
from rtcontrol_client.wire.messages import (
    Bye,
    ErrorMessage,
    Executed,
    FunctionCall,
    Hello,
    Instruct,
    Observe,
    Reset,
)
from tests.bridges.client.test_client_core import MS, S, call_message, look, welcome
from tests.bridges.client.test_client_handler import Fleet
from tests.bridges.client.worlds import OWN, ROOT, STRAIGHT, Process, Proxy, joined, until
from tests.conformance.check.stand import Stand

UNKNOWN = ErrorMessage(code="session", message="unknown", retryable=True)


def test_what_was_said_last_leaves_before_bye(stand: Stand) -> None:
    client = joined(stand)
    client.instruct("Go home.")
    client.reset(success=True, ret=3.5)
    client.close()
    assert stand.expect(Instruct, 5.0, "instruct").instruction == "Go home."
    ended = stand.expect(Reset, 5.0, "reset").ended
    assert ended is not None and ended.ret == 3.5
    assert stand.expect(Bye, 5.0, "bye").session == stand.token


@pytest.mark.parametrize("result", ["\ud800", type("Mute", (), {"__str__": lambda self: 1 / 0})()])
def test_result_that_has_no_words_does_not_end_the_handler(stand: Stand, result: Any) -> None:
    with joined(stand, on_call=lambda standing: result) as client:
        for _ in range(2):
            client.observe(text="left 40")
            stand.call(stand.observation())
            told = stand.expect(Executed, 5.0, "executed")
            assert told.outcome == "executed" and told.result


def test_flood_of_calls_does_not_keep_what_is_in_force_from_ending(stand: Stand) -> None:
    with joined(stand) as client:
        client.observe(text="left 1")
        observed = stand.observation()
        stand.call(observed)
        for tick in range(20_000):
            stand.call(observed, status="held", tick=tick + 2, cause="decide")
            if client.call().cause == "expired":
                break
        assert client.call().cause == "expired"


def test_lockstep_observation_without_answer_is_safe_and_not_the_call_before(stand: Stand) -> None:
    with joined(stand, pacing="client", ttl_ms=0) as client:
        answer = client.decide("left 1", timeout=0.2)
        assert (answer.status, answer.cause, answer.arguments) == ("safe", "no_answer", STRAIGHT["arguments"])


def test_example_of_the_documentation_executes_all_of_several_safe_calls(stand: Stand) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "own_loop.py"))
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(example["main"], stand.endpoint, 0.6)
        assert stand.expect(Hello, 10.0, "hello").model == "random"  # a server without --model has none for its tools
        stand.welcome()
        pushes = [FunctionCall(name="push", arguments={"force": force}) for force in (1, 2)]
        stand.call(stand.expect(Observe, 5.0, "observation"), status="safe", call=pushes[0], calls=pushes)
        stand.expect(Bye, 10.0, "bye")
        ended.result(10)
    speeds = [float(m.text.split()[-1]) for m in stand.heard if isinstance(m, Observe) and m.text]
    # Both pushes in each period of 0.05 s, from when they are in force.
    assert {round(later - before, 2) for before, later in pairwise(speeds)} <= {0.0, 0.15} and speeds[-1] > 0.0


# The client when its server stops, dies, comes back, or the wire is cut: safe in time, then on again.


TTL_MS = 500.0


class Flight:
    """A loop that looks and asks 50 times a second, and keeps whatever it was told to do."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen: list[Standing] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._fly, daemon=True)
        self._thread.start()

    def _fly(self) -> None:
        while not self._ended.is_set():
            self.client.observe(text="left 40 right 10")
            self.seen.append(self.client.call())
            time.sleep(0.02)

    def until(self, status: str) -> None:
        mark = len(self.seen)
        until(lambda: any(s.status == status for s in self.seen[mark:]), f"never {status} again")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        # The promise: nothing was ever in force that was older than its time-to-live.
        assert all(s.status == "safe" or (s.age_ms or 0) <= TTL_MS for s in self.seen)
        assert all(s.arguments == STRAIGHT["arguments"] for s in self.seen if s.status == "safe")


@contextmanager
def flight(endpoint: str, **options: object) -> Iterator[Flight]:
    with Client.connect(endpoint, **OWN, hz=20, ttl_ms=TTL_MS, **options) as client:
        flying = Flight(client)
        try:
            flying.until("fresh")
            yield flying
        finally:
            flying.end()


def test_stopped_server_means_safe_and_a_resumed_session_when_it_goes_on(own_server: Process) -> None:
    acts: list[Standing] = []
    with flight(own_server.endpoint, on_call=acts.append) as flying:
        token = flying.client.welcome.session
        own_server.signal(signal.SIGSTOP)
        flying.until("safe")
        until(lambda: acts[-1].status == "safe", "the handler was not told")
        until(lambda: not flying.client.connected, "silence was not noticed")
        own_server.signal(signal.SIGCONT)
        flying.until("fresh")
        assert flying.client.welcome.session == token
        assert flying.client.statistics["resumed"] == 1


def test_killed_server_means_safe_and_a_new_session_after_its_restart(own_server: Process) -> None:
    with flight(own_server.endpoint) as flying:
        token = flying.client.welcome.session
        own_server.kill()
        flying.until("safe")
        flying.client.instruct("Go home.")
        own_server.start()
        flying.until("fresh")
        assert flying.client.welcome.session != token
        assert flying.client.welcome.instruction == "Go home."
        assert flying.client.statistics["sessions"] == 2


def test_client_closes_while_its_server_is_stopped(own_server: Process) -> None:
    before = threading.active_count()
    client = Client.connect(own_server.endpoint, **OWN)
    own_server.signal(signal.SIGSTOP)
    client.close()
    client.close()
    until(lambda: threading.active_count() == before, "a thread is left")
    assert client.call().status == "safe"


def test_server_that_stops_in_order_ends_the_session_unless_the_client_persists(own_server: Process) -> None:
    with (
        Client.connect(own_server.endpoint, **OWN, hz=20) as ending,
        Client.connect(own_server.endpoint, **OWN, hz=20, persist=True) as persisting,
    ):
        own_server.stop()
        until(lambda: ending.error is not None, "bye was not heard")
        own_server.start()
        until(lambda: persisting.statistics["sessions"] == 2, "no new session")
        assert not ending.connected
        assert persisting.error is None


def test_cut_wire_is_mended_and_the_session_resumed(server: Process, proxy: Proxy) -> None:
    with flight(proxy.endpoint) as flying:
        token, epoch = flying.client.welcome.session, flying.client.reset()
        flying.until("fresh")
        for times in (1, 2):
            proxy.cut()
            until(lambda n=times: flying.client.statistics["resumed"] == n, "not resumed")  # type: ignore[misc]
            flying.until("fresh")
        assert flying.client.welcome.session == token
        assert flying.client.epoch == epoch


# Several calls of one observation at the client: each acts once, in order, and is acknowledged by itself.


LEFT, RIGHT, AHEAD = (FunctionCall(name="turn", arguments={"side": side}) for side in ("left", "right", "ahead"))


def test_each_of_several_calls_is_given_to_the_handler_once_in_order_and_acknowledged(stand: Stand) -> None:
    seen: list[Standing] = []
    go = threading.Event()

    def on_call(standing: Standing) -> str:
        seen.append(standing)
        go.wait(10)
        return f"did {standing.arguments.get('side')}"

    fleet = Fleet(stand, on_call=on_call, calls_per_tick=3)
    fleet.client.observe(text="left 1")
    look = stand.observation()
    ticks = [stand.call(look, call=c, more=more, ttl_ms=60_000.0).tick for c, more in ((LEFT, True), (RIGHT, True))]
    ticks.append(stand.call(look, call=AHEAD, ttl_ms=60_000.0).tick)
    until(lambda: fleet.client.call().call == AHEAD, "the last was not heard")
    assert fleet.client.call().calls == (LEFT, RIGHT, AHEAD)
    go.set()
    assert [(fleet.told(tick).outcome, fleet.told(tick).result) for tick in ticks] == [
        ("executed", f"did {side}") for side in ("left", "right", "ahead")
    ]
    assert [standing.calls for standing in seen] == [(LEFT,), (RIGHT,), (AHEAD,)]
    fleet.end()


def test_calls_that_a_newer_observation_or_safe_overtook_do_not_act(stand: Stand) -> None:
    seen: list[Any] = []
    go = threading.Event()

    def on_call(standing: Standing) -> None:
        seen.append(standing.arguments.get("side", standing.status))
        go.wait(10)

    fleet = Fleet(stand, on_call=on_call, calls_per_tick=3)
    fleet.client.observe(text="left 1")
    look = stand.observation()
    first = stand.call(look, call=LEFT, more=True, ttl_ms=60_000.0).tick
    until(lambda: seen == ["left"], "the first is not under way")
    waiting = [stand.call(look, call=c, more=c is RIGHT, ttl_ms=60_000.0).tick for c in (RIGHT, AHEAD)]
    fleet.client.observe(text="left 2")
    newer = stand.call(stand.observation(), call=LEFT, ttl_ms=60_000.0).tick
    assert {fleet.told(tick).outcome for tick in waiting} == {"expired"}
    go.set()
    assert [fleet.told(tick).outcome for tick in (first, newer)] == ["executed"] * 2
    assert seen == ["left", "left"]
    fleet.end()


def test_decide_waits_for_the_last_call_and_gives_them_all(stand: Stand) -> None:
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Client.connect, stand.endpoint, **OWN, pacing="client", calls_per_tick=3)
        assert stand.expect(Hello, 10.0, "hello").calls_per_tick == 3
        stand.welcome(pacing="client")
        with joining.result() as client:
            for last in (RIGHT, None):  # the second time no further call follows
                asked = pool.submit(client.decide, "left 1", timeout=10.0)
                look = stand.observation()
                stand.call(look, call=LEFT, more=True, ttl_ms=0.0)
                stand.pump(0.1)
                assert not asked.done()
                stand.call(look, call=last, status="held" if last is None else "fresh", ttl_ms=0.0)
                standing = asked.result()
                assert standing.calls == ((LEFT,) if last is None else (LEFT, RIGHT)) and standing.status == "fresh"


def test_one_of_several_calls_that_fails_makes_it_safe() -> None:
    core = Core(Options(**OWN, acknowledge=True, calls_per_tick=2), now := 10 * S)
    core.connected(now)
    core.due(now)
    core.hear(welcome(), now)
    seen = core.observe(look(now))
    told = {"seq_obs": seen.seq, "t_obs_ns": now}
    core.hear(call_message(0, call=LEFT, more=True, **told), now + MS)
    core.hear(call_message(1, call=RIGHT, **told), now + 2 * MS)
    assert core.force.at(now + 3 * MS).calls == (LEFT, RIGHT)
    core.acknowledge(0, "failed", now + 3 * MS)  # the first, which acts beside the second
    assert core.force.at(now + 3 * MS).status == "safe"
    assert [m.outcome for m in core.waiting if isinstance(m, Executed)] == ["failed"]
    # The next tick's call stands for itself.
    core.hear(call_message(2, call=LEFT, **told), now + 4 * MS)
    assert core.force.at(now + 4 * MS).calls == (LEFT,)
