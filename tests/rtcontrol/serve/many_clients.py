"""Many clients of a server, on a thread of their own: what each of them was told, tick by tick."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import zmq

from rtcontrol.bench.servers import dealer
from rtcontrol.bench.wire import TEXT, WireSession, hello, pong
from rtcontrol_client.wire import decode_msgpack, encode_msgpack
from rtcontrol_client.wire.messages import CallMessage, ErrorMessage, Ping, Welcome
from tests.helpers.processes import until


class FlownClient:
    """A server-paced client. `calls` has all that it was told to do."""

    def __init__(self, endpoint: str, hz: float, agent: str = "lander", **fields: Any) -> None:
        self.socket, self.period_s = dealer(endpoint), 0.5 / hz
        self.due_s = time.monotonic()
        self.session: WireSession | None = None
        self.calls: list[CallMessage] = []
        self.errors: list[ErrorMessage] = []
        self.socket.send_multipart(encode_msgpack(hello(agent, **{"pacing": "server", "hz": hz, **fields})))

    def take(self) -> None:
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            message = decode_msgpack(self.socket.recv_multipart())
            if isinstance(message, Welcome):
                self.session = WireSession(message)
            elif isinstance(message, CallMessage):
                self.calls.append(message)
            elif isinstance(message, ErrorMessage):
                self.errors.append(message)
            elif isinstance(message, Ping):
                self.socket.send_multipart(encode_msgpack(pong(message)))

    def observe(self, now_s: float) -> None:
        if now_s >= self.due_s and self.session is not None:
            self.due_s = now_s + self.period_s
            self.socket.send_multipart(encode_msgpack(self.session.observe(TEXT)))

    def decided(self, since: int = 0) -> list[CallMessage]:
        """The calls, from this one on, that were decided."""
        return [call for call in self.calls[since:] if call.status == "fresh"]


class Flown:
    """So many clients, from `with` on; `clients` may be looked at from any thread."""

    def __init__(self, endpoint: str, count: int, hz: float, **fields: Any) -> None:
        self.clients = [FlownClient(endpoint, hz, **fields) for _ in range(count)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._fly, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: all(c.session is not None or c.errors for c in self.clients), "no welcome", 120.0)
        assert not [error.message for client in self.clients for error in client.errors]
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        for client in self.clients:
            client.socket.close(0)

    def _fly(self) -> None:
        poller = zmq.Poller()
        for client in self.clients:
            poller.register(client.socket, zmq.POLLIN)
        while not self._over.is_set():
            poller.poll(10)
            now_s = time.monotonic()
            for client in self.clients:
                client.take()
                client.observe(now_s)

    def marks(self) -> list[int]:
        """How many calls each has by now."""
        return [len(client.calls) for client in self.clients]

    def go_on(self, decisions: int = 5) -> None:
        """Until each of them was decided for so often more."""
        marks = self.marks()
        until(
            lambda: all(len(c.decided(m)) >= decisions for c, m in zip(self.clients, marks, strict=True)),
            "a session is not decided for any more",
            60.0,
        )

    def outcomes(self, marks: Sequence[int]) -> Counter[str]:
        """What became of the ticks since then."""
        return Counter(
            call.status if call.cause is None else f"{call.status}: {call.cause}"
            for client, mark in zip(self.clients, marks, strict=True)
            for call in client.calls[mark:]
        )

    def check_once(self) -> None:
        """Nothing was decided twice: neither a tick, nor, by a call that came later, an older observation."""
        for client in self.clients:
            decided = client.decided()
            ticks, seen = [call.tick for call in decided], [call.seq_obs or 0 for call in decided]
            assert len(ticks) == len(set(ticks)), "a tick was decided twice"
            assert ticks == sorted(ticks) and seen == sorted(seen), "an older decision came after a newer one"
