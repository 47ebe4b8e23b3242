"""Endpoints over real HTTP: what they are asked, how they are read, and what ends a run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server, completion
from commands import call, refused

from rtcontrol.evaluation import endpoints
from rtcontrol.evaluation.endpoints import ChatAnswerer, QuestionsAnswerer
from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow, write_rows
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.predictions import read
from tests.models.small import tool
from tests.rtcontrol.hosts.standin_endpoint import standin

GO = tool("a.go", to=["left", "right"], speed={"type": "integer", "minimum": 0, "maximum": 2})
OPEN = tool("write", text={"type": "string"})
LEFT = Call("a.go", {"to": "left", "speed": 1})
ROW = DataRow("1", "1", "test", "go left", "a wall", (GO,), ("a.go(to=right)",), LEFT)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "PAUSE_S", 0.0)


def test_a_chat_endpoint_is_asked_with_the_rows_tools_and_read() -> None:
    with chat_server(lambda body: completion(("a_go", '{"to": "left", "speed": 1}'))) as server:
        found = ChatAnswerer(f"openai:{server.url}#small").answer(ROW)
    (body,) = server.bodies
    assert server.paths == ["/v1/chat/completions"] and body["model"] == "small" and body["temperature"] == 0
    assert body["tools"][0]["function"]["name"] == "a_go"  # no dots in this API
    assert body["messages"] == [{"role": "user", "content": "go left\n\nCalls so far: a.go(to=right)\n\na wall"}]
    assert found.calls == (LEFT,) and (found.tokens, found.written) == (40, 9)
    assert found.error is None and found.ms is not None and found.ms > 0


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ((200, b"<html>"), "no JSON"),
        ((200, b"[]"), "no chat completion"),
        ((200, b'{"choices": []}'), "no chat completion"),
        ((200, b"[" * 100_000), "no JSON"),
        (completion(("a_go", "{")), "no chat completion"),
        (completion(("a_go", "[3]")), "no chat completion"),
        ((400, b'{"error": {"message": "too long"}}'), "HTTP 400.*too long"),
    ],
)
def test_nonsense_of_an_endpoint_is_one_wrong_answer(said: tuple[int, bytes], error: str) -> None:
    with chat_server(lambda body: said) as server:
        found = ChatAnswerer(f"openai:{server.url}").answer(ROW)
    assert not found.calls and found.error is not None and len(server.bodies) == 1
    assert re.search(error, found.error)


def test_text_instead_of_a_call_and_several_calls_are_kept_as_they_are() -> None:
    with chat_server(lambda body: completion(content="I would go left.")) as server:
        found = ChatAnswerer(f"openai:{server.url}").answer(ROW)
        assert (found.calls, found.error) == ((), None)
    with chat_server(lambda body: completion(("a_go", '{"to": "left"}'), ("other", "{}"))) as server:
        found = ChatAnswerer(f"openai:{server.url}").answer(ROW)
        assert [one.name for one in found.calls] == ["a.go", "other"]


@pytest.mark.parametrize(("status", "named"), [(401, "refuses the key"), (404, "refuses the address")])
def test_a_refused_key_or_address_ends_the_run(status: int, named: str) -> None:
    with chat_server(lambda body: (status, b"{}")) as server, pytest.raises(UserError, match=named):
        ChatAnswerer(f"openai:{server.url}").answer(ROW)
    assert len(server.bodies) == 1


def test_an_endpoint_that_is_busy_is_asked_again_and_one_that_is_gone_ends_the_run() -> None:
    said = iter([(503, b"busy"), (0, b""), (429, b"slow down"), completion(("a_go", '{"to": "left", "speed": 1}'))])
    with chat_server(lambda body: next(said)) as server:
        assert ChatAnswerer(f"openai:{server.url}").answer(ROW).calls == (LEFT,)
        assert len(server.bodies) == 4
    with pytest.raises(UserError, match=r"does not answer.*is kept"):
        ChatAnswerer(f"openai:{server.url}").answer(ROW)


def test_what_was_answered_before_an_endpoint_went_is_kept_and_gone_on_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    write_rows(rows, [replace(ROW, id=str(n), sample=str(n), instruction=f"go {n}") for n in range(8)])
    good = completion(("a_go", '{"to": "left", "speed": 1}'))
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(body["messages"][0]["content"].partition("\n")[0])
        return (500, b"gone") if 8 <= len(asked) < 12 else good

    with chat_server(answer) as server:
        given = ("eval", str(rows), "--model", f"openai:{server.url}", "--out", str(out))
        assert call(*given) == 2
        said = capsys.readouterr().err
        assert "does not answer (http: HTTP 500" in said and "Traceback" not in said
        assert sorted(read(out)[1]) == ["0", "1"]  # five to warm up, two that count
        assert call(*given, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["overall"]["right"], found["overall"]["count"]) == (8, 8)
    assert asked.count("go 0") == asked.count("go 1") == 1


@pytest.mark.parametrize("api", ["decisions", "systemone"])
def test_a_decision_endpoint_answers_rows_whose_values_can_be_listed(api: str) -> None:
    wanted = {"function": "a.go", "to": "left", "speed": "1"}
    with standin(choose=lambda told, name, options: wanted.get(name.rpartition(".")[2], options[0])) as server:
        made = QuestionsAnswerer(f"{api}:{server.url}#jev")
        found = made.answer(ROW)
        refused_row = made.answer(replace(ROW, tools=(OPEN,), call=Call("write", {"text": "x"})))
    assert found.calls == (LEFT,) and found.error is None and found.confidence["arg1"] == 0.8
    assert found.tokens == 40 and found.passes == 1
    assert str(refused_row.error).startswith("refused: Tool write, parameter text") and not refused_row.calls


def test_a_decision_endpoints_nonsense_is_wrong_and_its_refusal_ends_the_run() -> None:
    with standin(lambda n: (0.0, "garbage")) as server:
        assert "malformed" in str(QuestionsAnswerer(f"decisions:{server.url}").answer(ROW).error)
    with standin(lambda n: (0.0, 401)) as server, pytest.raises(UserError, match="refuses the key"):
        QuestionsAnswerer(f"decisions:{server.url}").answer(ROW)
    with standin(lambda n: (0.0, "drop" if n < 2 else None)) as server:
        assert QuestionsAnswerer(f"decisions:{server.url}").answer(ROW).error is None
        assert len(server.bodies) == 3


def test_a_wrong_address_is_told_first(capsys: pytest.CaptureFixture[str], lander_file: Path) -> None:
    assert "its URL is none" in refused(capsys, "eval", str(lander_file), "--model", "decisions:ftp://x")
