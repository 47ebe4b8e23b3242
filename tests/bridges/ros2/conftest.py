"""Processes for the ROS 2 tests; each test has its own ROS domain, on loopback."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from rtcontrol_client.ros2 import EXAMPLE
from tests.bridges.ros2.brain import Brain
from tests.helpers.processes import Program, until
from tests.helpers.ros_domain import own_domain

TOLD = "guard: the bridge {}: the safe call is published"  # on stderr, by the guard


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("RTCONTROL_ROS_KILTED", id="kilted"),
        pytest.param("RTCONTROL_ROS_JAZZY", id="jazzy", marks=pytest.mark.slow),
    ],
)
def ros(request: pytest.FixtureRequest) -> str:
    """Return the path of a Python with a real ROS 2."""
    python = os.environ.get(request.param)
    if not python:
        pytest.skip(f"{request.param} names no Python with ROS 2's wheels (docs/clients.md)")
    return python


@pytest.fixture
def domain(tmp_path: Path) -> dict[str, str]:
    """Return the environment of an unused ROS domain; ROS writes its logs to the test's folder."""
    return {**own_domain(), "ROS_LOG_DIR": str(tmp_path / "ros")}


class Node(Program):
    """A ROS node in a process that is controlled by lines on stdin."""

    def __init__(self, module: str, ros: str, domain: dict[str, str], log: Path, *options: str) -> None:
        command = ["-m", f"tests.bridges.ros2.{module}", *options]
        super().__init__(command, log, ros, env=domain, stdin=-1, stdout=-1)
        assert "ready" in self._line(), self.log()

    def tell(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def _line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def ask(self, line: str) -> Any:
        self.tell(line)
        answer = self._line()
        assert answer, self.log()
        return json.loads(answer)


class SimulatedRobot(Node):
    """The robot of robot.py as a process, 1.3 m before the wall at which it turns; `options` are ROS arguments."""

    def __init__(
        self, ros: str, domain: dict[str, str], log: Path, ahead: str = "0.9", options: Sequence[str] = ()
    ) -> None:
        super().__init__("robot", ros, domain, log, ahead, *options)

    def report(self) -> dict[str, Any]:
        return dict(self.ask("report"))

    def until_it_moves(self) -> None:
        until(lambda: self.report()["moving"] != [0.0, 0.0], "the robot does not move", 90, 0.05)

    def until_it_stands(self) -> None:
        until(lambda: self.report()["moving"] == [0.0, 0.0], "nothing stopped the robot", every=0.05)


class Server(Node):
    """tests/bridges/ros2/server.py."""

    def __init__(self, ros: str, domain: dict[str, str], log: Path) -> None:
        super().__init__("server", ros, domain, log)
        self.seen: list[Any] = []

    def do(self, what: str, **values: Any) -> Any:
        return self.ask(json.dumps({"do": what, **values}))

    def requested(self, *what: str) -> list[Any]:
        """Return all requests of these kinds that the server has received."""
        self.seen += self.do("requested")
        return [one for one in self.seen if one[0] in what]

    def until_requested(self, *what: Any) -> None:
        until(
            lambda: list(what) in self.requested(what[0]),
            f"the server received no request {what}, but {self.seen}",
            30,
            0.05,
        )


def started(
    ros: str, domain: dict[str, str], log: Path, endpoint: str, *options: str, config: Path = EXAMPLE, **given: Any
) -> Program:
    """Start the bridge in the Python `ros`."""
    command = ["-m", "rtcontrol_client.ros2", "--config", str(config), "--connect", endpoint, *options]
    return Program(command, log, ros, env={**domain, "ROS_PYTHON_CHECK_FIELDS": "1"}, **given)


def guards(running: Program) -> list[psutil.Process]:
    children = psutil.Process(running.popen.pid).children()
    return [child for child in children if "rtcontrol_client.ros2.guard" in child.cmdline()]


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)


Start = Callable[..., Program]
P = TypeVar("P", bound=Program)


@dataclass
class DrivenRobot:
    """A robot and the bridge that drives it, which `start` starts."""

    domain: dict[str, str]
    robot: SimulatedRobot
    start: Start
    running: Program

    def go(self) -> None:
        """Wait until the robot moves; start another bridge if this one has ended."""
        if self.running.popen.poll() is not None:
            self.running = self.start()
        self.robot.until_it_moves()


@pytest.fixture(scope="module")
def one(ros: str, module_brain: Brain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenRobot]:
    """A robot, 0.7 m before the place where it turns, and a bridge, shared by a module's tests."""
    folder = tmp_path_factory.mktemp("driven")
    domain = {**own_domain(), "ROS_LOG_DIR": str(folder / "ros")}
    endpoint = module_brain.endpoint
    with starting(lambda n: started(ros, domain, folder / f"bridge-{n}.log", endpoint)) as start:
        robot = SimulatedRobot(ros, domain, folder / "robot.log", "1.5")
        yield DrivenRobot(domain, robot, start, start())
        robot.kill()


@pytest.fixture
def driven(one: DrivenRobot, module_brain: Brain) -> DrivenRobot:
    module_brain.silent = False
    one.go()
    return one


@pytest.fixture(scope="module")
def module_brain() -> Iterator[Brain]:
    """A scripted server shared by a module's tests."""
    with closing(Brain()) as result:
        yield result


@pytest.fixture
def brain() -> Iterator[Brain]:
    with closing(Brain()) as result:
        yield result


@pytest.fixture
def robot(ros: str, domain: dict[str, str], tmp_path: Path) -> Iterator[SimulatedRobot]:
    result = SimulatedRobot(ros, domain, tmp_path / "robot.log")
    yield result
    result.kill()


@contextmanager
def starting(make: Callable[..., P]) -> Iterator[Callable[..., P]]:
    """Yield a function that starts programs, with the number of the program before its arguments; kill them all."""
    made: list[P] = []

    def start(*arguments: str, **options: Any) -> P:
        made.append(make(len(made), *arguments, **options))
        return made[-1]

    yield start
    for program in made:
        program.kill()


@pytest.fixture
def bridge(ros: str, domain: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """A function that starts a bridge to an endpoint, with further options."""
    with starting(
        lambda n, *given, **more: started(ros, domain, tmp_path / f"bridge-{n}.log", *given, **more)
    ) as start:
        yield start


@pytest.fixture
def serve(ros: str, domain: dict[str, str], tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """A function that starts a node with services and an action."""
    with starting(lambda n: Server(ros, domain, tmp_path / f"server-{n}.log")) as start:
        yield start


def until_observed(brain: Brain, words: str) -> None:
    def seen() -> bool:
        return brain.observed is not None and re.search(words, brain.observed.text or "") is not None

    try:
        until(seen, f"not observed: {words}", 30)
    except AssertionError as error:
        raise AssertionError(f"{error}, but {brain.observed.text if brain.observed else None}") from None
