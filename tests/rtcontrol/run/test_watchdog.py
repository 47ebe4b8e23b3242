"""Tests of the watchdog of a run: when it kills the run, and what its guard does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rtcontrol_client import watchdog
from rtcontrol_client.watchdog import BEAT, DONE, IDLE, UNSAFE, guard_arguments, watch
from tests.helpers.processes import environment, until
from tests.rtcontrol.run.test_process import WORLD

SILENT = [None] * 30  # three seconds


@pytest.mark.parametrize(
    ("received", "stopped", "end"),
    [
        ([BEAT, *SILENT], False, "hung"),
        ([BEAT, *SILENT[:9], BEAT, *SILENT[:9], DONE], False, "done"),
        ([IDLE, *SILENT, BEAT, BEAT + DONE], False, "done"),  # nothing acts while a model is loaded
        ([BEAT, *SILENT, DONE], True, "done"),  # as Ctrl-Z or a debugger stops it
        ([BEAT, *SILENT[:5], b""], False, "dead"),
        ([b""], False, "dead"),
        ([BEAT, UNSAFE, None, BEAT + UNSAFE, BEAT, UNSAFE, DONE], False, "done"),
        ([UNSAFE, *SILENT], False, "hung"),
    ],
)
def test_only_a_running_silent_process_counts_as_hung(received: list[bytes | None], stopped: bool, end: str) -> None:
    left = iter(received)
    acts: list[str] = []
    assert watch(lambda seconds: next(left), lambda: stopped, acts.append, hang_s=1.0) == end
    assert len(acts) == received.count(UNSAFE)


def test_without_proc_no_process_counts_as_hung(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not watchdog._is_stopped(os.getpid())
    monkeypatch.setattr(watchdog, "PROC", tmp_path)
    assert watchdog._is_stopped(os.getpid())


def test_guard_that_cannot_be_run_is_refused() -> None:
    assert guard_arguments(None) == [] and guard_arguments("true 'a b'") == ["true", "a b"]
    for command in ("no-such-program-here now", "true 'a"):
        with pytest.raises(ValueError, match=r"no such program|quotation"):
            guard_arguments(command)


WAITS = "import time\ntime.sleep(4)"
HANGS = "import re\nre.match(r'(a+)+$', 'a' * 36 + '!')"  # holds the lock for days
GUARD = "import os, pathlib; pathlib.Path('guarded').write_text(os.environ['RTCONTROL_SAFE_CALLS'])"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (HANGS, "did not respond for 1 s"),
        ("", "ended without its safe call"),
        (WAITS, "The safe call was not active for 1 s. The guard ended with status 0."),
    ],
)
def test_guard_acts_when_run_hangs_or_is_killed(tmp_path: Path, fault: str, reason: str) -> None:
    step = f"n = 0\n    def step(self):\n        self.n += 1\n        exec({fault!r} if self.n == 20 else '')"
    world = WORLD.replace("SLOW", "0").replace("def step(self): pass", step)
    (tmp_path / "world.py").write_text(world)
    (tmp_path / "guard.py").write_text(GUARD)
    command = [sys.executable, "-m", "rtcontrol", "run", "--env", "world.py", "--agent", "world.py", "--model", "noop"]
    command += ["--host", "inprocess", "--out", "out", "--set", f"loop.guard={sys.executable} guard.py"]
    run = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    if not fault:
        until((tmp_path / "out" / "record.mcap").exists)
        run.kill()
    if fault == WAITS:
        until((tmp_path / "guarded").exists)
        run.terminate()
    _, err = run.communicate(timeout=60)  # the watchdog has the pipe, too
    assert run.returncode in ((4, 143) if fault == WAITS else (-signal.SIGKILL,)), err
    assert json.loads((tmp_path / "guarded").read_text()) == [{"name": "go", "arguments": {"way": 0}}]
    assert reason in err
