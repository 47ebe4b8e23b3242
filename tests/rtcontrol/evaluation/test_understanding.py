"""How well people are understood: counted without a flight, and flown by what was understood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import call, refused

from rtcontrol.evaluation.understanding import Line, counts, figures, outcome
from tests.rtcontrol.evaluation.chat_server import ChatServer, chat_server, completion

SAID = [
    {"say": "about seventy up", "means": "hover at 0.7"},
    {"say": "to the left", "means": "land on the left side of the pad"},
    {"say": "the other left", "means": "land on the right side of the pad"},
    {"say": "land on the pad", "means": "land on the pad"},
    {"say": "mumble", "means": "land on the pad"},
    {"say": "what time is it", "means": None},
    {"say": "left or right is all the same to a cat", "means": None},
]
LEFT = completion(("land_left", "{}"))
ANSWERS = {"about seventy up": completion(("hover", '{"y": "0.70"}')), SAID[6]["say"]: LEFT}
ANSWERS |= {"to the left": LEFT, "the other left": LEFT}


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    none = completion(("not_understood", "{}"))
    with chat_server(lambda body: ANSWERS.get(body["messages"][-1]["content"], none)) as server:
        yield server


@pytest.fixture
def listed(tmp_path: Path) -> str:
    path = tmp_path / "list.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in SAID))
    return str(path)


def line(means: str | None, understood: str | None, sure: float | None = None) -> Line:
    told = {"say": "x", "means": means, "understood": understood, "sure": sure, "why": None}
    return {**told, "ms": 1.0, "asked": True}


def test_what_is_below_the_gate_is_not_understood() -> None:
    sure = line("stop", "stop", 0.6)
    assert [outcome(sure, gate) for gate in (0.0, 0.6, 0.7)] == ["right", "right", "not understood"]
    assert outcome(line("stop", "go", 0.9), 0.5) == "wrong" and outcome(line("stop", None), 0.5) == "not understood"
    assert outcome(line(None, "go", 0.9), 0.5) == "wrong" and outcome(line(None, "go", 0.3), 0.5) == "right"
    assert outcome(line("stop", "stop"), 0.99) == "right"  # who says nothing of it is believed
    both = [sure, line(None, "go", 0.3), line("stop", None)]
    assert counts(both, 0.5) == {
        "said": 2, "right": 1, "not_understood": 1, "wrong": 0, "nonsense": 1, "nonsense_held": 1,
    }  # fmt: skip
    assert figures([], 0.5)["ms"] == {} and figures(both, 0.5)["ms"] == {"p50": 1.0, "p90": 1.0}


def test_a_list_is_counted_without_a_flight(
    chat: ChatServer, listed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "understood.json"
    asked = ("--phrasings", listed, "--interpreter", f"chat:{chat.url}", "--understand-only", "--json", str(out))
    assert call("score", "--env", "lander", *asked) == 0
    found = json.loads(out.read_text())["understood"]
    assert {name: found[name] for name in ("said", "right", "not_understood", "wrong")} == {
        "said": 5, "right": 3, "not_understood": 1, "wrong": 1,
    }  # fmt: skip
    assert (found["nonsense"], found["nonsense_held"], found["why"]) == (2, 1, {"none": 2})
    shown = capsys.readouterr().out
    assert "3/5" in shown and "land_right" in shown and "mumble" not in shown
    assert len(chat.bodies) == 6  # canonical words are asked of nobody


def test_what_was_understood_is_flown_and_what_was_not_is_held(
    chat: ChatServer, listed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "score.json"
    asked = ("--phrasings", listed, "--interpreter", f"chat:{chat.url}", "--goal", "land on the pad", "--seeds", "1")
    assert call("score", "--env", "lander", "--model", "lander", *asked, "--json", str(out)) == 0
    found = json.loads(out.read_text())
    assert [one["understood"] for one in found["understood"]][:5] == [
        "hover at 0.7", *["land on the left side of the pad"] * 2, "land on the pad", None,
    ]  # fmt: skip
    cells = {cell["part"]: cell for cell in found["cells"].values() if cell["by"] == "lander"}
    flown = cells["phrasings"]
    assert flown["outcomes"][1] == flown["outcomes"][3] == 1 and flown["outcomes"][2] == 0
    assert flown["sure"][4] == 0.0 and flown["unsure"][4] == 1 and cells["nonsense"]["unsure"] == [1, 0]
    asked_for = len(chat.bodies)
    assert call("score", "--env", "lander", "--model", "lander", *asked, "--json", str(out)) == 0
    assert len(chat.bodies) == asked_for  # it goes on with what was answered
    assert "Understood by" in capsys.readouterr().out


def test_mistakes_are_told(listed: str, capsys: pytest.CaptureFixture[str]) -> None:
    gone = "chat:http://127.0.0.1:9/v1"
    score = ("score", "--env", "lander")
    assert "about a list" in refused(capsys, *score, "--understand-only", "--interpreter", gone)
    assert "Give a list" in refused(capsys, *score, "--interpreter", gone)
    said = refused(capsys, *score, "--phrasings", listed, "--interpreter", gone, "--understand-only")
    assert "3 times in a row" in said and "connection" in said
