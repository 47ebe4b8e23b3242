"""The client over sockets, with a scripted server that does what no good one does."""

from __future__ import annotations

import asyncio
import runpy
import socket as sockets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from rtcontrol.bridges.client import AsyncClient, Client, ClientError
from rtcontrol.bridges.wire import decode_msgpack
from rtcontrol.bridges.wire.messages import (
    Bye,
    ErrorMessage,
    Executed,
    FunctionCall,
    Hello,
    Instruct,
    Message,
    Observe,
    Ping,
    Pong,
    Reset,
)
from tests.bridges.client.joining import Joining, joined
from tests.bridges.client.worlds import OWN, ROOT, STRAIGHT, until
from tests.conformance.check.stand import Stand
from tests.helpers.processes import free_port

UNKNOWN = ErrorMessage(code="session", message="unknown", retryable=True)


def test_connection_that_holds_another_session_is_closed_and_made_anew(stand: Stand) -> None:
    joining = Joining(stand)
    stand.expect(Hello, 10.0, "hello")
    before = stand.peer
    stand.send(ErrorMessage(code="state", message="This connection has a session.", remedy="Say bye first."))
    stand.expect(Hello, 10.0, "hello on another connection", lambda m: stand.peer != before)
    stand.welcome()
    joining.ready().close()


@pytest.mark.parametrize("gone", [False, True])
def test_client_whose_session_has_ended_rests(stand: Stand, gone: bool) -> None:
    client = joined(stand)
    stand.send(ErrorMessage(code="busy", message="No.", fatal=True))
    until(lambda: client.error is not None, "it goes on")
    if gone:
        stand.close()
    turn, turns = client._link._turn, 0

    def counted() -> None:
        nonlocal turns
        turns += 1
        turn()

    client._link._turn = counted  # type: ignore[method-assign]
    time.sleep(0.4)
    client.close()
    assert turns < 20


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


def test_acknowledgement_that_is_none_is_the_callers_mistake(stand: Stand) -> None:
    with joined(stand, acknowledge=True) as client:
        for tick, words in ((1, {"result": "\ud800"}), (1, {"error": "x" * 70_000}), (-1, {})):
            with pytest.raises(ClientError):
                client.executed(tick, **words)  # type: ignore[arg-type]


def test_flood_of_large_messages_keeps_nobody_waiting_for_the_lock(stand: Stand, monkeypatch: Any) -> None:
    client = joined(stand)
    free: list[bool] = []

    def decode(parts: list[bytes]) -> Message:
        free.append(not client._link.lock.locked())
        return decode_msgpack(parts)

    monkeypatch.setattr("rtcontrol.bridges.client.link.decode_msgpack", decode)
    for i in range(20):
        stand.send(Ping(id=i, t_ns=0))
    stand.expect(Pong, 5.0, "pong", lambda m: m.id == 19)
    client.close()
    assert len(free) >= 20 and all(free)


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


def test_event_loop_that_was_closed_ends_no_thread_of_the_client() -> None:
    client = AsyncClient.__new__(AsyncClient)
    client._loop, client._news = asyncio.new_event_loop(), asyncio.Event()
    client._loop.close()
    client._notify()


def test_lockstep_observation_is_said_again_after_a_restart(stand: Stand) -> None:
    with joined(stand, pacing="client", ttl_ms=0) as client:
        client.welcome.__dict__["ttl_ms"] = 0.0  # the stand's is 400 ms, less than this test takes
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(client.decide, "left 1", timeout=30)
            first = stand.observation()
            stand.restart()
            stand.expect(Hello, 10.0, "hello")
            stand.send(UNKNOWN)
            stand.expect(Hello, 10.0, "hello", lambda m: m.resume is None)
            stand.welcome()
            again = stand.observation()
            assert (again.text, again.t_ns) == (first.text, first.t_ns)
            assert again.seq > first.seq
            stand.call(again, ttl_ms=0.0)
            assert answer.result(10).status == "fresh"


def test_lockstep_observation_without_answer_is_safe_and_not_the_call_before(stand: Stand) -> None:
    with joined(stand, pacing="client", ttl_ms=0) as client:
        answer = client.decide("left 1", timeout=0.2)
        assert (answer.status, answer.cause, answer.arguments) == ("safe", "no_answer", STRAIGHT["arguments"])


