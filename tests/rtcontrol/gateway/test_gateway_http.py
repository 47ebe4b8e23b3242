"""The request and response shapes of SimpleTool and OpenAI, options that are refused, and many connections."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_peer import TURN, Serve, Served
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from rtcontrol.gateway import GatewayOptions, websocket
from rtcontrol.gateway.options import origin, read_token
from rtcontrol.models.errors import UserError
from rtcontrol.serve.options import ServeOptions

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
    sentence = messages or ({"role": "user", "content": "Turn left."},)
    return client.chat.completions.create(**{"model": "lander", "messages": list(sentence), "tools": [TURN], **more})


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
    sentence = {"role": "user", "content": [{"type": "text", "text": "Turn left."}]}
    answer = ask(client, orders, sentence, temperature=0.7, extra_body={"environment": ["dist_left=9"]})
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    call = choice.message.tool_calls[0]
    assert call.function.name == "turn" and set(json.loads(call.function.arguments)) == {"direction"}
    assert answer.usage is not None and answer.usage.prompt_tokens > 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_health_is_503_without_a_decoder(serve: Any) -> None:
    separate = serve(model="noop")
    assert httpx.get(separate.url + "health").status_code == 200
    separate.pool.close()
    answer = httpx.get(separate.url + "health")
    assert answer.status_code == 503
    assert answer.json()["loaded"] is False and answer.json()["status"] != "ok"


def test_token_file_is_made_private_and_reread(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = GatewayOptions.of(ServeOptions(http="0.0.0.0:8080", token_file=path), "0.0.0.0:8080")
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.token is not None and len(first.token) >= 32
    assert GatewayOptions.of(ServeOptions(http="0.0.0.0:8080", token_file=path), "0.0.0.0:8080").token == first.token


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("", 0o600, "16 to"),
        ("short", 0o600, "16 to"),
        ("with a space in it", 0o600, "16 to"),
        ("x" * 32, 0o644, "chmod"),
    ],
)
def test_weak_or_readable_token_is_refused(tmp_path: Path, text: str, mode: int, says: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(UserError, match=says):
        GatewayOptions(token=read_token(path))


@pytest.mark.parametrize(
    "text", ["*", "robot.example", "https://robot.example/page", "ftp://a.b", "https://a.b:x", "https://[::1"]
)
def test_an_origin_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not an origin"):
        origin(text)


def test_websockets_leave_room_for_requests(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_OPEN", 2)
    few = serve(model="noop")
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(connect(few.ws, compression=None)) for _ in range(3)]
        with pytest.raises(ConnectionClosed, match="too many connections"):
            lines[2].recv(timeout=8)
        assert httpx.get(few.url + "health", timeout=8).status_code == 200


def _asked(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": "default", "messages": [{"role": "user", "content": "go"}], "tools": tools}


def _wide(number: int) -> dict[str, Any]:
    values = [{"type": "string", "maxLength": number + i} for i in range(2000)]
    parameters = {"type": "object", "properties": {"a": {"anyOf": values}}, "required": ["a"]}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def test_least_used_tool_set_gives_way(serve: Serve) -> None:
    single = serve(model="random", tool_sets=2)
    for i in (*range(5), 0):
        renamed = {**TURN, "function": {**TURN["function"], "name": f"turn_{i}"}}
        assert called(single.post("v1/chat/completions", _asked([renamed]))) == f"turn_{i}"
    assert len(single.pool.sessions) <= 3
    for number in range(4):
        refused = single.post("v1/chat/completions", _asked([_wide(number)]))
        assert refused.status_code == 400 and "1000 alternatives" in refused.text
        assert '"param":"tools' in refused.text
    assert len(single.pool.sessions) <= 3
    assert httpx.get(single.url + "health", timeout=8).status_code == 200
