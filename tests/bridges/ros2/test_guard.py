"""The guard: a bridge that is killed or stands still leaves no robot driving."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol_client import Standing
from rtcontrol_client.ros2 import EXAMPLE, config
from rtcontrol_client.ros2.actuate import Ros2Actuator
from rtcontrol_client.ros2.guard import GRACE_S, HOLD_S, MOST_S, Guard, Watch
from rtcontrol_client.wire.messages import FunctionCall
from tests.bridges.client.worlds import until
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import TOLD, Flight, SimulatedRobot, Start, flown
from tests.bridges.ros2.mapping import mapper, put
from tests.helpers.processes import Program, environment, full_pipe, python
from tests.helpers.ros_domain import own_domain

NOWHERE = {"ROS_STATIC_PEERS": "no-such-host.invalid"}


@pytest.fixture(scope="module")
def brain() -> Iterator[Brain]:
    found = Brain()
    yield found
    found.close()


@pytest.fixture(scope="module")
def one(brain: Brain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flight]:
    yield from flown(tmp_path_factory.mktemp("guarded"), brain.endpoint)


@pytest.fixture
def flight(one: Flight) -> Flight:
    one.go()
    return one


def guards(running: Program) -> list[psutil.Process]:
    children = psutil.Process(running.popen.pid).children()
    return [child for child in children if "rtcontrol_client.ros2.guard" in child.cmdline()]


def test_a_bridge_that_is_killed_leaves_a_robot_that_stands(flight: Flight) -> None:
    (guard,) = guards(flight.running)
    flight.running.kill()
    flight.robot.until_it_stands()
    until(lambda: TOLD.format("was killed") in flight.running.log(), flight.running.log())
    until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE, "the guard goes on for ever")


# A guard that is up a second later than its bridge stops a robot that was killed in between too late.
def test_nobody_drives_before_the_guard_is_ready(
    brain: Brain, robot: SimulatedRobot, bridge: Start, domain: dict[str, str]
) -> None:
    running = bridge(brain.endpoint)
    until(lambda: guards(running), running.log())
    (guard,) = guards(running)
    guard.suspend()
    try:
        running.says("in session")
        robot.until_ready()
        time.sleep(2.0)
        assert robot.report()["moving"] == [0.0, 0.0]
    finally:
        guard.resume()
    robot.until_it_moves()
    assert "is not ready" not in running.log()
    guard.kill()  # the next one: it drove already
    running.says("The guard has ended")
    mark = time.monotonic()
    until(lambda: robot.since(mark)["commands"], "it waits for the other guard")


def test_a_guard_that_never_gets_ready_is_told_of_and_the_robot_driven(
    brain: Brain, robot: SimulatedRobot, bridge: Start
) -> None:
    running = bridge(brain.endpoint)
    until(lambda: guards(running), running.log())
    (guard,) = guards(running)
    guard.suspend()
    try:
        running.says("The guard is not ready after 10 s: nobody stops the robot if this bridge is killed before it is.")
        robot.until_it_moves()
    finally:
        guard.resume()


def test_a_bridge_that_stands_still_leaves_a_robot_that_stands_and_goes_on_when_it_can(flight: Flight) -> None:
    flight.running.popen.send_signal(signal.SIGSTOP)
    try:
        flight.robot.until_it_stands()
        until(lambda: TOLD.format("stands still") in flight.running.log(), flight.running.log())
    finally:
        flight.running.popen.send_signal(signal.SIGCONT)
    flight.robot.until_it_moves()


def test_a_guard_that_is_killed_is_told_of_and_another_one_takes_its_place(flight: Flight) -> None:
    (guard,) = guards(flight.running)
    guard.kill()
    flight.running.says("The guard has ended: nobody stops the robot if this bridge is killed.")
    until(lambda: [one for one in guards(flight.running) if one.pid != guard.pid], "no other guard")
    flight.robot.until_it_moves()
    flight.running.kill()
    flight.robot.until_it_stands()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_bridge_that_ends_in_order_takes_its_guard_along_which_says_nothing(flight: Flight, number: int) -> None:
    (guard,) = guards(flight.running)
    before = flight.running.log().count("guard:")
    assert flight.running.end(number) == 128 + number
    assert not guard.is_running()
    assert flight.running.log().count("guard:") == before


def test_without_a_guard_a_killed_bridge_leaves_a_robot_that_drives_on(flight: Flight) -> None:
    flight.running.end()
    flight.running = flight.start("--no-guard")
    flight.robot.until_it_moves()
    assert not guards(flight.running)
    mark = time.monotonic()
    flight.running.kill()
    until(lambda: bool(flight.robot.since(mark)["dead"]), "its lease has not ended")
    assert flight.robot.report()["moving"] != [0.0, 0.0]


def started(tmp_path: Path, *more: str, stdin: int = subprocess.PIPE, **given: Any) -> subprocess.Popen[bytes]:
    """A guard of the example's robot in a domain of its own; its pipe is the test's."""
    file = tmp_path / "robot.json"
    file.write_text(config.load(EXAMPLE).model_dump_json(by_alias=True, exclude_unset=True))
    line = [sys.executable, "-P", "-m", "rtcontrol_client.ros2.guard", "--config", str(file), "--hz", "16"]
    env = environment(**{**own_domain(), **given.pop("env", {})})
    return subprocess.Popen([*line, "--promise-ms", "200", *more], stdin=stdin, env=env, **given)


def test_a_reader_of_its_words_that_is_stuck_or_gone_stops_no_guard(tmp_path: Path) -> None:
    with full_pipe() as (_, full):
        stuck = started(tmp_path, stderr=full)
        assert stuck.stdin is not None
        stuck.stdin.close()
        assert stuck.wait(30) == 0
    reading, writing = os.pipe()
    os.close(reading)
    gone = started(tmp_path, stderr=writing)
    os.close(writing)
    assert gone.stdin is not None
    gone.stdin.close()
    assert gone.wait(30) == 0


def test_a_guard_that_cannot_use_the_network_says_so_in_a_paragraph(tmp_path: Path) -> None:
    lost = started(tmp_path, env={"ROS_LOCALHOST_ONLY": "0", **NOWHERE}, stderr=subprocess.PIPE)
    _, told = lost.communicate(timeout=60)
    assert lost.returncode == 2
    assert told.decode().startswith("guard: The host 'no-such-host.invalid' of ROS_STATIC_PEERS is unknown")
    assert b"Traceback" not in told


def test_a_bridge_that_does_not_start_starts_no_guard(tmp_path: Path) -> None:
    env = {**own_domain(), "ROS_LOCALHOST_ONLY": "0", **NOWHERE}
    done = python("-m", "rtcontrol_client.ros2", "--config", str(EXAMPLE), "--connect", "tcp://127.0.0.1:1", env=env)
    assert done.returncode == 2
    assert "no-such-host.invalid" in done.stderr
    assert "guard" not in done.stderr


def test_a_guard_needs_no_installation_and_takes_no_module_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "yaml.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    for name, value in own_domain().items():
        monkeypatch.setenv(name, value)
    one = Guard(config.load(EXAMPLE), 16.0, 200.0)
    try:
        until(lambda: one.pid is not None and b"guard" in cmdline(one.pid), "not started")
        time.sleep(1.0)
        one.beat(None)
        assert one.pid is not None and psutil.Process(one.pid).status() != psutil.STATUS_ZOMBIE
    finally:
        pid = one.pid
        one.close()
    assert pid is not None and not psutil.pid_exists(pid)


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


class Heard:
    """A topic that takes what it is told, or nothing."""

    def __init__(self) -> None:
        self.failed, self.takes = 0, True
        self.messages: list[Any] = []

    def write(self, message: Any) -> bool:
        self.messages += [message] if self.takes else []
        self.failed += not self.takes
        return self.takes


def test_a_beat_comes_before_what_it_is_about_and_none_before_the_safe_call_is_out() -> None:
    wheels = Heard()
    actuator = Ros2Actuator(mapper(), {"/cmd_vel": wheels}, 1000.0)
    beats: list[tuple[float | None, int]] = []
    actuator.heartbeat = lambda left_ms: beats.append((left_ms, len(wheels.messages)))
    drive = FunctionCall(name="drive", arguments={"speed": 30, "turn": "straight"})
    actuator.apply(lambda: Standing(drive, "fresh", left_ms=480.0))
    assert beats == [(480.0, 0)] and len(wheels.messages) == 1
    wheels.takes = False
    actuator.apply(lambda: Standing(None, "safe"))
    assert len(beats) == 1  # it is not out
    wheels.takes = True
    time.sleep(0.002)  # a tick later
    actuator.apply(lambda: Standing(None, "safe"))
    assert beats[1:] == [(None, 2)]


def test_a_bridge_that_stood_still_beyond_its_call_publishes_the_same_call_whole_again() -> None:
    once, wheels = Heard(), Heard()
    value = put("tools", "drive", "publish", value={
        "/goal": {"type": "std_msgs/msg/String", "set": {"data": {"from": "turn"}}, "repeat": False},
        "/cmd_vel": {"type": "geometry_msgs/msg/Twist"},
    })  # fmt: skip
    actuator = Ros2Actuator(mapper(value), {"/cmd_vel": wheels, "/goal": once}, 1000.0)
    drive = FunctionCall(name="drive", arguments={"speed": 30, "turn": "left"})
    actuator.apply(lambda: Standing(drive, "fresh", left_ms=10.0))
    time.sleep(0.02)  # a guard has cancelled the goal meanwhile
    actuator.apply(lambda: Standing(drive, "fresh", left_ms=500.0))
    actuator.apply(lambda: Standing(drive, "fresh", left_ms=500.0))
    assert len(once.messages) == 2


LEFT = st.integers(0, 5_000)


@given(st.lists(st.tuples(LEFT, st.floats(0, 10))), st.floats(0, 10))
def test_while_beats_come_in_time_nothing_is_due_and_behind_the_last_it_is(
    beats: list[tuple[int, float]], rest: float
) -> None:
    watch, now = Watch(), 0.0
    end = now
    for left_ms, share in beats:
        end = now + left_ms / 1e3
        watch.hear(b"%d\n" % round(end * 1e9), now)
        now += min(share, 1.0) * left_ms / 1e3
        assert not watch.due(now)
        assert 0 < watch.rest(now, 0.5) <= 0.5
    if beats:
        assert watch.due(end + 2 * GRACE_S + rest)
        watch.hear(b"-\n", end + rest)
        assert not watch.due(end + rest + 1e6)


@given(st.integers(0, 10_000))
def test_a_beat_that_waited_in_the_pipe_gives_no_time_anew(waited_ms: int) -> None:
    watch = Watch()
    watch.hear(b"%d\n" % 10**9, 1.0 + waited_ms / 1e3)
    assert watch.due(1.0 + waited_ms / 1e3) == (waited_ms / 1e3 >= GRACE_S)


@given(st.binary(max_size=64), st.booleans(), st.lists(st.integers(1, 8), max_size=8), st.none() | st.floats(0, 4))
def test_whatever_comes_through_the_pipe_its_end_without_a_farewell_is_due_for_as_long_as_it_holds(
    noise: bytes, farewell: bool, cuts: list[int], met: float | None
) -> None:
    watch, data = Watch(), noise + (b"\nbye\n" if farewell else b"\n")
    for cut in cuts:  # in pieces of any size
        if data[:cut]:
            watch.hear(data[:cut], 1.0)
        data = data[cut:]
    if data:
        watch.hear(data, 1.0)
    watch.hear(b"", 2.0)
    watch.hear(b"", 2.5)  # as whoever reads on finds it
    if met is not None:
        watch.meet(met)
        watch.meet(met + 1.0)
    gone = farewell or b"bye" in noise.split(b"\n")
    end = 2.0 + MOST_S if met is None else max(met, 2.0) + HOLD_S
    assert watch.due(2.0) == watch.due(end - 0.01) == (not gone)
    assert not watch.due(end + 0.01)
    assert watch.done(2.0) == gone
    assert watch.done(end + 0.01)
