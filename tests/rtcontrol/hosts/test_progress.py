"""Is another process getting anywhere? Real processes that sleep, spin, are stopped, are starved, are dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from rtcontrol.hosts.processes import BUSY, GONE, STOPPED, WAITING, Progress

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word is read from /proc")
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[subprocess.Popen[str]] = []

    def run(code: str) -> subprocess.Popen[str]:
        made.append(subprocess.Popen([sys.executable, "-c", f"print(flush=True); {code}"], stdout=-1, text=True))
        assert made[-1].stdout is not None
        made[-1].stdout.readline()
        return made[-1]

    yield run
    for process in made:
        process.kill()
        process.communicate()


def seen(progress: Progress, state: str) -> None:
    give_up = time.monotonic() + 10
    while (now := progress.look()) != state:
        assert time.monotonic() < give_up, now
        time.sleep(0.02)


def test_sleeping_is_waiting(start: Start) -> None:
    progress = Progress(start("import time; time.sleep(60)").pid)
    seen(progress, WAITING)
    assert {progress.look() for _ in range(20)} == {WAITING}


def test_spinning_is_busy_also_where_it_gets_no_processor(start: Start) -> None:
    spinning = start("import os; os.nice(19); exec('while True: pass')")
    progress = Progress(spinning.pid)
    seen(progress, BUSY)
    assert {progress.look() for _ in range(50)} == {BUSY}


def test_another_thread_that_works_counts(start: Start) -> None:
    code = "import threading, time; spin = lambda: sum(iter(int, 1))\n"
    code += "threading.Thread(target=spin, daemon=True).start(); time.sleep(60)"
    seen(Progress(start(code).pid), BUSY)


def test_stopped_and_gone(start: Start) -> None:
    process = start("import time; time.sleep(60)")
    progress = Progress(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    seen(progress, STOPPED)
    os.kill(process.pid, signal.SIGCONT)
    seen(progress, WAITING)
    process.kill()
    seen(progress, GONE)
    process.wait()
    assert progress.look() == GONE
