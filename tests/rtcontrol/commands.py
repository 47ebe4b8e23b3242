"""The command line, in this process or one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
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


def unknown_options(words: Sequence[str]) -> set[str]:
    """Those options of a line of `rtcontrol` that its command does not have. Raises where there is no such command."""
    command: Any = typer.main.get_command(cli.app)
    context, rest = typer.Context(command), list(words)
    while rest and not rest[0].startswith("-") and hasattr(command, "resolve_command"):
        _, command, rest = command.resolve_command(context, rest)
        context = typer.Context(command, parent=context)
    if command.context_settings.get("ignore_unknown_options"):  # a bridge reads its own
        return set()
    known = {option for given in command.params for option in (*given.opts, *given.secondary_opts)}
    return {word.partition("=")[0] for word in rest if word.startswith("--")} - {"--help"} - known


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
    said = capsys.readouterr().err
    assert "Traceback" not in said and len(said.strip().splitlines()) == 1
    return said
