"""`rtcontrol bench load`: many server-paced clients of one server, and what each of them got."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zmq

from rtcontrol.bench.wire import TEXT, Servers, WireSession, dealer, free_port, hello, pong, wait_for
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.checkpoint.training_metadata import FILE_NAME as LEARNT
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire import decode_msgpack, encode_msgpack
from rtcontrol_client.wire.messages import Bye, CallMessage, ErrorMessage, Message, Ping, Welcome


class LoadClient:
    """One server-paced client: it observes twice a period, of `texts` one after the other, and counts what it is told,
    and the bytes of all messages both ways."""

    def __init__(self, endpoint: str, hz: float, agent: str = "lander", texts: Sequence[str] = (TEXT,)) -> None:
        self.socket = dealer(endpoint)
        self._hz, self._period_s = hz, 0.5 / hz
        self.due = time.monotonic()
        self._texts, self._looks = texts, 0
        self._session: WireSession | None = None
        self.bytes = 0
        self.ticks: list[int] = []
        self._before: int | None = None  # the last tick of the warm-up
        self._came_s = self.due  # when the last tick came, or the counting began
        self.status: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.way_ms: list[float] = []
        self._send(hello(agent, pacing="server", hz=hz))

    @property
    def ready(self) -> bool:
        return self._session is not None

    def observe(self) -> None:
        self.due += self._period_s
        if self._session is not None:
            self._looks += 1
            self._send(self._session.observe(self._texts[self._looks % len(self._texts)]))

    def receive(self) -> None:
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            parts = self.socket.recv_multipart()
            self.bytes += sum(map(len, parts))
            self._take(decode_msgpack(parts))

    def bye(self) -> None:
        """The session is over; nothing is waited for."""
        if self._session is not None:
            self._send(Bye(session=self._session.welcome.session))
        self.socket.close(200)

    def _send(self, message: Message) -> None:
        parts = encode_msgpack(message)
        self.bytes += sum(map(len, parts))
        self.socket.send_multipart(parts)

    def _take(self, message: Message) -> None:
        now = time.monotonic_ns()
        if isinstance(message, Welcome):
            self._session = WireSession(message)
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
        """What was counted until now was the warm-up."""
        self._before = self.ticks[-1] if self.ticks else self._before
        self._came_s = time.monotonic()
        self.ticks, self.way_ms, self.bytes = [], [], 0
        self.status.clear()
        self.causes.clear()

    def missing(self, end_s: float) -> int:
        """Ticks that were due until then (on the monotonic clock) and whose call never came; the one under way is not
        counted."""
        silent = max(0, int((end_s - self._came_s) * self._hz) - 1)
        if not self.ticks:
            return silent
        first = self.ticks[0] if self._before is None else self._before + 1
        return max(self.ticks) - first + 1 - len(set(self.ticks)) + silent


def unnamed(checkpoint: Path, folder: Path) -> Path:
    """A new folder with all of a checkpoint but what it says that it learnt."""
    folder.mkdir()
    for path in checkpoint.iterdir():
        if path.name != LEARNT:
            (folder / path.name).symlink_to(path.resolve())
    return folder


def load(
    clients: int, hz: float, seconds: float, model: str, step: Callable[[float], None], http: bool = False
) -> dict[str, Any]:
    """Counts over all clients after a warm-up of two seconds; times are milliseconds from the call's departure to its
    arrival (one machine, one clock). With `http`, one more client sends requests with new tools and long prompts, one
    after the other (`rtcontrol.bench.http_load`)."""
    port, web = free_port(), free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    with ExitStack() as stack, Servers() as servers:
        if http:
            # One that does not say what it learnt decides for any tools: the calls are nonsense here.
            model = str(unnamed(resolve(model), Path(stack.enter_context(TemporaryDirectory())) / Path(model).name))
        more = ["--http", f"127.0.0.1:{web}"] if http else []
        servers.start(["-m", "rtcontrol", "serve", "--model", model, "--bind", endpoint, *more])
        wait_for(port, servers)
        if http:
            wait_for(web, servers)
        made = [LoadClient(endpoint, hz) for _ in range(clients)]
        drive(made, lambda: all(c.ready for c in made), 120.0, lambda s: servers.check())
        if not all(c.ready for c in made):
            raise UserError("Not every client was welcomed in 120 s.", "Give fewer --clients.")
        if http:
            servers.start(["-m", "rtcontrol.bench.http_load", f"http://127.0.0.1:{web}"])
        drive(made, lambda: False, 2.0, lambda s: None)
        for client in made:
            client.forget()
        drive(made, lambda: False, seconds, step)
        end_s = time.monotonic()
        servers.check()
        for client in made:
            client.socket.close(0)
        answered = [float(line) for line in servers.stop_last()] if http else []
    status, causes = sum((c.status for c in made), Counter()), sum((c.causes for c in made), Counter())
    return {
        "clients": clients,
        "hz": hz,
        "seconds": seconds,
        "model": model,
        "calls": sum(len(c.ticks) for c in made),
        "expected": round(clients * hz * seconds),
        "missing": sum(c.missing(end_s) for c in made),
        "status": dict(status),
        "misses_by_cause": dict(causes),
        "http_s": answered,
        "way_ms": [ms for c in made for ms in c.way_ms],
    }


def drive(
    clients: Sequence[LoadClient], done: Callable[[], bool], seconds: float, step: Callable[[float], None]
) -> None:
    """All observe and receive until `done`, or for so many seconds; `step` is given the seconds since it was called."""
    poller = zmq.Poller()
    for client in clients:
        poller.register(client.socket, zmq.POLLIN)
    by_socket = {client.socket: client for client in clients}
    order = [(client.due, n) for n, client in enumerate(clients)]
    heapq.heapify(order)
    began = time.monotonic()
    told = 0.0
    while not done() and (elapsed := time.monotonic() - began) < seconds:
        if elapsed - told >= 0.5:
            step(elapsed - told)
            told = elapsed
        wait_ms = max(0, int(1e3 * (order[0][0] - time.monotonic())))
        for sock, _ in poller.poll(min(wait_ms, 100)):
            by_socket[sock].receive()
        while order[0][0] <= time.monotonic():
            _, n = heapq.heappop(order)
            clients[n].observe()
            # A load generator that was late must not send a burst.
            clients[n].due = max(clients[n].due, time.monotonic())
            heapq.heappush(order, (clients[n].due, n))
