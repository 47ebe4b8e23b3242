"""Kill all processes that the tests started, however the tests end (Linux).

Every started process inherits a mark in its environment. A watcher (this file, run as a program) waits until the tests'
process ends or is killed, and then kills all processes with the mark.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys

import pytest

from rtcontrol.hosts.processes import CLEAN_ROUNDS, kill_marked
from tests.helpers.processes import ROOT

MARK = "RTCONTROL_TESTS"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(os, "pidfd_open"):
        return
    plain = {k: v for k, v in os.environ.items() if k != MARK}
    os.environ[MARK] = mark = secrets.token_hex(8)
    us = os.pidfd_open(os.getpid())
    command = [sys.executable, "-m", "tests.helpers.orphans", str(us), mark]
    null = subprocess.DEVNULL
    config.stash[pytest.StashKey[subprocess.Popen[bytes]]()] = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**plain, "PYTHONPATH": str(ROOT)},
        pass_fds=[us],
        stdin=null,
        stdout=null,
        stderr=null,
        start_new_session=True,
    )
    os.close(us)


def _watch(tests: int, mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    poll = select.poll()
    poll.register(tests, select.POLLIN)
    poll.poll()
    kill_marked(MARK, mark, CLEAN_ROUNDS)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
