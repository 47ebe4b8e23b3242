"""A simulator's time: by what messages age and are stamped, and what happens where it stands still or jumps back."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol_client import Standing
from rtcontrol_client.ros2 import EXAMPLE
from rtcontrol_client.ros2.actuate import Ros2Actuator
from rtcontrol_client.ros2.bridge import Ros2Bridge, Ros2BridgeOptions
from rtcontrol_client.ros2.cli import main
from rtcontrol_client.ros2.clock import RobotClock
from rtcontrol_client.ros2.errors import Unmappable
from rtcontrol_client.ros2.msgs import builtin_interfaces, geometry_msgs, rosgraph_msgs, std_msgs
from rtcontrol_client.ros2.observer import Observer
from rtcontrol_client.ros2.parts import Topic
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import Peer, SimulatedRobot, Start, our_node
from tests.bridges.ros2.mapping import SENSES, mapper, put
from tests.helpers.processes import Program, until

S = 1_000_000_000


class Simulator:
    """/clock, and our own monotonic clock beside it, both by hand."""

    def __init__(self) -> None:
        self.real_ns = 7 * S
        self._told: Any = None
        self.clock = RobotClock(self, 500.0, lambda: self.real_ns)

    def at(self, seconds: float, after: float = 0.0) -> None:
        """It says this time `after` real seconds."""
        self.real_ns += int(after * S)
        sec, nanosec = divmod(int(seconds * S), S)
        self._told = rosgraph_msgs.Clock(clock=builtin_interfaces.Time(sec=sec, nanosec=nanosec))
        self.clock.read()

    def poll(self) -> tuple[Any, int] | None:
        told, self._told = self._told, None
        if isinstance(told, Exception):
            raise told
        return None if told is None else (told, self.real_ns)


class Sensor:
    """Its next message."""

    def __init__(self) -> None:
        self.next: Any = None

    def poll(self) -> tuple[Any, int] | None:
        message, self.next = self.next, None
        return None if message is None else (message, time.monotonic_ns())


def seeing(simulator: Simulator, kind: str = "std_msgs/msg/Float64", path: str = "data") -> tuple[Observer, Sensor]:
    topics = {"/a": {"type": kind, "max_age_ms": 500, "fields": {"a": path}}}
    sensor = Sensor()
    return Observer(mapper(put("observe", value={"topics": topics})), {"/a": sensor}, simulator.clock), sensor


def test_messages_age_by_the_simulators_clock_however_slow_it_is() -> None:
    simulator = Simulator()
    looking, sensor = seeing(simulator)
    sensor.next = std_msgs.Float64(data=1.5)
    simulator.at(100.0)
    assert looking.look() is not None
    for tenth in range(1, 6):  # ten times slower than real time
        simulator.at(100.0 + tenth / 10, after=0.4)
        assert looking.look() is not None, tenth
    simulator.at(100.51, after=0.1)
    assert looking.look() is None
    assert looking.waiting == {"/a": "the last message is older than 500 ms (510 ms)"}


def test_a_clock_that_stands_still_holds_the_observation_back_in_real_time() -> None:
    simulator = Simulator()
    looking, sensor = seeing(simulator)
    simulator.at(100.0)
    sensor.next = std_msgs.Float64(data=1.5)
    assert looking.look() is not None
    simulator.at(100.0, after=0.4)  # a paused simulator says the same time again
    assert looking.look() is not None
    simulator.at(100.0, after=2.2)
    sensor.next = std_msgs.Float64(data=1.5)  # and its sensors may go on
    assert looking.look() is None and looking.waiting == {"/clock": "the simulator's clock stands still (3 s)"}
    simulator.at(100.1, after=0.1)
    assert looking.look() is not None and looking.waiting == {}


def test_without_a_first_clock_nothing_is_observed_and_stamps_are_zero_as_of_every_node() -> None:
    simulator = Simulator()
    looking, sensor = seeing(simulator)
    sensor.next = std_msgs.Float64(data=1.5)
    assert looking.look() is None and looking.waiting["/clock"].startswith("no message yet, and use_sim_time is true.")
    assert simulator.clock.stamp_ns() == 0
    simulator._told = Unmappable("a message cannot be read")
    assert simulator.clock.stamp_ns() == 0


# After a reset of the world buffers that kept what was before take the new for old (ros/geometry2#43, #64;
# ros2/geometry2#608), and messages of before that come late are ahead of the clock (ros/geometry2#542).
def test_a_clock_that_jumps_back_is_told_once_and_what_was_before_is_forgotten() -> None:
    simulator = Simulator()
    looking, sensor = seeing(simulator)
    simulator.at(100.0)
    sensor.next = std_msgs.Float64(data=1.5)
    assert looking.look() is not None and not simulator.clock.jumped
    simulator.at(0.25, after=0.02)
    sensor.next = std_msgs.Float64(data=1.5)
    assert simulator.clock.jumped and simulator.clock.back() == 99.75
    looking.forget()
    assert (simulator.clock.jumped, simulator.clock.back()) == (False, 0.0)
    assert looking.look() is None and looking.waiting == {"/a": "no message yet"}
    sensor.next = std_msgs.Float64(data=2.5)
    look = looking.look()
    assert look is not None and look.data == {"a": 2.5}


def test_a_late_message_of_before_the_jump_is_not_read_and_a_simulator_may_stamp_by_another_clock() -> None:
    simulator = Simulator()
    looking, sensor = seeing(simulator, "geometry_msgs/msg/PointStamped", "point.x")

    def stamped(sec: int, x: float) -> Any:
        header = std_msgs.Header(stamp=builtin_interfaces.Time(sec=sec))
        return geometry_msgs.PointStamped(header=header, point=geometry_msgs.Point(x=x))

    simulator.at(100.0)
    simulator.at(1.0, after=0.02)
    simulator.clock.back()
    looking.forget()
    sensor.next = stamped(100, 1.0)
    assert looking.look() is None and looking.waiting == {"/a": "no message yet"}
    sensor.next = stamped(1, 2.0)
    look = looking.look()
    assert look is not None and look.data == {"a": 2.0}
    simulator.at(2.1, after=1.1)
    sensor.next = stamped(1_700_000_000, 3.0)  # its node has not got use_sim_time
    look = looking.look()
    assert look is not None and look.data == {"a": 3.0}


def test_what_is_published_is_stamped_by_the_simulators_clock() -> None:
    simulator = Simulator()
    told: list[Any] = []
    fields = {"type": "geometry_msgs/msg/TwistStamped", "set": {"header.stamp": "now"}}
    stop = {"description": "", "publish": {"/cmd_vel": fields}}
    output = SimpleNamespace(failed=0, write=lambda message: told.append(message) or True)
    made = mapper(put("tools", value={"stop": stop}))
    actuator = Ros2Actuator(made, {"/cmd_vel": output}, 16.0, simulator.clock)
    simulator.at(12.5)
    actuator.apply(lambda: Standing(None, "safe", cause="test"))
    assert (told[0].header.stamp.sec, told[0].header.stamp.nanosec) == (12, S // 2)


class World:
    """A robot and its simulator in memory: `seconds` is its time."""

    def __init__(self) -> None:
        self.seconds, self.runs = 100.0, True
        self.speeds: list[float] = []

    def input(self, topic: Topic) -> Any:
        def poll() -> tuple[Any, int] | None:
            if topic.name == "/clock":
                self.seconds += 0.01 * self.runs
                sec, nanosec = divmod(int(self.seconds * S), S)
                return rosgraph_msgs.Clock(clock=builtin_interfaces.Time(sec=sec, nanosec=nanosec)), 0
            message = SENSES.get(topic.name)
            return None if message is None else (message, time.monotonic_ns())

        return SimpleNamespace(poll=poll)

    def output(self, topic: Topic, promise_ms: float | None = None) -> Any:
        def write(message: Any) -> bool:
            if topic.name == "/cmd_vel":
                self.speeds.append(message.linear.x)
            return True

        return SimpleNamespace(failed=0, write=write)

    def problems(self) -> dict[str, str]:
        return {}

    def flush(self, seconds: float) -> None:
        pass


def test_a_jump_back_ends_the_call_in_force_and_begins_an_episode(brain: Brain) -> None:
    import threading

    world = World()
    made = mapper(put("use_sim_time", value=True))
    bridge = Ros2Bridge(made, world, Ros2BridgeOptions(endpoint=brain.endpoint))
    thread = threading.Thread(target=bridge.run, daemon=True)
    thread.start()
    try:
        until(lambda: any(world.speeds), "it does not drive")
        brain.silent = True
        world.seconds, mark = 1.0, len(world.speeds)
        until(lambda: brain.epoch == 1, "the server was not told of the reset")
        until(lambda: 0.0 in world.speeds[mark:], "it drives on")
        assert not any(world.speeds[world.speeds.index(0.0, mark) :])
        brain.silent, mark = False, len(world.speeds)
        until(lambda: any(world.speeds[mark:]), "it does not go on")
    finally:
        bridge.stop()
        thread.join(10)


def test_a_real_nodes_clock_is_followed_and_a_pause_or_a_reset_stops_the_robot(
    ros: str, brain: Brain, peer: Peer, bridge: Start, domain: dict[str, str], tmp_path: Path
) -> None:
    robot = SimulatedRobot(domain, tmp_path / "robot.log", ros=ros)
    try:
        running = bridge(brain.endpoint, "--ros-args", "-p", "use_sim_time:=true")
        running.says("Nobody publishes /clock.")
        peer.ask("subscriber", topic="/diagnostics", type="diagnostic_msgs/msg/DiagnosticArray")
        assert robot.report()["moving"] == [0.0, 0.0]
        peer.ask("clock", start=100.0, rate=0.5)
        robot.until_it_moves()
        peer.ask("clock", start=1000.0, rate=0.0)
        running.says("/clock: the simulator's clock stands still")
        robot.until_it_stands()
        peer.ask("clock", start=1000.0, rate=2.0)
        robot.until_it_moves()
        assert brain.epoch == 0
        peer.ask("heard", topic="/diagnostics")
        peer.ask("clock", start=3.0, rate=1.0)
        running.says("The simulator's time jumped back by ")
        until(lambda: brain.epoch == 1, "no episode was begun")
        robot.until_it_moves()
        heard: list[Any] = []
        until(lambda: heard.extend(peer.ask("heard", topic="/diagnostics")) or len(heard) > 2, "no diagnostics")
        assert heard[-1]["header"]["stamp"]["sec"] < 900
    finally:
        robot.kill()


@pytest.mark.parametrize("given", [["-r", "__node:=pilot"], ["-p", "robot:=x"], ["-p"], ["use_sim_time:=true"]])
def test_other_arguments_of_ros_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(EXAMPLE), "--check", "--ros-args", *given]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"--ros-args {' '.join(given)} is not understood. Give -p use_sim_time:=true or false.")


@pytest.fixture
def node(ros: str, brain: Brain, domain: dict[str, str], tmp_path: Path) -> Any:
    found = our_node(ros, domain, tmp_path / "node.log", brain.endpoint, "-p", "use_sim_time:=true")
    yield found
    found.kill()


def test_our_own_node_takes_use_sim_time_as_every_node_does(
    node: Program, peer: Peer, ros: str, domain: dict[str, str], tmp_path: Path
) -> None:
    robot = SimulatedRobot(domain, tmp_path / "robot.log", ros=ros)
    try:
        node.says("Nobody publishes /clock.")
        peer.ask("clock", start=100.0, rate=1.0)
        robot.until_it_moves()
        peer.ask("clock", start=1.0, rate=1.0)
        node.says("The simulator's time jumped back by ")
        robot.until_it_moves()
    finally:
        robot.kill()
