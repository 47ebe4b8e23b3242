"""What the client says when, event by event, without a socket; and what it does with servers that never mean well."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from rtcontrol.bridges.client import AsyncClient, Client, ClientError
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.client.talk import QUEUE, Talk
from rtcontrol.bridges.wire import LIMITS, PROTOCOL, decode_msgpack, encode_msgpack
from rtcontrol.bridges.wire.messages import (
    ErrorMessage,
    Executed,
    Hello,
    Instruct,
    Message,
    Observe,
    Ping,
    Pong,
    Program,
    Reset,
    Welcome,
)
from tests.bridges.client.worlds import OWN, free_port, until
from tests.conformance.check.stand import Stand

TOKEN = "0123456789abcdef"


def welcome(**changes: Any) -> Welcome:
    fields: dict[str, Any] = {
        "protocol": list(PROTOCOL),
        "server": Program(name="test"),
        "session": TOKEN,
        "resumed": False,
        "epoch": 0,
        "t_client_ns": 0,
        "t_server_ns": 0,
        "tools": [],
        "instruction": "Go.",
        "model": "none",
        "model_trained_on_tools": False,
        "pacing": "server",
        "hz": 10.0,
        **dict.fromkeys(("period_ms", "deadline_ms", "max_age_ms", "hold_ms"), 100.0),
        "ttl_ms": 500.0,
        "on_miss": "hold",
        "heartbeat_ms": 1000.0,
        "session_grace_s": 30.0,
        "limits": LIMITS.to_dict(),
    }
    return Welcome(**{**fields, **changes})


def conversation(**changes: Any) -> Talk:
    """Greeted and welcomed."""
    talk = Talk(Options(**OWN))
    talk.connected()
    assert said(talk) == ["hello"]
    talk.hear(welcome(**changes), time.monotonic_ns())
    said(talk)
    return talk


def said(talk: Talk, later_ms: float = 0.0) -> list[str]:
    return [m.type for m in talk.due(time.monotonic_ns() + int(later_ms * 1e6))]


def test_reset_that_found_no_room_is_said_later_and_an_old_observation_is_not() -> None:
    talk = conversation()
    talk.reset(Reset(session=TOKEN, epoch=1))
    talk.observe(Observe(session=TOKEN, seq=1, epoch=1, t_ns=1, text="left 40"))
    due: list[Message] = talk.due(time.monotonic_ns())
    assert [m.type for m in due] == ["reset", "observe"]
    talk.unsaid(due)
    assert talk.wake_ns() > time.monotonic_ns()
    assert said(talk) == []
    assert said(talk, 30.0) == ["reset"]


def test_instruction_given_while_greeting_waits_for_the_welcome() -> None:
    talk = Talk(Options(**OWN))
    talk.connected()
    first = talk.due(time.monotonic_ns())[0]
    talk.say(Instruct(session=talk.token, instruction="Go home."))
    again = talk.due(time.monotonic_ns() + 2_000_000_000)
    assert isinstance(first, Hello)
    assert isinstance(again[0], Hello)
    # The server refuses another hello on the same connection.
    assert again[0].instruction == first.instruction == OWN["instruction"]
    assert [m.type for m in again] == ["hello", "ping"]
    talk.hear(welcome(), time.monotonic_ns())
    assert [m.instruction for m in talk.due(time.monotonic_ns()) if isinstance(m, Instruct)] == ["Go home."]


def test_who_observes_all_the_time_compares_clocks_too_and_anew_with_another_server() -> None:
    talk = Talk(Options(**OWN))
    talk.connected()
    talk.due(time.monotonic_ns())
    talk.hear(welcome(), time.monotonic_ns())
    talk.observe(Observe(session=TOKEN, seq=1, epoch=0, t_ns=1, text="left 40"))
    assert said(talk) == ["observe", "ping"]
    now_ns = time.monotonic_ns()
    talk.hear(Pong(id=1, t_ping_ns=now_ns - 1000, t_received_ns=5, t_sent_ns=5), now_ns)
    assert talk.clock()
    talk.lost()
    talk.connected()
    talk.due(time.monotonic_ns())
    talk.hear(welcome(session="f" * 16), time.monotonic_ns())
    assert talk.clock() == {}
    assert "ping" in said(talk)


def test_heartbeat_of_nothing_is_no_reason_to_give_the_server_up() -> None:
    talk = conversation(heartbeat_ms=0.0)
    assert not talk.silent(time.monotonic_ns())
    assert talk.wake_ns() > time.monotonic_ns()


def test_server_that_is_gone_while_it_is_greeted_is_found() -> None:
    talk = Talk(Options(**OWN))
    talk.connected()
    talk.due(time.monotonic_ns())
    assert not talk.silent(time.monotonic_ns() + 9_000_000_000)
    assert talk.silent(time.monotonic_ns() + 11_000_000_000)


def test_pings_and_resets_without_a_session_fill_no_memory() -> None:
    talk = conversation()
    talk.lost()
    for i in range(3000):
        talk.hear(Ping(id=i, t_ns=i), time.monotonic_ns())
        talk.reset(Reset(session=TOKEN, epoch=i + 1))
    assert len(talk.outbox) <= 4 * QUEUE


@pytest.mark.parametrize("text", ["", "x" * 80])
def test_any_name_will_do(text: str) -> None:
    assert Options(**OWN, name=text).hello(0).client.name in ("rtcontrol.bridges.client", "x" * 64)


# Over sockets.


@pytest.fixture
def stand() -> Iterator[Stand]:
    one = Stand(f"tcp://127.0.0.1:{free_port()}")
    yield one
    one.close()


class Made:
    """A client that a thread of its own connects, since the test is its server."""

    def __init__(self, stand: Stand, **options: Any) -> None:
        self.client: Client | None = None
        self.error: ClientError | None = None
        self.thread = threading.Thread(target=self._make, args=(stand.endpoint, options), daemon=True)
        self.thread.start()

    def _make(self, endpoint: str, options: dict[str, Any]) -> None:
        try:
            self.client = Client.connect(endpoint, **{**OWN, **options})
        except ClientError as error:
            self.error = error

    def ready(self) -> Client:
        self.thread.join(10)
        assert self.client is not None, self.error
        return self.client


def test_server_that_knows_no_session_ever_is_not_flooded_with_hellos(stand: Stand) -> None:
    made = Made(stand, connect_timeout_s=2.0)
    heard = 0
    while made.thread.is_alive():
        if stand.pump(0.1, lambda m: isinstance(m, Hello)) is not None:
            heard += 1
            stand.send(ErrorMessage(code="session", message="unknown", retryable=True))
    assert 2 <= heard <= 12


def test_connection_that_holds_another_session_is_closed_and_made_anew(stand: Stand) -> None:
    made = Made(stand)
    stand.expect(Hello, 10.0, "hello")
    before = stand.peer
    stand.send(ErrorMessage(code="state", message="This connection has a session.", remedy="Say bye first."))
    stand.expect(Hello, 10.0, "hello on another connection", lambda m: stand.peer != before)
    stand.welcome()
    made.ready().close()


@pytest.mark.parametrize("gone", [False, True])
def test_client_whose_session_has_ended_rests(stand: Stand, gone: bool) -> None:
    made = Made(stand)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    client = made.ready()
    stand.send(ErrorMessage(code="busy", message="No.", fatal=True))
    until(lambda: client.error is not None, "it goes on")
    if gone:
        stand.close()
        time.sleep(0.3)
    turn, turns = client._link._turn, 0

    def counted() -> None:
        nonlocal turns
        turns += 1
        turn()

    client._link._turn = counted  # type: ignore[method-assign]
    time.sleep(1.0)
    client.close()
    assert turns < 50


@pytest.mark.parametrize("result", ["\ud800", type("Mute", (), {"__str__": lambda self: 1 / 0})()])
def test_result_that_has_no_words_does_not_end_the_handler(stand: Stand, result: Any) -> None:
    made = Made(stand, on_call=lambda standing: result)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    client = made.ready()
    for _ in range(2):
        client.observe(text="left 40")
        stand.call(stand.observation())
        told = stand.expect(Executed, 5.0, "executed")
        assert told.outcome == "executed"
        assert told.result
    client.close()


def test_acknowledgement_that_is_none_is_the_callers_mistake(stand: Stand) -> None:
    made = Made(stand, acknowledge=True)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    client = made.ready()
    for tick, words in ((1, {"result": "\ud800"}), (1, {"error": "x" * 70_000}), (-1, {})):
        with pytest.raises(ClientError):
            client.executed(tick, **words)  # type: ignore[arg-type]
    client.close()


def test_flood_of_large_messages_keeps_nobody_waiting_for_the_lock(stand: Stand, monkeypatch: Any) -> None:
    made = Made(stand)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    client = made.ready()
    free: list[bool] = []

    def decode(parts: list[bytes]) -> Message:
        free.append(not client._link.lock.locked())
        return decode_msgpack(parts)

    monkeypatch.setattr("rtcontrol.bridges.client.link.decode_msgpack", decode)
    for i in range(20):
        stand.send(Ping(id=i, t_ns=0))
    stand.expect(Pong, 5.0, "pong", lambda m: m.id == 19)
    client.close()
    assert len(free) >= 20
    assert all(free)


def test_event_loop_that_was_closed_ends_no_thread_of_the_client() -> None:
    class Closed:
        def call_soon_threadsafe(self, *given: Any) -> None:
            raise RuntimeError("Event loop is closed")

        def is_closed(self) -> bool:
            return False  # it was not, a moment ago

    client = AsyncClient.__new__(AsyncClient)
    client._loop, client._news = Closed(), asyncio.Event()  # type: ignore[assignment]
    client._notify()


def test_client_that_listens_greets_a_server_that_hung_again() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    made: list[Client] = []
    waiting = threading.Thread(target=lambda: made.append(Client.listen(endpoint, **OWN)), daemon=True)
    waiting.start()
    server: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    try:
        server.connect(endpoint)
        hellos: list[Hello] = []

        def hear(seconds: float) -> bytes:
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                if server.poll(50):
                    peer, *parts = server.recv_multipart()
                    message = decode_msgpack(parts)
                    if isinstance(message, Hello):
                        hellos.append(message)
                        return peer
            raise AssertionError("no hello")

        peer = hear(10.0)
        server.send_multipart([peer, *encode_msgpack(welcome(heartbeat_ms=200.0))])
        waiting.join(5)
        # It says nothing for three heartbeats, and is there again.
        hear(5.0)
        assert hellos[-1].resume == TOKEN
        server.send_multipart([peer, *encode_msgpack(welcome(resumed=True))])
        until(lambda: made[0].connected, "it is not welcomed again")
        made[0].close()
    finally:
        server.close(linger=0)
