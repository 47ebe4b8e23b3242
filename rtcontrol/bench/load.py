"""`rtcontrol bench load`: many server-paced clients of one server, and what each of them got."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from rtcontrol.bench.timing import Progress
from rtcontrol.bench.wire import TEXT, Servers, WireSession, dealer, free_port, hello, pong
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.histogram import Series
from rtcontrol_client.wire import decode_msgpack, encode_msgpack
from rtcontrol_client.wire.messages import Bye, CallMessage, ErrorMessage, Message, Ping, Welcome

WARM_UP_S = 2.0
WELCOME_S = 120.0


class LoadClient:
    """One server-paced client: it observes twice a period, and counts the calls that it receives."""

    def __init__(self, endpoint: str, hz: float) -> None:
        self.socket = dealer(endpoint)
        self.due = time.monotonic()
        self._hz = hz
        self.session: WireSession | None = None
        self.ticks: list[int] = []
        self._before: int | None = None  # the last tick of the warm-up
        self._came_s = self.due  # when the last tick came, or the counting began
        self.status: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.way_ms: list[float] = []
        self._send(hello("lander", pacing="server", hz=hz))

    def observe(self) -> None:
        self.due += 0.5 / self._hz
        if self.session is not None:
            self._send(self.session.observe(TEXT))

    def receive(self) -> None:
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._take(decode_msgpack(self.socket.recv_multipart()))

    def _send(self, message: Message) -> None:
        self.socket.send_multipart(encode_msgpack(message))

    def _take(self, message: Message) -> None:
        now = time.monotonic_ns()
        if isinstance(message, Welcome):
            self.session = WireSession(message)
        elif isinstance(message, CallMessage):
            self.ticks.append(message.tick)
            self._came_s = now / 1e9
            self.status[message.status] += 1
            self.way_ms.append((now - message.t_server_ns) / 1e6)
            if message.cause is not None:
                self.causes[message.cause] += 1
        elif isinstance(message, Ping):
            self._send(pong(message))
        elif isinstance(message, ErrorMessage):
            raise UserError(f"The server refused a client: {message.message}", message.remedy)
        elif isinstance(message, Bye):
            raise UserError(f"The server ended a session ({message.reason}).", "Look at `rtcontrol serve` by hand.")

    def forget(self) -> None:
        """Drop what was counted until now: it was the warm-up."""
        self._before = self.ticks[-1] if self.ticks else self._before
        self._came_s = time.monotonic()
        self.ticks, self.way_ms = [], []
        self.status.clear()
        self.causes.clear()

    def missing(self, end_s: float) -> int:
        """Count ticks that were due until then (on the monotonic clock) and whose call never came, without the one
        under way."""
        silent = max(0, int((end_s - self._came_s) * self._hz) - 1)
        if not self.ticks:
            return silent
        first = self.ticks[0] if self._before is None else self._before + 1
        return max(self.ticks) - first + 1 - len(set(self.ticks)) + silent


def measure(clients: int, hz: float, seconds: float, model: str, progress: Progress) -> dict[str, Any]:
    """Count the calls of all clients after a warm-up. Returns the document of `bench load`; times are milliseconds from
    the call's departure to its arrival (one machine, one clock)."""
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    with Servers() as servers:
        servers.start("-m", "rtcontrol", "serve", "--model", model, "--bind", endpoint)
        servers.wait_for(port)
        made = [LoadClient(endpoint, hz) for _ in range(clients)]
        _drive(made, lambda: all(c.session for c in made), WELCOME_S, lambda s: servers.check())
        if not all(c.session for c in made):
            raise UserError(f"Not every client was welcomed in {WELCOME_S:g} s.", "Give fewer --clients.")
        _drive(made, lambda: False, WARM_UP_S, lambda s: None)
        for client in made:
            client.forget()
        _drive(made, lambda: False, seconds, lambda s: progress(round(s), round(seconds)))
        end_s = time.monotonic()
        servers.check()
        for client in made:
            client.socket.close(0)
    case = {
        "clients": clients,
        "hz": hz,
        "seconds": seconds,
        "model": model,
        "calls": sum(len(c.ticks) for c in made),
        "expected": round(clients * hz * seconds),
        "missing": sum(c.missing(end_s) for c in made),
        "status": dict(sum((c.status for c in made), Counter())),
        "misses_by_cause": dict(sum((c.causes for c in made), Counter())),
        "way_ms": Series(ms for c in made for ms in c.way_ms).summary(),
    }
    return {"bench": "load", "cases": [case]}


def _drive(
    clients: Sequence[LoadClient], done: Callable[[], bool], seconds: float, step: Callable[[float], None]
) -> None:
    """Let all observe and receive until `done`, or for so many seconds; `step` takes the seconds since the start."""
    poller = zmq.Poller()
    for client in clients:
        poller.register(client.socket, zmq.POLLIN)
    by_socket = {client.socket: client for client in clients}
    order = [(client.due, n) for n, client in enumerate(clients)]
    heapq.heapify(order)
    began = time.monotonic()
    shown = 0.0
    while not done() and (elapsed := time.monotonic() - began) < seconds:
        if elapsed - shown >= 0.5:
            step(elapsed)
            shown = elapsed
        wait_ms = max(0, int(1e3 * (order[0][0] - time.monotonic())))
        for sock, _ in poller.poll(min(wait_ms, 100)):
            by_socket[sock].receive()
        while order[0][0] <= time.monotonic():
            _, n = heapq.heappop(order)
            clients[n].observe()
            # A load generator that was late must not send a burst.
            clients[n].due = max(clients[n].due, time.monotonic())
            heapq.heappush(order, (clients[n].due, n))
