"""What a model says beside its call, over HTTP: on request, after the call, in nobody's way."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_served import TURN, Serve, Served

from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import FILE_NAME as LEARNT

ASKED = {"model": "default", "messages": [{"role": "user", "content": "Turn left."}], "tools": [TURN]}
LONG = 300  # tokens: seconds


@pytest.fixture(scope="module")
def talking(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A model whose template says that it writes content, and that does not end by itself soon."""
    folder = tmp_path_factory.mktemp("models") / "talker"
    shutil.copytree(ZOO / "lander", folder, ignore=shutil.ignore_patterns(LEARNT))
    template = json.loads((folder / "st_template.json").read_text())
    (folder / "st_template.json").write_text(json.dumps({**template, "content": True}))
    return serve(model=str(folder), value_tokens=LONG)


@pytest.fixture(scope="module")
def client(talking: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=talking.url + "v1", api_key="none", max_retries=0)


def streamed(served: Served, seen: threading.Event | None = None) -> tuple[dict[str, float], str]:
    """When the call and the content of a streamed answer came, in s, and the text."""
    body = {**ASKED, "stream": True, "include_content_head": True}
    came, text, began = {}, "", time.monotonic()
    with httpx.stream("POST", served.url + "v1/chat/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    if choice["delta"].get("tool_calls"):
                        came["call"] = time.monotonic() - began
                        if seen is not None:
                            seen.set()
                    if choice["delta"].get("content"):
                        came["content"], text = time.monotonic() - began, text + choice["delta"]["content"]
    return came, text


def test_the_content_comes_on_request_and_changes_no_call(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(**ASKED).choices[0]  # type: ignore[call-overload]
    asked = {**ASKED, "extra_body": {"include_content_head": True}}
    beside = client.chat.completions.create(**asked).choices[0]  # type: ignore[call-overload]
    assert plain.message.content is None and beside.message.content
    assert [c.function for c in plain.message.tool_calls] == [c.function for c in beside.message.tool_calls]
    assert beside.finish_reason == "tool_calls"


def test_a_streamed_call_does_not_wait_for_the_content_nor_do_other_clients(talking: Served) -> None:
    streamed(talking)  # once, so that all is loaded
    seen, waits = threading.Event(), []

    def others() -> None:
        seen.wait(30)
        for _ in range(5):
            began = time.monotonic()
            answer = talking.post("v1/function_call", {"messages": ASKED["messages"], "tools": [TURN]})
            assert answer.json()["success"] is True
            waits.append(time.monotonic() - began)

    thread = threading.Thread(target=others)
    thread.start()
    came, text = streamed(talking, seen)
    thread.join()
    assert text and came["call"] < came["content"] / 3
    assert len(waits) == 5 and sorted(waits)[2] < (came["content"] - came["call"]) / 4


def test_a_game_that_asks_for_it_gets_the_content(talking: Served) -> None:
    body: dict[str, Any] = {"messages": ASKED["messages"], "tools": [TURN]}
    assert talking.post("v1/function_call", body).json()["content"] is None
    said = talking.post("v1/function_call", {**body, "include_content_head": True}).json()
    assert said["success"] is True and said["content"]


@pytest.mark.parametrize("model", [None, "random", str(Path(ZOO / "lander"))])
def test_a_model_without_the_head_says_so_and_gives_its_call(serve: Serve, model: str | None) -> None:
    from rtcontrol.agents.lander.tools import agent

    plain = serve(model=model)
    body = {**ASKED, "tools": agent.tools.openai(), "include_content_head": True}
    answer = plain.post("v1/chat/completions", {**body, "model": "default"}).json()
    assert answer["choices"][0]["message"]["content"] is None and answer["choices"][0]["message"]["tool_calls"]
    assert "no content" in answer["rtcontrol"]["no_content"]
    game = plain.post("v1/function_call", body)
    assert game.json()["success"] is True and game.json()["content"] is None
    assert "no content" in game.headers["x-rtcontrol-warning"]
