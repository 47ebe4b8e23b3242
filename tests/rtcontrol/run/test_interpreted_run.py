"""`rtcontrol run --interpreter` as people use it: a process, lines that are typed, a real endpoint over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import EXPERT, refused, spawn, until, wait_for_ticks

from rtcontrol.telemetry.record_reader import read_record
from tests.rtcontrol.evaluation.chat_server import ChatServer, chat_server, completion

ANSWERS = {
    "about seventy up please": completion(("hover", '{"y": 0.7}')),
    "go to the left": completion(("land_left", "{}")),
}
AGENT = """from dataclasses import replace
from rtcontrol.agents.lander.tools import agent as lander
agent = replace(lander, name="mine")
"""
NONE = completion(("not_understood", "{}"))


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server(lambda body: ANSWERS.get(body["messages"][-1]["content"], NONE)) as server:
        yield server


def events(out: Path, key: str) -> list[dict[str, Any]]:
    return [event for event in read_record(out / "record.mcap") if key in event and "observation" not in event]


def test_typed_words_are_understood_and_told_in_record_and_report(chat: ChatServer, tmp_path: Path) -> None:
    out = tmp_path / "run"
    told = ("--interpreter", f"chat:{chat.url}#small", "--stdin", "--out", str(out))
    run = spawn(*EXPERT, *told, "--duration", "120", "--hz", "20")
    assert run.stdin is not None
    wait_for_ticks(out, 5)
    run.stdin.write("about seventy up please\n")
    run.stdin.flush()
    until(lambda: len(events(out, "understood")) == 2, seconds=30)
    run.stdin.write("make me a sandwich\n")
    run.stdin.flush()
    until(lambda: len(events(out, "understood")) == 3, seconds=30)
    run.stdin.write("/stop\n")
    run.stdin.flush()
    said, complaint = run.communicate(timeout=60)
    assert run.returncode == 0, complaint
    assert '"about seventy up please" is understood as: hover at 0.7 (chat:small, ' in complaint
    assert '"make me a sandwich" is not understood: it asks for none of the goals.' in complaint
    assert "understood 1 of 2 said, not understood 1 (none 1)" in said
    report = json.loads((out / "report.json").read_text())
    assert [one["understood"] for one in report["understood"]] == ["land on the pad", "hover at 0.7", None]
    assert report["interpreter"] == f"chat:{chat.url}#small"
    assert [event["instruction"] for event in events(out, "instruction")] == ["hover at 0.7"]
    assert report["skipped_releases"] == 0 or report["misses_by_cause"] == {}


def test_a_first_instruction_that_nobody_understands_is_a_mistake(
    chat: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (*EXPERT, "--interpreter", f"chat:{chat.url}", "--out", str(tmp_path / "run"))
    said = refused(capsys, *asked, "--instruct", "make me a sandwich")
    assert '"make me a sandwich" is not understood' in said and "land on the left side of the pad" in said
    assert not (tmp_path / "run" / "record.mcap").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--interpreter", "noop"), "understands nothing"),
        (("--interpreter", "chat:nowhere"), "its URL is none"),
        (("--interpreter", "/nowhere/at/all"), "/nowhere/at/all"),
        (("--interpreter", "decisions:http://127.0.0.1:1/v1"), "understands nothing"),
    ],
)
def test_mistakes_are_told(options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, *EXPERT, *options)


def test_an_agent_without_goals_has_nothing_to_understand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(AGENT)
    asked = ("run", "--env", "lander", "--agent", str(tmp_path / "mine.py"), "--model", "random", "--host", "inprocess")
    out = ("--out", str(tmp_path / "run"))
    assert "has no goals" in refused(capsys, *asked, *out, "--interpreter", "chat:http://127.0.0.1:1/v1")
