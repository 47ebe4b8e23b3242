"""A client that requests its server at /connect: what it sends there, and how it changes servers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rtcontrol_client import Client, ClientError
from rtcontrol_client.client.connect import tools_hint
from rtcontrol_client.wire.messages import Bye, Hello
from tests.bridges.client.worlds import OWN, until
from tests.conformance.check.stand import Stand

Reply = tuple[int, dict[str, str], bytes, float]  # status, headers, body, seconds until it is sent


class Connect:
    """An HTTP server at /connect that gives the scripted replies, the last one again and again."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.times: list[float] = []
        self.replies: list[Reply] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append({name.lower(): value for name, value in self.headers.items()})
                outer.times.append(time.monotonic())
                replies = outer.replies
                status, headers, body, wait_s = replies.pop(0) if len(replies) > 1 else replies[0]
                time.sleep(wait_s)
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *given: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/connect"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def names(self, *stands: Stand) -> None:
        self.replies = [named(stand) for stand in stands]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def named(stand: Stand, wait_s: float = 0.0) -> Reply:
    return 200, {}, json.dumps({"address": stand.endpoint, "server_key": None}).encode(), wait_s


@pytest.fixture
def connect() -> Iterator[Connect]:
    made = Connect()
    yield made
    made.close()


@pytest.fixture
def stands() -> Iterator[tuple[Stand, Stand]]:
    both = Stand("tcp://127.0.0.1:*"), Stand("tcp://127.0.0.1:*")
    yield both
    for one in both:
        one.close()


@pytest.fixture
def joined(connect: Connect, stands: tuple[Stand, Stand]) -> Iterator[Client]:
    """A client that is welcomed by the first stand; the second one is named from then on."""
    connect.names(*stands)
    client = Client(connect.url, OWN)
    stands[0].expect(Hello, 10.0, "hello")
    stands[0].welcome()
    until(lambda: client.connected, "no welcome")
    yield client
    client.close()


def test_bye_with_reconnect_leads_to_the_next_server_at_once(
    joined: Client, connect: Connect, stands: tuple[Stand, Stand]
) -> None:
    first, second = stands
    first.send(Bye(session=first.token, reason="draining", reconnect=True))
    said_s = time.monotonic()
    hello = second.expect(Hello, 10.0, "hello at the other server")
    assert time.monotonic() - said_s < 1.0
    assert hello.resume is None, "another server does not know the session"
    assert joined.address == second.endpoint and joined.error is None
    assert [one.get("x-tools") for one in connect.requests] == [tools_hint(OWN["tools"], None)] * 2
    assert "x-lost" not in connect.requests[1]


def test_silent_server_is_named_as_lost(joined: Client, connect: Connect, stands: tuple[Stand, Stand]) -> None:
    first, second = stands
    first.alive = False
    second.expect(Hello, 10.0, "hello at the other server")
    assert connect.requests[1]["x-lost"] == first.endpoint


def test_same_server_named_again_resumes_the_session(
    joined: Client, connect: Connect, stands: tuple[Stand, Stand]
) -> None:
    first, _ = stands
    connect.names(first)
    token, peer = first.token, first.peer
    first.alive = False
    hello = first.expect(Hello, 10.0, "hello", lambda message: first.peer != peer)
    assert hello.resume == token


def test_full_servers_are_requested_again_after_their_pause(connect: Connect, stand: Stand) -> None:
    connect.replies = [(503, {"retry-after": "1"}, b"{}", 0.0), named(stand)]
    client = Client(connect.url, OWN)
    stand.expect(Hello, 10.0, "hello")
    assert connect.times[1] - connect.times[0] >= 1.0
    client.close()


UNUSABLE: dict[str, Reply] = {
    "a redirect": (302, {"location": "http://127.0.0.1:1/connect"}, b"", 0.0),
    "a page": (200, {}, b"<html>", 0.0),
    "a large answer": (200, {}, b'{"address": "tcp://127.0.0.1:1"' + b" " * 5000 + b"}", 0.0),
    "no answer": (200, {}, b"{}", 3.0),
}


@pytest.mark.parametrize("reply", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_unusable_answer_ends_no_client(connect: Connect, stand: Stand, reply: Reply) -> None:
    connect.replies = [reply, named(stand)]
    client = Client(connect.url, OWN)
    stand.expect(Hello, 10.0, "hello")
    assert client.error is None
    client.close()


def test_slow_answer_holds_up_no_method(connect: Connect, stand: Stand) -> None:
    connect.replies = [named(stand, 1.5)]
    client = Client(connect.url, OWN)
    began_s = time.monotonic()
    calls: list[Callable[[], Any]] = [client.call, lambda: client.observe("left 1"), lambda: client.statistics]
    for call in calls:
        call()
    assert time.monotonic() - began_s < 0.5
    client.close()


def test_no_server_is_reported_with_its_url() -> None:
    url = "http://127.0.0.1:1/connect"
    with pytest.raises(ClientError, match=r"No welcome from http://127\.0\.0\.1:1/connect.*does not answer"):
        Client.connect(url, **{**OWN, "connect_timeout_s": 0.5})
