"""Texts of others on the operator's terminal: they move no cursor, and begin no line of their own."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

from rtcontrol.bridges.console import printable
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.telemetry.table import Terminal
from tests.helpers.processes import cli

BAD = "\x1b[2J\x1b]0;title\x07\r\nFORGED\x9b31m\x85\u2028\u202e"
TOOL = {
    "name": f"turn{BAD}",
    "description": f"turns{BAD}",
    "parameters": {"properties": {f"to{BAD}": {"enum": [f"left{BAD}", "right"]}}, "required": [f"to{BAD}"]},
}


def rows(folder: Path) -> list[str]:
    call = {"name": TOOL["name"], "arguments": {f"to{BAD}": f"left{BAD}"}}
    row = {"instruction": f"go{BAD}", "observation": BAD, "tools": [TOOL], "history": [BAD], "call": call}
    (folder / "rows.jsonl").write_text(json.dumps(row))
    return ["data", "show", "rows.jsonl"]


def unknown_call(folder: Path) -> list[str]:
    row = {
        "instruction": "go",
        "observation": "",
        "tools": [TOOL],
        "history": [],
        "call": {"name": BAD, "arguments": {}},
    }
    (folder / "rows.jsonl").write_text(json.dumps(row))
    return ["eval", "rows.jsonl", "--model", "lander"]


def bad_tools(folder: Path) -> list[str]:
    (folder / "tools.json").write_text(json.dumps([{"name": f"a{BAD}", "schema": {}}, {"name": BAD}]))
    return ["tools", "check", "tools.json"]


def file_name(folder: Path) -> list[str]:
    (folder / "world\x1b[2J\nFORGED.py").write_text("raise ValueError('\\x1b[2J\\nFORGED\\x9b')")
    return ["run", "--env", "./world\x1b[2J\nFORGED.py", "--agent", "lander"]


def configuration(folder: Path) -> list[str]:
    (folder / "run.toml").write_text('"k\\u001b[2J\\nFORGED" = 3\n')
    return ["run", "--config", "run.toml"]


def checkpoint(folder: Path) -> list[str]:
    shutil.copytree(resolve("lander"), folder / "made")
    config = json.loads((folder / "made/config.json").read_text())
    (folder / "made/config.json").write_text(json.dumps({**config, "model_type": BAD}))
    return ["models", "info", "made"]


@pytest.mark.parametrize("made", [rows, unknown_call, bad_tools, file_name, configuration, checkpoint])
def test_they_stand_escaped_whatever_shows_them(made: Any, tmp_path: Path) -> None:
    shown = cli(*made(tmp_path), cwd=tmp_path)
    said = shown.stdout + shown.stderr
    assert "\\x1b" in said
    lines = said.split("\n")
    assert lines == [printable(line) for line in lines] and not [s for s in lines if s.startswith("FORGED")]


def test_tables_keep_their_colours_and_no_others() -> None:
    console = Terminal(file=io.StringIO(), force_terminal=True, width=200)
    table = Table("name\x1b[2J")
    table.add_row("\x1b[31m\u202e[bold]left[/bold]")
    console.print(table)
    console.print(f"[green]right[/green]\x1b[1A{BAD}", soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "\x1b[1mleft\x1b[0m" in said and "\x1b[32mright\x1b[0m" in said
    assert not [s for s in ("\x1b[2J", "\x1b[31m", "\x1b[1A", "\x1b]", "\r", *"\x07\x85\x9b\u2028\u202e") if s in said]
