"""Is another process getting anywhere, and who ends it? Real processes that sleep, spin, are stopped, starved, dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rtcontrol.hosts.processes import BUSY, GONE, MARK, STOPPED, WAITING, Guardian, Progress
from tests.helpers.processes import until

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
    until(lambda: progress.look() == state, state, every=0.02)


def test_spinning_is_busy_also_where_it_gets_no_processor(start: Start) -> None:
    spinning = start("import os; os.nice(19); exec('while True: pass')")
    progress = Progress(spinning.pid)
    seen(progress, BUSY)
    assert {progress.look() for _ in range(50)} == {BUSY}


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


def sleeping(folder: str | None, session: bool = False) -> subprocess.Popen[bytes]:
    """A process that bears the folder's mark, if one is given."""
    marks = {} if folder is None else {MARK: folder}
    return subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}, start_new_session=session)


def test_a_guardian_ends_what_bears_the_mark_and_nothing_else() -> None:
    guardian = Guardian()
    folder = guardian.folder
    ours = [sleeping(folder), sleeping(folder, session=True)]
    others = [sleeping(None), sleeping(folder + "x"), sleeping("/elsewhere" + folder)]
    (Path(folder) / "socket").touch()
    try:
        guardian.end()
        assert [process.wait(10) for process in ours] == [-signal.SIGKILL] * 2
        assert not Path(folder).exists()
        assert [process.poll() for process in others] == [None] * 3
    finally:
        for process in others + ours:
            process.kill()
            process.wait()


HOLDER = """
import os, sys, time
from rtcontrol.hosts.processes import Guardian
guardian = Guardian()
if os.fork() == 0:  # keeps the guardian's pipe open
    time.sleep(60)
print(guardian.folder, flush=True)
time.sleep(60)
"""


def test_a_guardian_sees_its_master_die_though_a_fork_of_it_lives_on() -> None:
    master = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=-1, text=True, start_new_session=True)
    assert master.stdout is not None
    folder = master.stdout.readline().strip()
    marked = sleeping(folder)
    try:
        assert Path(folder).is_dir()
        master.kill()
        assert marked.wait(20) == -signal.SIGKILL
        until(lambda: not Path(folder).exists())
    finally:
        os.killpg(master.pid, signal.SIGKILL)
        marked.kill()
        marked.wait()
        master.communicate()
