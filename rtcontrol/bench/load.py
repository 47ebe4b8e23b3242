"""`rtcontrol bench load`: count the calls that one server sends to many clients, and measure their latency."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from rtcontrol.bench.timing import Progress
from rtcontrol.bench.wire import TEXT, Servers, WireSession, connect_dealer, free_port, hello, pong
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.histogram import Histogram
from rtcontrol_client.wire import decode_msgpack, encode_msgpack
from rtcontrol_client.wire.messages import Bye, CallMessage, ErrorMessage, Message, Ping, Welcome

WARM_UP_S = 2.0
WELCOME_S = 120.0


class LoadClient:
    """A client that sends two observations per period of the server's ticks, and stores the calls that it receives."""

    def __init__(self, endpoint: str, hz: float) -> None:
        self.socket = connect_dealer(endpoint)
        self.due = time.monotonic()
        self._hz = hz
        self.session: WireSession | None = None
        self.calls: list[tuple[CallMessage, float]] = []  # (call, ms from sending to receiving it)
        self._send_message(hello("lander", pacing="server", hz=hz))

    def observe(self) -> None:
        if self.session is not None:
            self._send_message(self.session.observe(TEXT))
        # Do not send a burst of observations if this program was late.
        self.due = max(self.due + 0.5 / self._hz, time.monotonic())

    def receive(self) -> None:
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._handle_message(decode_msgpack(self.socket.recv_multipart()))

    def _send_message(self, message: Message) -> None:
        self.socket.send_multipart(encode_msgpack(message))

    def _handle_message(self, message: Message) -> None:
        now = time.monotonic_ns()
        if isinstance(message, Welcome):
            self.session = WireSession(message)
        elif isinstance(message, CallMessage):
            self.calls.append((message, (now - message.t_server_ns) / 1e6))
        elif isinstance(message, Ping):
            self._send_message(pong(message))
        elif isinstance(message, ErrorMessage):
            raise UserError(f"The server refused a client: {message.message}", message.remedy)
        elif isinstance(message, Bye):
            raise UserError(f"The server ended a session ({message.reason}).", "See its log lines above.")

    def missing_calls(self) -> int:
        """Return for how many ticks, between those of the first and the last received call, no call arrived."""
        ticks = {call.tick for call, _ in self.calls}
        return max(ticks) - min(ticks) + 1 - len(ticks) if ticks else 0


def measure(clients: int, hz: float, seconds: float, model: str, progress: Progress) -> dict[str, Any]:
    """Return the result document of `bench load`: counts of all clients' calls after a warm-up, and the milliseconds
    from sending a call to receiving it."""
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    with Servers() as servers:
        servers.start(port, "-m", "rtcontrol", "serve", "--model", model, "--bind", endpoint)
        opened = [LoadClient(endpoint, hz) for _ in range(clients)]
        _drive_clients(opened, lambda: all(c.session for c in opened), WELCOME_S, lambda s: None)
        if not all(c.session for c in opened):
            raise UserError(f"Some clients received no welcome within {WELCOME_S:g} s.", "Reduce bench.clients.")
        _drive_clients(opened, lambda: False, WARM_UP_S, lambda s: None)
        for client in opened:
            client.calls.clear()
        _drive_clients(opened, lambda: False, seconds, lambda s: progress(round(s), round(seconds)))
        for client in opened:
            client.socket.close(0)
    calls = [call for client in opened for call in client.calls]
    case = {
        "clients": clients,
        "hz": hz,
        "seconds": seconds,
        "model": model,
        "calls": len(calls),
        "expected": round(clients * hz * seconds),
        "missing": sum(client.missing_calls() for client in opened),
        "misses_by_cause": dict(Counter(call.cause for call, _ in calls if call.cause is not None)),
        "way_ms": Histogram(ms for _, ms in calls).summary(),
    }
    return {"bench": "load", "cases": [case]}


def _drive_clients(
    clients: Sequence[LoadClient], done: Callable[[], bool], seconds: float, step: Callable[[float], None]
) -> None:
    """Let all clients observe and receive calls for `seconds`, or until `done()`. `step` gets the elapsed seconds."""
    poller = zmq.Poller()
    for client in clients:
        poller.register(client.socket, zmq.POLLIN)
    by_socket = {client.socket: client for client in clients}
    order = deque(sorted(clients, key=lambda client: client.due))  # all clients observe at the same rate
    started = time.monotonic()
    while not done() and (elapsed := time.monotonic() - started) < seconds:
        step(elapsed)
        wait_ms = max(0, int(1e3 * (order[0].due - time.monotonic())))
        for sock, _ in poller.poll(min(wait_ms, 100)):
            by_socket[sock].receive()
        while order[0].due <= time.monotonic():
            order[0].observe()
            order.rotate(-1)
