"""The ROS 2 bridge with topics in memory: what it publishes and when, how it ends, and its command line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtcontrol_client import Refused, Standing
from rtcontrol_client.ros2 import EXAMPLE, Unmappable, split_ros_arguments
from rtcontrol_client.ros2.actuate import Ros2Actuator
from rtcontrol_client.ros2.bridge import Ros2Bridge
from rtcontrol_client.ros2.cli import main
from rtcontrol_client.ros2.mapper import Topic
from rtcontrol_client.wire.messages import ErrorMessage, FunctionCall
from tests.bridges.client.worlds import until
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.mapping import SENSES, mapper, put
from tests.helpers.processes import python

SAFE = Standing(None, "safe", cause="expired")


def drive(left_ms: float, speed: int = 30) -> Standing:
    call = FunctionCall(name="drive", arguments={"speed": speed, "turn": "straight"})
    return Standing(call, "fresh", tick=1, left_ms=left_ms)


class Wheels:
    """A topic that records the speeds it receives; `takes` decides whether a speed is accepted."""

    def __init__(self, takes: Callable[[float], bool] = lambda speed: True) -> None:
        self.told: list[float] = []
        self.takes = takes

    def write(self, message: Any) -> bool:
        taken = self.takes(message.linear.x)
        self.told += [message.linear.x] if taken else []
        return taken


@pytest.fixture
def wheels() -> Wheels:
    return Wheels()


@pytest.fixture
def actuator(wheels: Wheels) -> Ros2Actuator:
    return Ros2Actuator(mapper(), {"/cmd_vel": wheels}, 1000.0)


def test_call_expired_before_publishing_is_refused_and_robot_stops(actuator: Ros2Actuator, wheels: Wheels) -> None:
    actuator.apply(lambda: drive(500.0))
    with pytest.raises(Unmappable, match="drive could not be published within its time-to-live"):
        actuator.apply(lambda: drive(1.0, speed=20))
    assert wheels.told == [0.3, 0.0]


def test_unwritten_safe_call_is_retried_in_the_next_tick() -> None:
    stuck = iter((True, True, False, False))
    wheels = Wheels(lambda speed: not next(stuck))
    once = put("tools", "stop", "publish", "/cmd_vel", "repeat", value=False)
    actuator = Ros2Actuator(mapper(once), {"/cmd_vel": wheels}, 1000.0)
    for _ in range(4):
        actuator.apply(lambda: SAFE)
        time.sleep(0.002)
    assert wheels.told == [0.0] and list(stuck) == [False]  # written at the third attempt, then not again


def test_write_error_within_a_call_publishes_the_safe_call() -> None:
    def both(value: dict[str, Any]) -> None:
        for tool in value["tools"].values():
            tool["publish"]["/second"] = tool["publish"]["/cmd_vel"]

    def takes(speed: float) -> bool:
        if speed:
            raise OSError("no such device")
        return True

    wheels, broken = Wheels(), Wheels(takes)
    outputs = {"/cmd_vel": wheels, "/second": broken}
    actuator = Ros2Actuator(mapper(both), outputs, 1.0)  # at 1 Hz nothing is repeated within the test
    actuator.apply(lambda: SAFE)
    with pytest.raises(Unmappable, match="drive could not be published .no such device."):
        actuator.apply(lambda: drive(500.0))
    assert (wheels.told, broken.told) == ([0.0, 0.3, 0.0], [0.0, 0.0])


@pytest.mark.integration
def test_closed_actuator_publishes_only_the_safe_call(actuator: Ros2Actuator, wheels: Wheels) -> None:
    actuator.apply(lambda: drive(500.0))
    actuator.close()
    actuator.apply(lambda: drive(500.0, speed=20))
    assert (wheels.told[0], set(wheels.told[1:])) == (0.3, {0.0})


def test_active_call_about_to_expire_is_not_repeated(actuator: Ros2Actuator, wheels: Wheels) -> None:
    for left_ms in (500.0, 400.0, 1.0):
        actuator.apply(lambda left_ms=left_ms: drive(left_ms))  # type: ignore[misc]
        time.sleep(0.002)  # now a repetition is due
    assert wheels.told == [0.3, 0.3]


def test_call_ended_by_another_thread_is_not_published(actuator: Ros2Actuator, wheels: Wheels) -> None:
    now = [drive(500.0)]
    inside, go = threading.Event(), threading.Event()

    def slow(_: float) -> bool:
        wheels.takes = lambda speed: True
        inside.set()
        return go.wait(10)

    wheels.takes = slow
    first, second = (threading.Thread(target=lambda: actuator.apply(lambda: now[0])) for _ in range(2))
    first.start()
    assert inside.wait(10)
    second.start()
    time.sleep(0.05)  # the second thread waits for the lock
    now[0] = SAFE
    go.set()
    first.join()
    second.join()
    assert wheels.told == [0.3, 0.0]


def test_heartbeat_precedes_its_call_and_follows_the_safe_call(wheels: Wheels) -> None:
    beats: list[tuple[float | None, int]] = []
    beat = lambda left_ms: beats.append((left_ms, len(wheels.told)))  # noqa: E731
    actuator = Ros2Actuator(mapper(), {"/cmd_vel": wheels}, 1000.0, heartbeat=beat)
    actuator.apply(lambda: drive(480.0))
    assert beats == [(480.0, 0)] and wheels.told == [0.3]
    wheels.takes = lambda speed: False
    actuator.apply(lambda: SAFE)
    assert len(beats) == 1  # the safe call is not published yet
    wheels.takes = lambda speed: True
    time.sleep(0.002)  # a tick later
    actuator.apply(lambda: SAFE)
    assert beats[1:] == [(None, 2)]


# However a bridge ends, it publishes the safe call last. These tests need no network.


class Net:
    """A network of topics in memory. `fails` is the error that reading raises; if `stuck`, `flush` raises."""

    stamp_ns = staticmethod(time.time_ns)

    def __init__(self) -> None:
        self.told: dict[str, list[Any]] = {}
        self.fails: Exception | None = None
        self.stuck = self.jumped = False

    def input(self, topic: Topic, watched: bool, sensor: bool = True) -> Any:
        message = SENSES.get(topic.name)

        def poll() -> tuple[Any, int] | None:
            if self.fails is not None:
                raise self.fails
            return None if message is None else (message, time.monotonic_ns())

        return SimpleNamespace(poll=poll)

    def output(self, topic: Topic, max_interval_ms: float | None) -> Any:
        told = self.told.setdefault(topic.name, [])
        return SimpleNamespace(write=lambda message: told.append(message) or True)

    def problems(self) -> dict[str, str]:
        return {}

    def flush(self, seconds: float) -> None:
        if self.stuck:
            raise OSError("no network")

    def speeds(self) -> list[float]:
        return [message.linear.x for message in self.told["/cmd_vel"]]


class Run:
    """A bridge that runs in a thread; `error` is the exception with which it ended."""

    def __init__(self, brain: Brain) -> None:
        self.net = Net()
        self.bridge = Ros2Bridge(mapper(put("connect", value=brain.endpoint)), self.net)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def until_it_moves(self) -> Run:
        mark = len(self.net.speeds())
        until(lambda: any(self.net.speeds()[mark:]), "the robot does not move")
        return self

    def _run(self) -> None:
        try:
            self.bridge.run()
        except BaseException as error:
            self.error = error

    def ended(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        assert self.net.speeds()[-3:] == [0.0] * 3
        count = len(self.net.speeds())
        time.sleep(0.2)  # three ticks, in which nothing more may be published
        assert len(self.net.speeds()) == count


def test_internal_error_ends_with_the_safe_call(brain: Brain) -> None:
    running = Run(brain).until_it_moves()
    running.net.fails = RuntimeError("a fault")
    running.ended()
    assert isinstance(running.error, RuntimeError)


def test_suspended_bridge_publishes_the_safe_call_first(brain: Brain) -> None:
    running = Run(brain).until_it_moves()
    halted, continued = threading.Event(), threading.Event()
    speeds: list[list[float]] = []

    def halt() -> None:
        speeds.append(running.net.speeds())
        halted.set()
        continued.wait(20)
        speeds.append(running.net.speeds())

    running.bridge.suspend(halt)
    assert halted.wait(20)
    time.sleep(0.2)  # calls arrive, but none may be published
    continued.set()
    running.until_it_moves()
    assert speeds[0][-1] == 0.0
    assert not any(speeds[1][len(speeds[0]) :])
    running.bridge.stop()
    running.ended()


def test_failed_shutdown_still_sends_bye_and_safe_call(brain: Brain) -> None:
    running = Run(brain).until_it_moves()
    running.net.stuck = True
    running.bridge.stop()
    running.ended()
    assert isinstance(running.error, OSError)
    until(lambda: brain.left, "the server received no bye")


def test_fatal_server_error_ends_with_the_safe_call(brain: Brain) -> None:
    running = Run(brain).until_it_moves()
    brain.complaint = ErrorMessage(code="busy", message="The robot is taken.", remedy="End that one.", fatal=True)
    running.ended()
    assert isinstance(running.error, Refused)


def test_time_jump_back_ends_the_call_and_starts_an_episode(brain: Brain) -> None:
    running = Run(brain).until_it_moves()
    brain.silent = True
    running.net.jumped, mark = True, len(running.net.speeds())
    until(lambda: brain.epoch == 1, "the server received no reset")
    until(lambda: 0.0 in running.net.speeds()[mark:], "the robot drives on")
    speeds = running.net.speeds()
    assert not any(speeds[speeds.index(0.0, mark) :])
    brain.silent = False
    running.until_it_moves()
    running.bridge.stop()
    running.ended()


# The command line; test_real_ros.py tests it with a real ROS.


ROBOT = str(EXAMPLE)


def test_rtcontrol_bridge_ros2_checks_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", ROBOT, "--check"]) == 0
    shown = capsys.readouterr()
    assert not shown.err and "publishes /cmd_vel  geometry_msgs/msg/Twist" in shown.out
    wrong = tmp_path / "robot.yaml"
    wrong.write_text("hz: 16\n")
    done = python("-m", "rtcontrol", "bridge", "ros2", "--config", str(wrong), "--check")
    assert done.returncode == 2 and done.stderr.startswith(f"{wrong}: instruction: it is missing. See ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--set", "hz=.nan"], f"{ROBOT}: hz: Input should be less than or equal to 200."),
        (["--set", "session.ttl=3"], "ttl= is not an option of this client. The options are agent, tools,"),
        (["--set", "sesion.ttl_ms=3"], f"{ROBOT}: sesion: it is not a key of this format."),
        (
            ["--connect", "http://127.0.0.1:8000"],
            "http://127.0.0.1:8000 is not the URL of a server. Write http://HOST:PORT/connect",
        ),
        (["--connect", "127.0.0.1:5555"], "127.0.0.1:5555 is not an endpoint. Write tcp://ADDRESS:PORT, tcp://[IPV6]:"),
        (["--instruct", "x" * 70_000], "instruction: a string of 70000 characters: above the limit"),
    ],
)
def test_argument_error_is_reported_before_connecting(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", ROBOT, *given, "--check"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(says) and len(told.splitlines()) == 1, told


@pytest.mark.parametrize(
    ("given", "ours", "ros"),
    [
        (["--check"], ["--check"], []),
        (["--check", "--ros-args", "-r", "a:=b"], ["--check"], ["--ros-args", "-r", "a:=b"]),
    ],
)
def test_ros_arguments_are_split_from_ours(given: list[str], ours: list[str], ros: list[str]) -> None:
    assert split_ros_arguments(given) == (ours, ros)
