"""More connections than there are places, none of which asks for anything: a new one is let in at once."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import h11
import httpx
import pytest
from gateway_served import TURN, Serve, Served
from http_server.client import HTTPConnection
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from rtcontrol.gateway import http_server
from rtcontrol.gateway.http_server import JoinedWrites
from rtcontrol.serve import tool_reading
from tests.helpers.processes import until

HOST = "HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = (
    f"GET /ws {HOST}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SAID = {
    "nothing": "",
    "a request, answered": f"GET /health {HOST}\r\n",
    "half a head": f"GET /health {HOST}"[:-3],
    "a head without its body": f"POST /v1/function_call {HOST}Content-Length: 99\r\n\r\n",
    "requests whose answers are not read": f"GET /app.js {HOST}\r\n" * 40,
    "a WebSocket on which nothing is said": UPGRADE,
}


@pytest.fixture(scope="module")
def noop(serve: Serve) -> Served:
    return serve(model="noop")


@contextlib.contextmanager
def held(served: Served, said: str, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        lines = []
        for _ in range(count):
            lines.append(stack.enter_context(socket.create_connection(("127.0.0.1", served.gateway.port), 10)))
            with contextlib.suppress(ConnectionError):
                lines[-1].sendall(said.encode())
        yield lines


@pytest.mark.parametrize("said", SAID)
def test_400_connections_keep_nobody_out(noop: Served, said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with held(noop, SAID[said], 400):
        # The first time: it took up to 20 s.
        assert httpx.get(noop.url + "health", timeout=8).status_code == 200
        with connect(noop.ws, compression=None, open_timeout=8) as line:
            line.send("{}")
            assert "error" in str(line.recv(timeout=8))
    assert "Traceback" not in caplog.text and not [r for r in caplog.records if r.exc_info]


def test_150_silent_websockets_keep_no_other_out(noop: Served) -> None:
    with held(noop, UPGRADE, 150) as lines:
        for line in lines[-20:]:
            assert line.recv(1024).startswith(b"HTTP/1.1 101")
        with connect(noop.ws, compression=None, open_timeout=8) as socket_:
            socket_.send("{}")
            assert "error" in str(socket_.recv(timeout=8))


def test_a_stalled_request_gives_way_where_no_connection_is_idle(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 4)
    few = serve(model="noop")
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            (line,) = stack.enter_context(
                held(few, SAID["a head without its body"][:-2] + "Expect: 100-continue\r\n\r\n", 1)
            )
            assert line.recv(64).startswith(b"HTTP/1.1 100")  # it waits for the body
        assert httpx.get(few.url + "health").status_code == 200


def test_the_one_that_was_idle_for_longest_goes_first_and_one_in_use_never(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 8)
    few = serve(model="noop")
    lines = [HTTPConnection("127.0.0.1", few.gateway.port, timeout=8) for _ in range(5)]
    with connect(few.ws, compression=None) as spoken, contextlib.ExitStack() as stack:
        spoken.send("{}")
        spoken.recv(timeout=8)
        for line in (*lines, lines[0]):  # the first one is asked last
            stack.callback(line.close)
            line.request("GET", "/health")
            assert line.getresponse().read()
        with held(few, "", 1):
            lines[1].sock.settimeout(2)  # after 5 s it would be closed in any case
            assert lines[1].sock.recv(1) == b""
            lines[0].sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                lines[0].sock.recv(1)
        assert spoken.ping().wait(8)


def test_where_all_places_are_in_use_a_request_is_told_so(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)
    full = serve(model="noop")
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            line = stack.enter_context(connect(full.ws, compression=None))
            line.send("{}")
            line.recv(timeout=8)
        assert httpx.get(full.url + "health").status_code == 503
        assert line.ping().wait(8)
    assert httpx.get(full.url + "health").status_code == 200


def test_a_head_goes_out_with_the_first_part_of_its_body_and_nothing_waits_for_the_second() -> None:
    conn = JoinedWrites(h11.SERVER)
    conn.receive_data(f"GET / {HOST}Expect: 100-continue\r\nContent-Length: 1\r\n\r\n".encode())
    conn.next_event()
    said = conn.send(h11.InformationalResponse(status_code=100, headers=[]))
    assert said is not None and said.startswith(b"HTTP/1.1 100 ")
    assert conn.send(h11.Response(status_code=200, headers=[(b"content-length", b"4")])) == b""
    first = conn.send(h11.Data(data=b"ab"))
    assert first is not None and first.startswith(b"HTTP/1.1 200 ") and first.endswith(b"\r\n\r\nab")
    assert [conn.send(h11.Data(data=b"cd")), conn.send(h11.EndOfMessage())] == [b"cd", b""]


@pytest.mark.parametrize("head", ["HEAD /health ", "GET /health ", "GET /no-such-page ", "GET /app.js "])
def test_every_kind_of_answer_comes_whole(noop: Served, head: str) -> None:
    with held(noop, f"{head}{HOST}Connection: close\r\n\r\n", 1) as (line,):
        line.settimeout(10)
        answer = line.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 ") and answer.count(b"HTTP/1.1 ") == 1
    head_, _, body = answer.partition(b"\r\n\r\n")
    length = int(head_.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert len(body) == (0 if head.startswith("HEAD") else length)


@pytest.mark.parametrize("path", ["wss", "live.html", ""])
def test_a_websocket_that_does_not_exist_is_404_with_those_that_do(
    noop: Served, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with pytest.raises(InvalidStatus) as caught, connect(noop.ws.removesuffix("ws") + path, compression=None):
        pass
    assert caught.value.response.status_code == 404 and b"/view/ws" in (caught.value.response.body or b"")
    assert not [r for r in caplog.records if r.exc_info]


def _asked(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": "default", "messages": [{"role": "user", "content": "go"}], "tools": tools}


def _slow(number: int) -> dict[str, Any]:
    values = [{"const": f"value {number} {i}"} for i in range(2500)]
    parameters = {"type": "object", "properties": {"a": {"oneOf": values}}, "required": ["a"]}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def test_tools_that_take_long_to_read_keep_no_others_waiting_and_evict_none(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 0.01)
    one = serve(model="noop", tool_sets=2)
    honest = _asked([TURN])
    assert one.post("v1/chat/completions", honest).status_code == 200
    refused = one.post("v1/chat/completions", _asked([_slow(0)]))
    assert refused.status_code == 400 and "processor's time" in refused.text and '"param":"tools"' in refused.text
    for number in range(1, 25):
        with pytest.raises(httpx.ReadTimeout):  # the client leaves
            httpx.post(one.url + "v1/chat/completions", json=_asked([_slow(number)]), timeout=0.001)
    another = {**TURN, "function": {**TURN["function"], "description": "Anew."}}
    for tools in ([TURN], [another]):
        assert httpx.post(one.url + "v1/chat/completions", json=_asked(tools), timeout=8).status_code == 200
    assert httpx.get(one.url + "health", timeout=8).status_code == 200
    assert "rtcontrol_tool_sets 2.0" in one.get("metrics")


def test_who_hangs_up_is_worked_for_no_longer(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    one = serve(model="noop")
    given_up = threading.Event()

    def endless(tools: Any, gone: Callable[[], bool]) -> bool:
        until(gone)
        given_up.set()
        return False

    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setattr(one.admission.reading, "check", endless)
        with pytest.raises(httpx.TimeoutException):
            httpx.post(one.url + "v1/chat/completions", json=_asked([TURN]), timeout=0.3)
        assert given_up.wait(10)
    assert one.post("v1/chat/completions", _asked([TURN])).status_code == 200
    assert not [r for r in caplog.records if r.exc_info], caplog.text


def test_a_request_tells_so_much_and_no_more(serve: Serve) -> None:
    one = serve()
    long = {**_asked([TURN]), "environment": ["x" * 200] * 2000}
    refused = one.post("v1/chat/completions", long)
    assert refused.status_code == 400 and "400000" not in refused.text and "262144 is the most" in refused.text
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    said = one.post("v1/function_call", {"messages": long["messages"], "tools": [TURN], "history": ["h" * 200] * 2000})
    assert "262144 is the most" in said.json()["error"]
