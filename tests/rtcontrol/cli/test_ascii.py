"""A terminal that has no character beyond ASCII: `?` stands for those it lacks, and nothing fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# `C` as a container has it, where Python makes no UTF-8 of it.
ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}
EVERY_HELP = """
import sys
from typer.main import get_command
from rtcontrol.cli import main
from rtcontrol.cli.app import app

def walk(command, path):
    yield path
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from walk(command.get_command(None, name), [*path, name])

paths = list(walk(get_command(app), []))
for path in paths:
    sys.argv = ["rtcontrol", *path, "--help"]
    try:
        main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{path}: {end.code}")
print(len(paths), "helps")
"""


def python(encoding: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHONIO"))}
    given: dict[str, Any] = {"env": {**env, **ENCODINGS[encoding]}, "capture_output": True, "timeout": 120, **more}
    return subprocess.run([sys.executable, *arguments], check=False, **given)


def test_every_command_has_its_help_there() -> None:
    done = python("ascii", "-c", EVERY_HELP)
    assert done.returncode == 0, done.stderr.decode()[-500:]
    assert done.stdout.isascii() and int(done.stdout.split()[-2]) > 30


@pytest.mark.parametrize("bridge", ["ros2", "carla"])
def test_a_bridge_has_its_help_there(bridge: str) -> None:
    done = python("ascii", "-m", f"rtcontrol.bridges.{bridge}", "--help")
    assert done.returncode == 0 and done.stdout.isascii() and not done.stderr


def test_tools_and_rows_are_shown_there(tmp_path: Path) -> None:
    tool = {"name": "fahr", "description": "Zur Tür – 右へ", "parameters": {"properties": {"d": {"enum": ["左", "ü"]}}}}
    row = {"instruction": "zur Tür 右", "observation": "x", "tools": [tool], "history": [], "call": None, "id": "1"}
    (tmp_path / "tools.json").write_text(json.dumps([tool], ensure_ascii=False), "utf-8")
    (tmp_path / "rows.jsonl").write_text(json.dumps(row, ensure_ascii=False), "utf-8")
    for command in (("tools", "check", "tools.json"), ("data", "show", "rows.jsonl"), ("data", "show", "none\u2026")):
        done = python("C", "-m", "rtcontrol", *command, cwd=tmp_path)
        assert done.returncode == (2 if "none\u2026" in command else 0), done.stderr.decode()[-500:]
        assert b"Traceback" not in done.stderr and b"Internal error" not in done.stderr
    # What programs read keeps every character.
    shown = python("ascii", "-m", "rtcontrol", "data", "show", "rows.jsonl", "--json", cwd=tmp_path).stdout
    assert json.loads(shown.decode("ascii"))["instruction"] == "zur Tür 右"
