"""The command line, in this process or one of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rtcontrol.cli import app as cli
from tests.helpers.processes import ROOT, environment


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


def spawn(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rtcontrol", *arguments],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_ticks(out: Path, ticks: int) -> None:
    give_up = time.monotonic() + 60
    record = out / "record.jsonl"
    while not (record.exists() and record.read_bytes().count(b'"kind"') >= ticks):
        assert time.monotonic() < give_up, "the run does not get under way"
        time.sleep(0.05)


EXPERT = ("run", "--env", "lander", "--model", "expert", "--host", "inprocess", "--no-live")
