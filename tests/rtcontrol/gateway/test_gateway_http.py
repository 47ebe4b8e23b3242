"""The request and response shapes of SimpleTool and OpenAI, options that are refused, and many connections."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_peer import TURN, Serve, Served
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from rtcontrol.gateway import Gateway, GatewayOptions, http_server, websocket
from rtcontrol.gateway.options import origin, read_token
from rtcontrol.models.errors import UserError
from rtcontrol.serve.options import ServerOptions

GAME = {
    "model": "default",
    "messages": [{"role": "user", "content": "Tron light cycle. Wall ahead! Turn LEFT (9 cells free)."}],
    "tools": [TURN],
    "environment": ["pos=10,10", "facing=right", "dist_straight=2", "enemy=none"],
}


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, *messages: dict[str, Any], **more: Any) -> Any:
    said = messages or ({"role": "user", "content": "Turn left."},)
    return client.chat.completions.create(**{"model": "lander", "messages": list(said), "tools": [TURN], **more})


def called(answer: httpx.Response) -> str:
    """Return the name of the function that is called."""
    return str(answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"])


def test_requests_at_once_all_get_their_own_answer(served: Served) -> None:
    def ask(tool: dict[str, Any]) -> str:
        return called(served.post("v1/chat/completions", {**GAME, "tools": [tool]}))

    wait = {"name": "wait", "parameters": {"type": "object", "properties": {}}}
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, [TURN, wait] * 6)) == ["turn", "wait"] * 6


def test_the_openai_client_gets_a_tool_call(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["lander"]
    orders = {"role": "system", "content": "You steer a light cycle."}
    said = {"role": "user", "content": [{"type": "text", "text": "Turn left."}]}
    answer = ask(client, orders, said, temperature=0.7, extra_body={"environment": ["dist_left=9"]})
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    call = choice.message.tool_calls[0]
    assert call.function.name == "turn" and set(json.loads(call.function.arguments)) == {"direction"}
    assert answer.usage is not None and answer.usage.prompt_tokens > 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_health_is_503_once_the_decoder_cannot_be_reached(serve: Any) -> None:
    own = serve(model="noop")
    assert httpx.get(own.url + "health").status_code == 200
    own.pool.close()
    answer = httpx.get(own.url + "health")
    assert answer.status_code == 503
    assert answer.json()["loaded"] is False and answer.json()["status"] != "ok"


def test_a_token_file_is_made_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = GatewayOptions.of(ServerOptions(http="0.0.0.0:8080", token_file=path), "0.0.0.0:8080")
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.token is not None and len(first.token) >= 32
    assert GatewayOptions.of(ServerOptions(http="0.0.0.0:8080", token_file=path), "0.0.0.0:8080").token == first.token


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("", 0o600, "is empty"),
        ("short", 0o600, "16 to"),
        ("with a space in it", 0o600, "16 to"),
        ("x" * 32, 0o644, "chmod"),
    ],
)
def test_a_token_that_is_useless_or_that_others_can_read_is_refused(
    tmp_path: Path, text: str, mode: int, says: str
) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(UserError, match=says):
        GatewayOptions(token=read_token(path))


@pytest.mark.parametrize("http", ["8080", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", ":8080"])
def test_an_address_that_is_none_is_refused(http: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        GatewayOptions.of(ServerOptions(http=http), http)


@pytest.mark.parametrize(
    "text", ["*", "robot.example", "https://robot.example/page", "ftp://a.b", "https://a.b:x", "https://[::1"]
)
def test_an_origin_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no origin"):
        origin(text)


def test_a_port_that_is_taken_is_named(served: Served) -> None:
    taken = GatewayOptions(port=served.gateway.port)
    with pytest.raises(UserError, match="cannot be bound"):
        Gateway(served.admission, served.pool, taken).start()


HOST = "HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = (
    f"GET /ws {HOST}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SAID = {
    "a head without its body": f"POST /v1/chat/completions {HOST}Content-Length: 99\r\n\r\n",
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


def test_sockets_that_speak_leave_room_for_requests(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_SPEAKING", 2)
    few = serve(model="noop")
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(connect(few.ws, compression=None)) for _ in range(3)]
        for line in lines[:2]:
            line.send("{}")
            assert "error" in str(line.recv(timeout=8))
        lines[2].send("{}")
        with pytest.raises(ConnectionClosed, match="too many connections"):
            lines[2].recv(timeout=8)
        assert httpx.get(few.url + "health", timeout=8).status_code == 200


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


def _asked(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": "default", "messages": [{"role": "user", "content": "go"}], "tools": tools}


def _wide(number: int) -> dict[str, Any]:
    values = [{"type": "string", "maxLength": number + i} for i in range(2000)]
    parameters = {"type": "object", "properties": {"a": {"anyOf": values}}, "required": ["a"]}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def test_least_used_set_gives_way_and_tools_beyond_a_limit_evict_none(serve: Serve) -> None:
    one = serve(model="random", tool_sets=2)
    for i in (*range(5), 0):
        renamed = {**TURN, "function": {**TURN["function"], "name": f"turn_{i}"}}
        assert called(one.post("v1/chat/completions", _asked([renamed]))) == f"turn_{i}"
    assert len(one.pool.core.sessions) <= 3
    for number in range(4):
        refused = one.post("v1/chat/completions", _asked([_wide(number)]))
        assert refused.status_code == 400 and "1000 alternatives" in refused.text
        assert '"param":"tools' in refused.text
    assert one.get("metrics").count("rtcontrol_tool_sets 2.0") == 1
    assert httpx.get(one.url + "health", timeout=8).status_code == 200
