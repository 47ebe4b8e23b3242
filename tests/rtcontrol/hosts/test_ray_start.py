"""Ray as it is started and ended: killed meanwhile, unreachable; nothing may be left behind."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pooled import running

from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import Program, until

COMMAND = ["-m", "rtcontrol", "run", "--env", "lander", "--model", "expert", "--no-live", "--duration", "60", "--out"]
START = "from rtcontrol.hosts.ray_pool import own_host; import rtcontrol.hosts.deciders as d, time; "
START += "own_host(d.NoopSource()).start(); time.sleep(60)"


@pytest.fixture
def base() -> Iterator[Path]:
    """Where runs make their folders; Ray takes no long path."""
    folder = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
    (folder / "runs").mkdir()
    yield folder / "runs"
    shutil.rmtree(folder)


def said(base: Path) -> Path:
    return base.parent / "stderr"


def started(base: Path, *arguments: str, address: str = "") -> subprocess.Popen[str]:
    env = {"RAY_TMPDIR": str(base), "RAY_ADDRESS": address}
    return Program(arguments, said(base), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).popen


def left(base: Path) -> dict[str, int]:
    return {name: pid for folder in base.iterdir() for name, pid in running(str(folder)).items()}


@pytest.mark.parametrize(
    "instant", ["folder", "gcs_server", pytest.param("raylet", marks=pytest.mark.slow), "ray::DecoderActor"]
)
def test_killed_while_ray_starts_nothing_is_left(base: Path, instant: str) -> None:
    run = started(base, "-c", START)
    until(lambda: any(base.iterdir()) if instant == "folder" else instant in left(base), seconds=120.0)
    folders = [str(folder) for folder in base.iterdir()]
    run.kill()
    run.wait()
    until(lambda: not any(base.iterdir()), seconds=60.0)
    assert [running(folder) for folder in folders] == [{}]


@pytest.mark.parametrize(
    ("number", "instant"),
    [
        (signal.SIGTERM, "flying"),
        (signal.SIGKILL, "flying"),
        pytest.param(signal.SIGINT, "gcs_server", marks=pytest.mark.slow),
        (signal.SIGTERM, "gcs_server"),
    ],
)
def test_a_run_that_is_ended_leaves_nothing(base: Path, tmp_path: Path, number: int, instant: str) -> None:
    run = started(base, *COMMAND, str(tmp_path / "run"))
    record = tmp_path / "run" / "record.mcap"

    def flying() -> bool:
        return record.exists() and sum("kind" in e for e in read_record(record)) > 5

    until(flying if instant == "flying" else lambda: instant in left(base), seconds=120.0)
    folder = str(next(base.iterdir()))
    assert len(running(folder)) >= 1
    run.send_signal(number)
    assert run.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        made = json.loads((tmp_path / "run" / "report.json").read_text())
        assert made["ended_by"] == signal.Signals(number).name
        assert made["releases"] > 5 if instant == "flying" else made["releases"] == 0
        # Ray's own handler prints a stack, and aborts the run when it needs more than 3 s to end.
        assert not re.search("SIGTERM received|Traceback", said(base).read_text())
    until(lambda: not any(base.iterdir()), seconds=0.0 if number != signal.SIGKILL else 60.0)
    assert running(folder) == {}


SESSION = """
import os, pathlib, sys, time
marked = []
sys.addaudithook(lambda event, args: event == "subprocess.Popen" and marked.append("RTCONTROL_RUN" in os.environ))
from rtcontrol.hosts.ray_start import RaySession
session = RaySession()
session.start()
told = pathlib.Path(sys.argv[1])
told.write_text(f"{len(session.files)} {bool(marked)} {any(marked)} .")
while told.exists():
    time.sleep(0.05)
session.end()
sys.exit(9 if any(marked) else 0)
"""


def test_no_worker_is_started_before_one_is_asked_for_and_nothing_else_bears_the_runs_mark(
    base: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    run = started(base, "-c", SESSION, str(told))
    until(lambda: run.poll() is not None or (told.exists() and told.read_text().endswith(".")), seconds=120.0)
    assert told.read_text() == "2 True False .", said(base).read_text()
    # The first driver would wait for it inside Ray's core, and keep the interpreter from everybody else.
    assert not [name for name in left(base) if name.startswith("ray::IDLE")], left(base)
    told.unlink()
    assert run.wait(120) == 0, said(base).read_text()


def test_ray_that_cannot_start_names_the_remedy(base: Path, tmp_path: Path) -> None:
    run = started(base, *COMMAND, str(tmp_path / "run"), address="127.0.0.1:1")
    assert run.wait(120) == 2
    text = said(base).read_text()
    assert "--host inprocess" in text and "Traceback" not in text
    assert list(base.iterdir()) == []
