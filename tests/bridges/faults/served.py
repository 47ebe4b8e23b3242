"""The real server of a fault run, and what is done to it: its decoder's process, and strangers at its door."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from rtcontrol.models.checkpoint import ZOO
from tests.bridges.client.worlds import ROOT, Process

ACTOR = "ray::PoolActor"


def server(folder: Path, port: int, model: str, host: str) -> Process:
    """`rtcontrol serve`, not started yet; `model` empty: the bundled one, for any tools."""
    found = Process(folder, port, "--host", host)
    command = found._command
    at = command.index("--model")
    del command[at : at + 2]
    command += ["--model", model or bundled(folder)]
    return found


def bundled(folder: Path) -> str:
    """The lander's model under a path of its own: what it was trained on is not known then, so any tools will do."""
    (path := folder / "model").symlink_to(ZOO / "lander")
    return str(path)


def decoder(serving: Process) -> psutil.Process:
    """The process that decides for the Ray host."""
    assert serving.process is not None
    for child in psutil.Process(serving.process.pid).children(recursive=True):
        try:
            if ACTOR in " ".join(child.cmdline()):
                return child
        except psutil.NoSuchProcess:
            continue
    raise AssertionError(f"the server has no {ACTOR}")


def kill_decoder(serving: Process) -> int:
    """SIGKILL; the instant, in ns."""
    found = decoder(serving)
    t_ns = time.monotonic_ns()
    os.kill(found.pid, signal.SIGKILL)
    return t_ns


def strangers(endpoint: str, seconds: float) -> subprocess.Popen[str]:
    """Strangers in a process of their own: garbage on raw sockets, messages that are none, hellos without end."""
    command = [sys.executable, "-m", "tests.bridges.faults.strangers", endpoint, str(seconds)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