def test_what_the_server_answered_is_told_where_no_welcome_came(stand: Stand) -> None:
    joining = Joining(stand, connect_timeout_s=0.4)
    stand.expect(Hello, 10.0, "hello")
    stand.send(ErrorMessage(code="busy", message="All 64 sessions are taken.", remedy="Try later.", retryable=True))
    assert "the server answered busy: All 64 sessions are taken. Try later." in str(joining.refused())


def test_instruction_that_was_refused_is_not_said_again_to_a_restarted_server(stand: Stand) -> None:
    with joined(stand) as client:
        client.instruct("Go on. " * 1000)
        stand.expect(Instruct, 5.0, "instruct")
        stand.send(ErrorMessage(code="instruction", message="It does not fit.", field="instruction"))
        until(lambda: client.statistics["errors"] == 1, "it did not hear the refusal")
        stand.restart()
        stand.expect(Hello, 10.0, "hello")
        stand.send(UNKNOWN)
        hello = stand.expect(Hello, 10.0, "hello", lambda m: m.resume is None)
        assert hello.instruction == OWN["instruction"]
        # The refusal may also come only now.
        client.instruct("Go on. " * 1000)
        stand.send(ErrorMessage(code="instruction", message="It does not fit.", field="instruction", fatal=True))
        again = stand.expect(Hello, 10.0, "hello")
        assert (again.instruction, client.error) == (OWN["instruction"], None)


def test_example_of_the_documentation_executes_all_of_several_safe_calls(stand: Stand) -> None:
    example = runpy.run_path(str(ROOT / "docs" / "example_client.py"))
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


def test_each_warning_of_a_welcome_is_logged_once(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    joining = Joining(stand)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome(warnings=["30 Hz is too much.", "30 Hz is too much."])
    with joining.ready():
        stand.restart()
        stand.expect(Hello, 10.0, "hello")
        stand.welcome(warnings=["30 Hz is too much.", "No model knows these tools."])
        stand.expect(Ping, 10.0, "ping")
        stand.pump(0.3)
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "warns" in r.message]
    assert [line.partition("warns: ")[2] for line in told] == ["30 Hz is too much.", "No model knows these tools."]
    assert all(stand.endpoint in line for line in told)


def test_no_reconnect_for_ever_refused_client(stand: Stand) -> None:
    joining = Joining(stand)
    stand.expect(Hello, 10.0, "hello")
    stand.send(ErrorMessage(code="busy", message="The robot is claimed.", remedy="Close it.", fatal=True))
    stand.pump(1.2)
    assert joining.refused().remedy == "Close it."
    assert sum(isinstance(m, Hello) for m in stand.heard) == 1


def test_calls_that_a_busy_handler_missed_are_told_as_expired(stand: Stand) -> None:
    began, go = threading.Event(), threading.Event()

    def busy(standing: Any) -> None:
        began.set()
        go.wait(20)

    with joined(stand, on_call=busy) as client:
        client.observe(text="left 1")
        observed = stand.observation()
        ticks = []
        for _ in range(4):
            ticks.append(stand.call(observed, ttl_ms=60_000.0).tick)
            until(lambda: client.call().tick == ticks[-1], "not in force")
            assert began.wait(20)
        go.set()
        told = {m.tick: m.outcome for m in (stand.expect(Executed, 5.0, "executed") for _ in ticks)}
        assert told == dict(zip(ticks, ["executed", "expired", "expired", "executed"], strict=True))


def test_client_that_listens_is_joined_by_a_server_and_greets_it_again_after_it_hung() -> None:
    stand = Stand(f"tcp://127.0.0.1:{free_port()}", connects=True)
    with ThreadPoolExecutor() as pool:
        listening = pool.submit(Client.listen, stand.endpoint, **OWN)
        stand.expect(Hello, 10.0, "hello")
        stand.welcome()
        client = listening.result(10)
    assert client.welcome.session == stand.token
    host, port = stand.endpoint.removeprefix("tcp://").split(":")
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n"):  # strangers, who come and go
        with sockets.create_connection((host, int(port))) as stranger:
            stranger.sendall(words)
    stand.pump(0.3)
    assert client.connected and not client.statistics["reconnects"]
    stand.alive = False  # it says nothing for three heartbeats, and is there again
    assert stand.expect(Hello, 5.0, "hello").resume == stand.token
    stand.alive = True
    stand.welcome(resumed=True)
    until(lambda: client.connected, "it is not welcomed again")
    client.close()
    stand.close()
