"""Helpers that run the command line in this process or in a new one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from rtcontrol.cli import app as cli
from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import ROOT as ROOT
from tests.helpers.processes import environment, until

EXPERT = ("run", "--env", "lander", "--model", "expert", "--host", "inprocess", "--no-live")


def call(*arguments: str) -> int:
    before = sys.argv
    sys.argv = ["rtcontrol", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = before
    assert isinstance(ended.value.code, int)
    return ended.value.code


def settings(*pairs: str) -> tuple[str, ...]:
    """Return the options for these settings, each `name=value`."""
    return tuple(word for pair in pairs for word in ("--set", pair))


def unknown_options(words: Sequence[str]) -> set[str]:
    """Return the options and settings in an `rtcontrol` command line that the command does not have. Raises an error if
    the command does not exist."""
    command: Any = typer.main.get_command(cli.app)
    context, rest = typer.Context(command), list(words)
    while rest and not rest[0].startswith("-") and hasattr(command, "resolve_command"):
        _, command, rest = command.resolve_command(context, rest)
        context = typer.Context(command, parent=context)
    if command.context_settings.get("ignore_unknown_options"):  # a bridge reads its own
        return set()
    known = {option for entry in command.params for option in (*entry.opts, *entry.secondary_opts)}
    known |= {"--help", "--config", "--set", "--json"}
    paths = [value.partition("=")[0] for option, value in pairwise(rest) if option == "--set"]
    paths += [word.split("=")[1] for word in rest if word.startswith("--set=")]
    settings = getattr(command.callback, "settings", {})
    wrong = set(paths) - {entry.path for entry in settings.values()}
    return wrong | {word.partition("=")[0] for word in rest if word.startswith("--")} - known


def report_in(out: Path) -> dict[str, Any]:
    """Return the report of a run in this folder."""
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def spawn(*arguments: str, **env: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "rtcontrol", *arguments]
    return subprocess.Popen(command, env=environment(**env), text=True, errors="surrogateescape", **pipes)


def wait_for_ticks(out: Path, ticks: int) -> None:
    record = out / "record.mcap"
    begun = lambda: record.exists() and record.stat().st_size > 8  # noqa: E731
    under_way = lambda: begun() and sum("kind" in e for e in read_record(record)) >= ticks  # noqa: E731
    until(under_way, "the run does not get under way", seconds=60, every=0.05)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()  # a run before it may have said more where the machine is busy
    assert call(*arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and "Traceback" not in lines[0]
    return lines[0]
