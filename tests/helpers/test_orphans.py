"""What tests start does not outlive them, however they end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers.processes import environment

TEST = """
import subprocess, sys, time

def test_that_starts_a_process_and_hangs():
    one = subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=subprocess.DEVNULL)
    print(one.pid, flush=True)
    time.sleep(60)
"""


def test_a_process_that_a_killed_test_started_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    options = "-m pytest -s -q -n0 -p no:cacheprovider -p tests.helpers.orphans"
    command = [sys.executable, *options.split(), str(tmp_path)]
    null = subprocess.DEVNULL
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=null, text=True
    ) as tests:
        assert tests.stdout is not None
        pid = next(int(line) for line in tests.stdout if line.strip().isdigit())
        orphan = os.pidfd_open(pid)
        tests.send_signal(signal.SIGKILL)
    try:
        assert select.select([orphan], [], [], 30.0)[0], "it lives"
    finally:
        os.close(orphan)
