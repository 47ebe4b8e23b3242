"""The guardian, which ends the processes that a run has started, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rtcontrol.hosts import processes
from rtcontrol.hosts.processes import MARK, Guardian, module_command, system_restrictions
from rtcontrol.hosts.ray_process import _tuning_variables
from rtcontrol.models.processors import usable_processors
from tests.helpers.processes import python, until


def sleeping(folder: str | None, session: bool = False) -> subprocess.Popen[bytes]:
    """Start a sleeping process, with the mark of the folder if one is given."""
    marks = {} if folder is None else {MARK: folder}
    return subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}, start_new_session=session)


def test_guardian_ends_only_marked_processes() -> None:
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


def test_restrictions_name_denied_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system_restrictions(0) == []
    monkeypatch.setattr(processes, "task_limit", lambda: 50)
    denied = ("/dev/shm", "/proc/meminfo")
    monkeypatch.setattr(os, "access", lambda path, mode: path not in denied)
    texts = system_restrictions(51)
    assert [text.split()[0] for text in texts] == ["/proc/meminfo", "/dev/shm", "only"] and "only 50 " in texts[2]
    assert len(system_restrictions(50)) == 2


HOLDER = """
import os, sys, time
from rtcontrol.hosts.processes import Guardian
guardian = Guardian()
if os.fork() == 0:  # keeps the guardian's pipe open
    time.sleep(60)
print(guardian.folder, flush=True)
time.sleep(60)
"""


def test_guardian_notices_end_of_run_despite_fork() -> None:
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


def test_tuning_of_the_shell_reaches_the_decoder() -> None:
    shell = {"OMP_NUM_THREADS": "3", "MALLOC_ARENA_MAX": "2", "LD_PRELOAD": "/lib/jemalloc.so", "HOME": "/root"}
    assert _tuning_variables(shell) == {name: value for name, value in shell.items() if name != "HOME"}
    assert _tuning_variables({}) == {"OMP_NUM_THREADS": str(usable_processors())}


@pytest.mark.integration
@pytest.mark.parametrize("name", ["types", "zmq", "typing"])
def test_file_in_the_working_directory_hides_no_package(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit(7)\n")
    command = module_command("rtcontrol.gateway.view", "no port")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode != 7 and "invalid literal for int" in done.stderr


@pytest.mark.integration
def test_decoder_under_ray_does_not_search_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "zmq.py").write_text("open('it_ran', 'w')\nraise SystemExit\n")
    options = ("--env", "lander", "--model", "random", "--host", "ray", "--duration", "1", "--no-live", "--out", "r")
    done = python("-m", "rtcontrol", "run", *options, cwd=tmp_path)
    assert done.returncode == 0 and not (tmp_path / "it_ran").exists(), done.stderr
