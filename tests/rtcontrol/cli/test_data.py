"""Tests of `rtcontrol data` and `rtcontrol models train`: data sets become rows, and rejects are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

from rtcontrol.models.data.row import read_rows
from tests.models.small import build_checkpoint
from tests.models.train.finetune_rows import random_rows, write

LAMP = {"type": "object", "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}}, "required": ["on"]}


def chat(n: int, *calls: dict[str, Any]) -> str:
    made = [{"function": {"name": "lamp", "arguments": arguments}} for arguments in calls]
    messages = [{"role": "user", "content": f"Light {n}."}, {"role": "assistant", "tool_calls": made}]
    tools = [{"function": {"name": "lamp", "description": "Lights.", "parameters": LAMP}}]
    return json.dumps({"id": f"c{n}", "messages": messages, "tools": tools})


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Write chats: two samples with one call, one with two calls, one with none, and one with an illegal call."""
    path = tmp_path / "chats.jsonl"
    lines = [
        chat(0, {"room": "hall", "on": True}),
        chat(1, {"on": False}),
        chat(2, {"on": True, "room": "bath"}, {"on": False, "room": "hall"}),
        chat(3),
        chat(4, {"on": "dim"}),
    ]
    path.write_text("\n".join(lines))
    return path


def test_data_set_is_converted_and_rejects_are_reported(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, counts = tmp_path / "rows.jsonl", tmp_path / "counts.json"
    assert call("data", "convert", f"openai={chats}", "--out", str(out), "--json", str(counts)) == 0
    rows = list(read_rows(out))
    assert [row.sample for row in rows] == ["c0", "c1", "c2", "c2"]
    assert rows[3].history == (rows[2].call.text() if rows[2].call else "",)
    assert [p.name for p in rows[0].tools[0].parameters] == ["on", "room"]
    found = json.loads(counts.read_text())
    assert found["rows_written"] == 4
    assert {one["reason"]: one["count"] for one in found["dropped"]} == {
        "no call": 1,
        "a value that its parameter does not allow": 1,
    }
    assert "4 rows" in capsys.readouterr().out
    judged = ("data", "convert", f"openai={chats}", "--set", "data.for=eval", "--out", str(out))
    assert call(*judged, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows_written"] == 5 and len(found["noted"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["convert", "nothing", "--out", "{tmp}/o.jsonl"], "neither a file nor a data set"),
        (["convert", "openai={tmp}/none", "--out", "{tmp}/o.jsonl"], "There is no {tmp}/none"),
        (
            ["convert", "openai={chats}", "--set", "data.balance=paper", "--out", "{tmp}/o.jsonl"],
            "No row has a call of 3",
        ),
        (
            ["convert", "openai={chats}", "--set", "data.balance=1,2", "--out", "{tmp}/o.jsonl"],
            "is not a list of shares",
        ),
        (["convert", "openai={chats}", "--out", "/proc/o.jsonl"], "/proc/o.jsonl cannot be written"),
        (["convert", "openai={tmp}/bad.jsonl", "--out", "{tmp}/o.jsonl"], "bad.jsonl:2"),
        (
            ["convert", "openai={tmp}/no_row.jsonl", "--out", "{tmp}/o.jsonl"],
            "gives no rows. Most often dropped: 1 for no",
        ),
    ],
)
def test_convert_error_is_one_paragraph_without_output(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "bad.jsonl").write_text("{}\n{")
    (tmp_path / "no_row.jsonl").write_text(chat(0) + "\n" + chat(1, {"on": "dim"}))
    before = sorted(tmp_path.iterdir())
    places = {"tmp": tmp_path, "chats": chats}
    assert call("data", *(one.format(**places) for one in arguments)) == 2
    told = capsys.readouterr()
    assert said.format(**places) in told.err and "Traceback" not in told.err
    assert sorted(tmp_path.iterdir()) == before


def test_synthesise_makes_rows_from_templates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "lamp", "parameters": LAMP}]))
    out, made = tmp_path / "made.jsonl", set()
    for _ in range(2):
        options = (str(tmp_path / "tools.json"), "--set", "data.rows=20", "--out", str(out))
        assert call("data", "synthesise", *options) == 0
        made.add(out.read_text())
    assert len(made) == 1 and len(list(read_rows(out))) == 20
    assert "20 rows" in capsys.readouterr().out


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("peft")
    return build_checkpoint(tmp_path_factory.mktemp("model") / "m", seed=2, scale=0.1)


def test_training_from_rows_can_be_resumed(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(tmp_path / "r.jsonl", random_rows(0, 40))
    command = (
        "models", "train", "--base", str(base), "--rows", str(rows), "--set", "train.rank=4",
        "--set", "train.device=cpu", "--set", "train.dtype=fp32", "--set", "train.steps=2",
        "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert call(*command, "--json", str(tmp_path / "found.json")) == 0
    said = capsys.readouterr().out
    assert "step 1/2  loss" in said and "step 2/2  loss" in said and f"Checkpoint: {tmp_path}/out/model" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["run"]["rank"] == 4 and found["steps"] == 2
    assert call(*command) == 0
    assert "step" not in capsys.readouterr().out.replace("2 steps", "")  # nothing was left to do
    assert call("models", "info", str(tmp_path / "out" / "model")) == 0
    said = refused(capsys, *command[:-2], "--out", str(tmp_path / "out"), "--set", "train.seed=3")
    assert "seed was 0, is 3" in said
