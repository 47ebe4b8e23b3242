"""Processes of the ROS 2 tests, each test in a DDS domain of its own, on loopback."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client.ros2 import EXAMPLE
from tests.bridges.ros2.brain import Brain
from tests.helpers.processes import Program, until
from tests.helpers.ros_domain import own_domain

TOLD = "guard: the bridge {}: the safe call is published"  # on stderr, by the guard

NODE = EXAMPLE.parents[1] / "rclpy_node" / "rtcontrol_bridge" / "node.py"


@pytest.fixture
def domain(tmp_path: Path) -> dict[str, str]:
    """The environment of a DDS domain that nobody else uses; ROS's own logs go to the test's folder."""
    return {**own_domain(), "ROS_LOG_DIR": str(tmp_path / "ros")}


class SimulatedRobot(Program):
    """tests/bridges/ros2/robot.py, or rclpy_robot.py where the Python of a ROS 2 is given, 1.3 m before the wall at
    which it turns; `options` are ROS's. A bridge may start while it starts."""

    def __init__(
        self, domain: dict[str, str], log: Path, ahead: str = "0.9", ros: str | None = None, options: Sequence[str] = ()
    ) -> None:
        module = "tests.bridges.ros2.robot" if ros is None else "tests.bridges.ros2.rclpy_robot"
        super().__init__(["-m", module, ahead, *options], log, ros or sys.executable, env=domain, stdin=-1, stdout=-1)
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

    def said(self) -> str:
        """The diagnostics' message."""
        return str((self.report()["diagnostics"] or ["", ""])[1])

    def until_it_moves(self, seconds: float = 20.0) -> None:
        until(lambda: self.report()["moving"] != [0.0, 0.0], "the robot does not move", seconds)

    def until_it_stands(self) -> None:
        until(lambda: self.report()["moving"] == [0.0, 0.0], "nobody stopped the robot")

    def _ask(self, line: str) -> dict[str, Any]:
        self.until_ready()
        self.tell(line)
        assert self.popen.stdout is not None
        found: dict[str, Any] = json.loads(self.popen.stdout.readline())
        return found


@dataclass
class Flight:
    """A robot, and the bridge by which it is driven, which `start` starts; `greeted` is what the first one had said
    when the robot moved."""

    domain: dict[str, str]
    robot: SimulatedRobot
    start: Callable[..., Program]
    running: Program
    greeted: str = ""

    def go(self) -> None:
        """Until it is driven: by another bridge, where this one has ended."""
        if self.running.popen.poll() is not None:
            self.running = self.start()
        self.robot.until_it_moves()
        self.greeted = self.greeted or self.running.log()


def flown(
    folder: Path, endpoint: str, *options: str, config: Path = EXAMPLE, ros: str | None = None, node: bool = False
) -> Iterator[Flight]:
    """For a fixture of a module: a robot, 0.7 m before it turns, and a bridge, in a domain of their own. `node`: our
    rclpy node, in the place of the bridge."""
    domain = {**own_domain(), "ROS_LOG_DIR": str(folder / "ros")}
    made: list[Program] = []

    def start(*more: str) -> Program:
        command = ["-m", "rtcontrol_client.ros2", "--config", str(config), "--connect", endpoint]
        log = folder / f"bridge-{len(made)}.log"
        if node:
            assert ros is not None
            made.append(our_node(ros, domain, log, endpoint, *options, *more, config=config))
        else:
            made.append(Program([*command, *options, *more], log, env=domain))
        return made[-1]

    robot = SimulatedRobot(domain, folder / "robot.log", "1.5", ros)
    yield Flight(domain, robot, start, start())
    for one in (robot, *made):
        one.kill()


Start = Callable[..., Program]


@pytest.fixture
def brain() -> Iterator[Brain]:
    found = Brain()
    yield found
    found.close()


@pytest.fixture
def robot(domain: dict[str, str], tmp_path: Path) -> Iterator[SimulatedRobot]:
    found = SimulatedRobot(domain, tmp_path / "robot.log")
    yield found
    found.kill()


@pytest.fixture
def bridge(domain: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts a bridge to an endpoint, with further options."""
    made: list[Program] = []

    def start(endpoint: str, *options: str, config: Path = EXAMPLE) -> Program:
        command = ["-m", "rtcontrol_client.ros2", "--config", str(config), "--connect", endpoint, *options]
        made.append(Program(command, tmp_path / f"bridge-{len(made)}.log", env=domain))
        return made[-1]

    yield start
    for one in made:
        one.kill()


# Nodes of a real ROS 2.


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("RTCONTROL_ROS_KILTED", id="kilted"),
        pytest.param("RTCONTROL_ROS_JAZZY", id="jazzy", marks=pytest.mark.slow),
    ],
)
def ros(request: pytest.FixtureRequest) -> str:
    """The Python of a ROS 2."""
    python = os.environ.get(request.param)
    if not python:
        pytest.skip(f"{request.param} names no Python with ROS 2's wheels (docs/bridges.md)")
    return python


def our_node(
    ros: str, domain: dict[str, str], log: Path, endpoint: str, *options: str, config: Path = EXAMPLE, **given: Any
) -> Program:
    """Our rclpy node, run by that Python; `options` are ROS's."""
    command = [str(NODE), "--ros-args", "-p", f"config:={config}", "-p", f"connect:={endpoint}", *options]
    return Program(command, log, ros, env=domain, **given)


def folder_of(ros: str) -> Path:
    """Where that ROS keeps its packages' definitions."""
    return Path(ros).parents[1] / "share"


def with_packages(ros: str, *packages: str) -> str:
    """That Python, where it has all of these packages; else the test is skipped."""
    for package in packages:
        if not (folder_of(ros) / package).is_dir():
            pytest.skip(f"{ros} has no {package}: pip install ros-{package.replace('_', '-')}")
    return ros


class Peer(Program):
    """tests/bridges/ros2/rclpy_peer.py."""

    def __init__(self, ros: str, domain: dict[str, str], log: Path) -> None:
        script = str(Path(__file__).with_name("rclpy_peer.py"))
        super().__init__([script], log, ros, env=domain, stdin=-1, stdout=-1)
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == '"ready"\n', self.log()

    def ask(self, do: str, **values: Any) -> Any:
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.popen.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self.popen.stdin.flush()
        answer = self.popen.stdout.readline()
        assert answer, self.log()
        return json.loads(answer)


@pytest.fixture
def peer(ros: str, domain: dict[str, str], tmp_path: Path) -> Iterator[Peer]:
    found = Peer(ros, domain, tmp_path / "peer.log")
    yield found
    found.kill()


@pytest.fixture(scope="module")
def own_brain() -> Iterator[Brain]:
    """A module's own."""
    found = Brain()
    yield found
    found.close()
