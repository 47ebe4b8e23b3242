"""A chat model through both ways: its own syntax with what it forces written for it, and free text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import call, refused

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow, write_rows
from tests.models.chat.families import checkpoint
from tests.models.small import tool

TOOLS = (tool("go", to=["left", "right"]), tool("stop"))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    told = ("go left", "go right", "stop")
    write_rows(path, [DataRow(text, text, "test", text, "fast", TOOLS, (), Call("stop")) for text in told])
    return path


def test_a_chat_model_is_judged_in_its_own_syntax_and_in_free_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: Path
) -> None:
    model = str(checkpoint(tmp_path / "model", "hermes"))
    found = {}
    for way in ("heads", "json"):
        assert call("eval", str(rows), "--model", model, "--way", way, "--json", "-") == 0
        found[way] = json.loads(capsys.readouterr().out)
    assert found["heads"]["errors"] == {} and found["heads"]["model"]["profile"] == "chat"
    # A random model writes no call by itself.
    assert found["json"]["errors"] == {"no call was written": 3} and found["json"]["written"]["mean"] > 0
    assert "has no grammar here" in refused(capsys, "eval", str(rows), "--model", model, "--way", "json", "--grammar")
