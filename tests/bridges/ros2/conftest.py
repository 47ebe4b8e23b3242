"""Processes of the ROS 2 tests, each test in a DDS domain of its own, on loopback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.client.worlds import ROOT, until

EXAMPLE = ROOT / "bridges" / "ros2" / "examples" / "robot.yaml"


@pytest.fixture
def environment() -> dict[str, str]:
    """Of a DDS domain that nobody else uses."""
    own = {"ROS_DOMAIN_ID": str(random.randint(101, 200)), "ROS_LOCALHOST_ONLY": "1", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **own, "PYTHONUNBUFFERED": "1"}


class Program:
    """A child process: what it says is in `log`."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as file:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=environment,
            )

    def log(self) -> str:
        return self._log.read_text()

    def says(self, words: str) -> None:
        until(lambda: words in self.log() or self.popen.poll() is not None, f"not said: {words}")
        assert words in self.log(), self.log()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(20)


class SimulatedRobot(Program):
    """tests/bridges/ros2/robot.py, 1.3 m before the wall at which it turns. A bridge may start while it starts."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        super().__init__(["tests.bridges.ros2.robot", "0.9"], environment, log)
        self._ready = False

    def until_ready(self) -> None:
        if not self._ready:
            assert self.popen.stdout is not None
            assert self.popen.stdout.readline() == "ready\n", self.log()
            self._ready = True

    def tell(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def report(self) -> dict[str, Any]:
        return self._ask("report")

    def since(self, mark: float) -> dict[str, Any]:
        """What it was told since an instant of the monotonic clock."""
        return self._ask(f"since {mark}")

    def _ask(self, line: str) -> dict[str, Any]:
        self.until_ready()
        self.tell(line)
        assert self.popen.stdout is not None
        found: dict[str, Any] = json.loads(self.popen.stdout.readline())
        return found


Start = Callable[..., Program]


@pytest.fixture
def robot(environment: dict[str, str], tmp_path: Path) -> Iterator[SimulatedRobot]:
    found = SimulatedRobot(environment, tmp_path / "robot.log")
    yield found
    found.popen.kill()
    found.popen.wait()


@pytest.fixture
def bridge(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts a bridge to an endpoint, with further options."""
    made: list[Program] = []

    def start(endpoint: str, *options: str, config: Path = EXAMPLE) -> Program:
        command = ["rtcontrol.bridges.ros2", "--config", str(config), "--connect", endpoint, *options]
        made.append(Program(command, environment, tmp_path / f"bridge-{len(made)}.log"))
        return made[-1]

    yield start
    for one in made:
        if one.popen.poll() is None:
            one.popen.kill()
            one.popen.wait()
