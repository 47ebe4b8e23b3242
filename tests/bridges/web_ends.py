"""Endpoints for tests of clients: WebSockets to a real server or a ZeroMQ peer, and /connect with two servers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import zmq
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from rtcontrol_client.wire import WireError, decode_json, decode_msgpack, encode_json, encode_msgpack
from rtcontrol_client.wire.messages import Bye, Hello
from tests.bridges.client.worlds import Process, free_port
from tests.bridges.program import Events
from tests.conformance.check.stand import Stand
from tests.helpers.web_server import Quiet, http_server


class Served(Process):
    """A process of `rtcontrol serve` that also accepts WebSockets."""

    def __init__(self, out: Path) -> None:
        port = free_port()
        super().__init__(out, free_port(), "--http", f"127.0.0.1:{port}")
        self.url = f"ws://127.0.0.1:{port}/ws"


class Relay:
    """A relay that connects each WebSocket to a ZeroMQ endpoint; bytes that are not a message pass as a binary
    frame."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.refused: list[str] = []  # errors in the client's messages
        self._server: Server = serve(self._pass, "127.0.0.1", 0, subprotocols=[Subprotocol("rtcontrol.v1")])
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}/ws"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _pass(self, client: ServerConnection) -> None:
        dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(self._endpoint)
        with contextlib.suppress(ConnectionClosed), dealer:
            while True:
                with contextlib.suppress(TimeoutError):
                    try:
                        dealer.send_multipart(encode_msgpack(decode_json(str(client.recv(timeout=0.002)))))
                    except WireError as error:
                        self.refused.append(str(error))
                while dealer.poll(0):
                    parts = dealer.recv_multipart()
                    try:
                        client.send(encode_json(decode_msgpack(parts)))
                    except WireError:
                        client.send(b"".join(parts))

    def close(self) -> None:
        self._server.shutdown()


Answer = tuple[int, dict[str, str], bytes]


def names(endpoint: str) -> Answer:
    return 200, {}, json.dumps({"address": endpoint, "server_key": None}).encode()


class Front:
    """A /connect server that answers each request with the first of `answers`, and repeats the last."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Answer] = []
        self.holds = False  # if true, the next request is never answered
        self.over = threading.Event()
        self.requests: list[tuple[float, dict[str, str]]] = []  # the time and the headers of each request

    def answer(self, request: Quiet) -> None:
        self.requests.append((time.monotonic(), {k.lower(): v for k, v in request.headers.items()}))
        if self.holds:
            self.holds = False
            self.over.wait(60)
        status, headers, body = self.answers[0]
        if len(self.answers) > 1:
            del self.answers[0]
        request.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, text)
        request.end_headers()
        request.wfile.write(body)


@contextmanager
def fronted() -> Iterator[tuple[Front, Stand, Stand]]:
    """Yield a /connect server and two scripted servers."""
    front, anywhere = Front(), "tcp://127.0.0.1:*"

    class Handler(Quiet):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:  # noqa: N802
            front.answer(self)

    with http_server(Handler) as url, closing(Stand(anywhere)) as first, closing(Stand(anywhere)) as second:
        front.url = f"{url}/connect"
        yield front, first, second
        front.over.set()


C = TypeVar("C", bound=Events)


def check_first_server(front: Front, first: Stand, start: Callable[[str], C]) -> C:
    """Check that only a valid answer makes the client connect, and that its next request names a dead server."""
    dead = f"tcp://127.0.0.1:{free_port()}"
    front.answers = [(503, {"Retry-After": "1"}, b"{}"), (200, {}, b"<html>"), (302, {"Location": "/"}, b"")]
    front.answers += [names(dead), names(first.endpoint)]
    client = start(front.url)
    assert first.expect(Hello, 30.0, "hello").resume is None
    first.welcome()
    first.call(first.observation())
    client.event("call")
    times, headers = zip(*front.requests, strict=True)
    assert len(times) == 5 and times[1] - times[0] >= 1.0
    lost = [each.get("x-lost") for each in headers]
    assert lost == [None, None, None, None, dead], lost
    hints = {each["x-tools"] for each in headers}
    assert len(hints) == 1 and all(8 <= len(hint) <= 64 and set(hint) <= set("0123456789abcdef") for hint in hints)
    return client


def check_next_server(front: Front, first: Stand, second: Stand, client: Events, stats: Callable[[], Any]) -> None:
    """Check that a bye with `reconnect` starts a new session at once, and that a silent server is resumed."""
    front.answers = [names(second.endpoint)]
    left = time.monotonic()
    first.send(Bye(session=first.token, reason="draining", reconnect=True))
    client.event("safe")
    assert second.expect(Hello, 10.0, "hello at the next server").resume is None
    assert front.requests[-1][0] - left < 1.0 and "x-lost" not in front.requests[-1][1]
    second.welcome()
    second.call(second.observation())
    client.event("call")
    assert stats()["address"] == second.endpoint
    second.alive = False
    assert second.expect(Hello, 20.0, "hello at the silent server").resume == second.token
    assert front.requests[-1][1]["x-lost"] == second.endpoint
    second.alive = True
    second.welcome(resumed=True)
    front.answers = [names(first.endpoint)]
    second.close()
    assert first.expect(Hello, 30.0, "hello after the server's end").resume is None
    first.welcome()
    first.call(first.observation())
    client.event("call")
    assert stats()["ended"] is None
