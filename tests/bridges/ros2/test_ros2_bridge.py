"""The ROS 2 bridge: what a robot in another process did, what is published and when, how it ends, its commands."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol_client import Refused, Standing
from rtcontrol_client.ros2 import EXAMPLE, cli
from rtcontrol_client.ros2.actuate import Ros2Actuator
from rtcontrol_client.ros2.bridge import Ros2Bridge, Ros2BridgeOptions
from rtcontrol_client.ros2.cli import main
from rtcontrol_client.ros2.errors import Unmappable
from rtcontrol_client.ros2.parts import Topic
from rtcontrol_client.wire.messages import ErrorMessage, FunctionCall
from tests.bridges.client.worlds import Process, free_port, until
from tests.bridges.program import garbage
from tests.bridges.ros2.brain import Brain, wander
from tests.bridges.ros2.conftest import Flight, SimulatedRobot, Start, flown
from tests.bridges.ros2.mapping import SENSES, mapper, put
from tests.helpers.processes import python

BATTERY = """      required: false     # unknown is no reason to stop
      max_age_ms: 30000
      fields:
        battery: """


NOTE = """
    /rtcontrol/instruction:
      type: std_msgs/msg/String
      required: false
      max_age_ms: 1500
      qos: {reliability: reliable}
      fields: {note: {path: data, missing: none}}
"""


@pytest.fixture(scope="module")
def own_brain() -> Iterator[Brain]:
    brain = Brain()
    brain.brief = True
    yield brain
    brain.close()


@pytest.fixture(scope="module")
def to_brain(own_brain: Brain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flight]:
    folder = tmp_path_factory.mktemp("flight")
    config = folder / "robot.yaml"
    text = EXAMPLE.read_text().replace("{battery}", "{battery} note {note}")
    config.write_text(text.replace("\ntools:", NOTE + "\ntools:"))
    yield from flown(folder, own_brain.endpoint, "--instruct", "go", config=config)


@pytest.fixture
def flight(own_brain: Brain, to_brain: Flight) -> Flight:
    """One of all tests, driven anew by the rule of `own_brain`."""
    own_brain.policy, own_brain.ttl_ms, own_brain.silent = wander, 500.0, False
    to_brain.go()
    return to_brain


def test_a_robot_is_driven_by_what_its_topics_say(own_brain: Brain, flight: Flight) -> None:
    robot = flight.robot
    until(lambda: robot.report()["travelled"] > 0.5, "the robot did not move")
    assert own_brain.observed is not None and own_brain.observed.text is not None
    assert "battery 87" in own_brain.observed.text
    assert own_brain.hello is not None and own_brain.hello.robot == "wheelie"
    until(lambda: robot.report()["turning"] == 0.8, "the robot met no wall", 40)
    figures = robot.report()
    assert (figures["collisions"], figures["fastest"]) == (0, pytest.approx(0.3))
    until(lambda: any(o.outcome == "executed" for o in own_brain.outcomes), "no call was acknowledged")


def test_a_bye_that_comes_with_the_welcome_is_no_refusal(flight: Flight) -> None:
    assert "The server ended the session (enough). Connecting anew." in flight.greeted


def test_a_server_that_falls_silent_leaves_the_robot_standing(own_brain: Brain, flight: Flight) -> None:
    own_brain.silent = True
    flight.robot.until_it_stands()
    count = flight.robot.report()["commands"]
    until(lambda: flight.robot.report()["commands"] > count + 5, "the safe call is not repeated")
    own_brain.silent = False
    flight.robot.until_it_moves()


def test_a_server_that_says_bye_is_greeted_anew(own_brain: Brain, flight: Flight) -> None:
    told = "The server ended the session (enough). Connecting anew."
    before = flight.running.log().count(told)
    own_brain.hello, own_brain.bye = None, True
    until(lambda: flight.running.log().count(told) > before, "not told")
    until(lambda: own_brain.hello is not None, "the bridge gave up")
    flight.robot.until_it_moves()


def test_calls_older_than_their_time_to_live_are_never_executed(
    brain: Brain, robot: SimulatedRobot, bridge: Start, tmp_path: Path
) -> None:
    brain.age_ms = 501.0
    running = bridge(brain.endpoint, "--report", str(tmp_path / "report.json"))
    until(lambda: len(brain.outcomes) > 30, "no call was acknowledged")
    assert {o.outcome for o in brain.outcomes} == {"expired"}
    figures = robot.report()
    assert (figures["fastest"], figures["turning"], figures["travelled"]) == (0.0, 0.0, 0.0)
    assert running.end(signal.SIGHUP) == 129
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["expired"] > 30 and report["calls"] <= 5  # the safe call, at the start and at the end


def test_calls_that_a_stall_of_300_ms_made_too_old_are_never_executed(own_brain: Brain, flight: Flight) -> None:
    own_brain.ttl_ms, first = 250.0, max(own_brain.sent_ms)
    until(lambda: max(own_brain.sent_ms) > first + 1, "no call of the new time-to-live")
    first = max(own_brain.sent_ms)
    for _ in range(5):
        own_brain.stalled = True
        time.sleep(0.3)
        own_brain.stalled, count = False, len(own_brain.outcomes)
        until(lambda count=count: any(o.outcome == "executed" for o in own_brain.outcomes[count:]), "no call follows")
    old = {tick for tick, age_ms in own_brain.sent_ms.items() if tick > first and age_ms > 250}
    until(lambda: old <= {o.tick for o in own_brain.outcomes}, "not every old call was acknowledged")
    assert old and {o.outcome for o in own_brain.outcomes if o.tick in old} == {"expired"}
    assert any(o.outcome == "executed" and o.tick > max(old) for o in own_brain.outcomes)


def test_a_call_outside_the_mapping_is_refused_and_the_robot_stops(own_brain: Brain, flight: Flight) -> None:
    own_brain.policy = lambda text, instruction: FunctionCall(name="drive", arguments={"speed": 30, "turn": "up"})
    flight.robot.until_it_stands()
    flight.running.says("A call was refused: turn: nothing is given for 'up'.")
    until(lambda: any(o.outcome == "refused" and "'up'" in (o.error or "") for o in own_brain.outcomes), "not told")


def test_what_the_server_refuses_is_told_and_the_bridge_goes_on(own_brain: Brain, flight: Flight) -> None:
    wrong = ErrorMessage(code="instruction", message="It is too long.", remedy="Say less.", retryable=False)
    own_brain.complaint = wrong
    flight.running.says("The server answered instruction: It is too long. Say less.")
    until(lambda: "It is too long" in flight.robot.said() or "server is in order" in flight.running.log(), "not told")
    assert flight.running.popen.poll() is None


def test_nothing_that_a_robot_says_ends_its_bridge(own_brain: Brain, flight: Flight) -> None:
    robot, running = flight.robot, flight.running
    robot.tell("poison utf8")
    running.says("/odom: a message cannot be read ('utf-8' codec")
    robot.until_it_stands()
    robot.tell("poison off")
    robot.until_it_moves()
    robot.tell("instruct " + "x" * 70_000)
    running.says("The instruction was not taken: ")
    running.says("The observation is not sent: ")
    running.says("observation is in order")
    robot.tell("instruct")
    running.says("The instruction was not taken: instruct.instruction says nothing.")
    robot.until_it_moves()
    assert "x" not in own_brain.instruction and running.popen.poll() is None


def test_an_instruction_published_on_a_topic_changes_what_it_does(own_brain: Brain, flight: Flight) -> None:
    assert own_brain.instruction == "go"
    flight.robot.tell("instruct halt")
    flight.robot.until_it_stands()
    assert own_brain.instruction == "halt"
    flight.robot.tell("instruct go")
    flight.robot.until_it_moves()


def test_a_bridge_that_is_killed_is_missed_by_the_subscribers_of_its_commands(flight: Flight) -> None:
    mark = time.monotonic()
    flight.running.kill()
    until(lambda: bool(flight.robot.since(mark)["dead"]), "its lease has not ended")
    assert flight.robot.report()["moving"] == [0.0, 0.0]  # by its guard: test_guard.py


def test_a_robot_that_leaves_is_told_and_sigterm_ends_the_bridge(flight: Flight) -> None:
    flight.running.says("in session")
    assert flight.robot.popen.stdin is not None
    flight.robot.popen.stdin.close()
    flight.running.says("Nobody publishes /odom.")
    flight.running.says("Nobody subscribes to /cmd_vel.")
    assert flight.running.end() == 143


@pytest.fixture(scope="module")
def to_server(mortal: Process, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flight]:
    yield from flown(tmp_path_factory.mktemp("flight"), mortal.endpoint)


@pytest.fixture
def served(own_server: Process, to_server: Flight) -> Flight:
    """One of all tests that has its own server, which may be killed."""
    to_server.go()
    return to_server


def test_a_sensor_that_dies_is_told_and_ends_in_the_safe_call(served: Flight) -> None:
    robot, running = served.robot, served.running
    robot.tell("mute /scan")
    running.says("/scan: the last message is older than 500 ms")
    until(lambda: "safe call in force: /scan: the last message is older" in robot.said(), "not in the diagnostics")
    level, _, values = robot.report()["diagnostics"]
    assert level == 2 and robot.report()["moving"] == [0.0, 0.0]
    assert 0 < float(values["on_time_share"]) < 1 and int(values["misses"]) > 0
    robot.tell("unmute /scan")
    running.says("/scan is in order")
    robot.until_it_moves()


def test_a_second_bridge_of_the_same_robot_is_refused_in_words(served: Flight, tmp_path: Path) -> None:
    second = served.start("--connect-timeout", "1")
    assert second.popen.wait(30) == 2
    second.says("the server answered busy: The robot 'wheelie' is claimed by another session. End that one")
    served.robot.until_it_moves()
    assert served.running.popen.poll() is None


def test_a_killed_server_leaves_the_robot_standing_and_a_new_one_drives_it(served: Flight, own_server: Process) -> None:
    own_server.kill()
    until(lambda: "no connection to the server" in served.robot.said(), "not in the diagnostics")
    served.robot.until_it_stands()
    own_server.start()
    served.robot.until_it_moves(60)
    assert served.running.popen.poll() is None
    assert served.running.end() == 143
    assert served.robot.report()["moving"] == [0.0, 0.0]


WRONG = [
    (
        "type: sensor_msgs/msg/LaserScan\n",
        "type: sensor_msgs/msg/LaserScan\n      qos: {reliability: reliable}\n",
        "QoS of /scan is incompatible: its publisher offers best_effort, and in our file qos.reliability asks for "
        "reliable. No message passes.",
    ),
    (
        "      /cmd_vel:\n        type: geometry_msgs/msg/Twist",
        "      /cmd_vel:\n        qos: {reliability: best_effort}\n        type: geometry_msgs/msg/Twist",
        "QoS of /cmd_vel is incompatible: a subscriber asks for reliable, and in our file qos.reliability offers "
        "best_effort.",
    ),
    (
        "/odom:\n      type: nav_msgs/msg/Odometry\n",
        "/odom:\n      type: nav_msgs/msg/Odometry\n      qos: {durability: transient_local}\n",
        "its publisher offers volatile, and in our file qos.durability asks for transient_local",
    ),
    (
        f"type: sensor_msgs/msg/BatteryState\n{BATTERY}{{path: percentage,",
        f"type: sensor_msgs/msg/Temperature\n{BATTERY}{{path: temperature,",
        "/battery_state is published as sensor_msgs/msg/BatteryState, and our file says sensor_msgs/msg/Temperature",
    ),
]


def test_qos_and_types_that_keep_topics_apart_are_told_in_words(
    brain: Brain, robot: SimulatedRobot, bridge: Start, tmp_path: Path
) -> None:
    text = EXAMPLE.read_text()
    for old, new, _ in WRONG:
        assert old in text
        text = text.replace(old, new)
    config = tmp_path / "robot.yaml"
    config.write_text(text)
    running = bridge(brain.endpoint, config=config)
    for _, _, says in WRONG:
        running.says(says)


def test_topics_that_nobody_publishes_or_hears_are_told(brain: Brain, bridge: Start) -> None:
    running = bridge(brain.endpoint)
    running.says("Nobody publishes /odom. Start the robot, or correct the topic's name, ROS_DOMAIN_ID or the network.")
    running.says("Nobody subscribes to /cmd_vel.")
    assert "/battery_state" not in running.log()  # not required


def test_what_is_no_server_is_told_as_such(bridge: Start) -> None:
    with garbage([None]) as (address, _):
        running = bridge(f"tcp://{address}", "--connect-timeout", "3")
        assert running.popen.wait(30) == 2
    assert "No welcome from tcp://127.0.0.1:" in running.log() and "is no rtcontrol server" in running.log()


def test_without_a_server_it_ends_with_the_command_that_starts_one(bridge: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    running, brief = bridge(endpoint, "--connect-timeout", "0.5"), bridge(endpoint, "--duration", "0.5")
    assert (running.popen.wait(20), brief.popen.wait(20)) == (2, 7)
    told = f"No rtcontrol server answers at {endpoint}. Start one: rtcontrol serve --bind {endpoint}"
    assert told in running.log()
    assert f"No server was in session within the duration: only the safe call was published. {told}" in brief.log()


# What is published, and what no more: without a network.


SAFE = Standing(None, "safe", cause="expired")


def drive(left_ms: float, speed: int = 30) -> Standing:
    call = FunctionCall(name="drive", arguments={"speed": speed, "turn": "straight"})
    return Standing(call, "fresh", tick=1, left_ms=left_ms)


class Wheels:
    """A topic that keeps the speeds it was told; `takes` is asked before each whether it takes it."""

    def __init__(self, takes: Callable[[float], bool] = lambda speed: True) -> None:
        self.told: list[float] = []
        self.takes = takes
        self.failed = 0

    def write(self, message: Any) -> bool:
        taken = self.takes(message.linear.x)
        self.failed += not taken
        self.told += [message.linear.x] if taken else []
        return taken


@pytest.fixture
def wheels() -> Wheels:
    return Wheels()


@pytest.fixture
def actuator(wheels: Wheels) -> Ros2Actuator:
    return Ros2Actuator(mapper(), {"/cmd_vel": wheels}, 1000.0)


def test_call_whose_time_is_over_before_it_is_published_is_refused_and_the_robot_stops(
    actuator: Ros2Actuator, wheels: Wheels
) -> None:
    actuator.apply(lambda: drive(500.0))
    with pytest.raises(Unmappable, match="drive could not be published within its time-to-live"):
        actuator.apply(lambda: drive(1.0, speed=20))
    assert wheels.told == [0.3, 0.0]


def test_safe_call_that_could_not_be_written_is_written_in_the_next_tick_even_where_it_does_not_repeat() -> None:
    stuck = iter((True, True, False, False))
    wheels = Wheels(lambda speed: not next(stuck))
    once = put("tools", "stop", "publish", "/cmd_vel", "repeat", value=False)
    actuator = Ros2Actuator(mapper(once), {"/cmd_vel": wheels}, 1000.0)
    for _ in range(4):
        actuator.apply(lambda: SAFE)
        time.sleep(0.002)
    assert (wheels.told, wheels.failed) == ([0.0], 2)


def test_fault_in_writing_half_of_a_call_is_followed_by_the_safe_call_at_once() -> None:
    def both(value: dict[str, Any]) -> None:
        for tool in value["tools"].values():
            tool["publish"]["/second"] = tool["publish"]["/cmd_vel"]

    def takes(speed: float) -> bool:
        if speed:
            raise OSError("no such device")
        return True

    wheels, broken = Wheels(), Wheels(takes)
    actuator = Ros2Actuator(
        mapper(both), {"/cmd_vel": wheels, "/second": broken}, 1.0
    )  # nothing is repeated in a second
    actuator.apply(lambda: SAFE)
    with pytest.raises(Unmappable, match="drive could not be published .no such device."):
        actuator.apply(lambda: drive(500.0))
    assert (wheels.told, broken.told, actuator.state) == ([0.0, 0.3, 0.0], [0.0, 0.0], "safe")


def test_once_closed_nothing_but_the_safe_call_is_published_or_told(actuator: Ros2Actuator, wheels: Wheels) -> None:
    actuator.apply(lambda: drive(500.0))
    actuator.close(SAFE)
    actuator.apply(lambda: drive(500.0, speed=20))
    assert (wheels.told[0], set(wheels.told[1:]), actuator.state) == (0.3, {0.0}, "safe")


def test_one_call_that_does_not_fit_is_one_refusal_in_all_its_ticks(actuator: Ros2Actuator, wheels: Wheels) -> None:
    standing = Standing(FunctionCall(name="drive", arguments={"speed": 30, "turn": "up"}), "fresh", left_ms=500.0)
    for _ in range(3):
        with pytest.raises(Unmappable, match="turn: nothing is given for 'up'"):
            actuator.apply(lambda: standing)
        time.sleep(0.002)
    assert actuator.count["refused"] == 1 and set(wheels.told) == {0.0}


def test_call_in_force_is_not_repeated_when_its_time_is_as_good_as_over(actuator: Ros2Actuator, wheels: Wheels) -> None:
    for left_ms in (500.0, 400.0, 1.0):
        actuator.apply(lambda left_ms=left_ms: drive(left_ms))  # type: ignore[misc]
        time.sleep(0.002)  # its repetition is due
    assert wheels.told == [0.3, 0.3]


def test_nothing_that_another_thread_has_seen_end_is_published_after_it(actuator: Ros2Actuator, wheels: Wheels) -> None:
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
    time.sleep(0.05)  # it waits for its turn
    now[0] = SAFE
    go.set()
    first.join()
    second.join()
    assert wheels.told == [0.3, 0.0]


# However a bridge ends, the safe call is the last that it publishes: without a network to the robot.


class Net:
    """Topics in memory. `fails`: what reading raises from now on; `stuck`: waiting for subscribers raises."""

    def __init__(self) -> None:
        self.told: dict[str, list[Any]] = {}
        self.fails: Exception | None = None
        self.stuck = False

    def input(self, topic: Topic) -> Any:
        message = SENSES.get(topic.name)

        def poll() -> tuple[Any, int] | None:
            if self.fails is not None:
                raise self.fails
            return None if message is None else (message, time.monotonic_ns())

        return SimpleNamespace(poll=poll)

    def output(self, topic: Topic, promise_ms: float | None = None) -> Any:
        told = self.told.setdefault(topic.name, [])
        return SimpleNamespace(failed=0, write=lambda message: told.append(message) or True)

    def problems(self) -> dict[str, str]:
        return {}

    def flush(self, seconds: float) -> None:
        if self.stuck:
            raise OSError("no network")

    def speeds(self) -> list[float]:
        return [message.linear.x for message in self.told["/cmd_vel"]]


class Run:
    """A bridge in a thread, at work; `error` is what it ended with."""

    def __init__(self, brain: Brain) -> None:
        self.net = Net()
        self.bridge = Ros2Bridge(mapper(), self.net, Ros2BridgeOptions(endpoint=brain.endpoint))
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        until(lambda: any(self.net.speeds()), "the robot did not move")

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
        time.sleep(0.2)  # three ticks in which nothing may come after it
        assert len(self.net.speeds()) == count


def test_fault_of_its_own_ends_in_the_safe_call(brain: Brain) -> None:
    running = Run(brain)
    running.net.fails = RuntimeError("a fault")
    running.ended()
    assert isinstance(running.error, RuntimeError)


def test_stop_by_a_signal_that_interrupts_the_bridges_own_wait_ends_it(brain: Brain) -> None:
    asked = threading.Event()

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        """As a handler does: between any two steps of the wait, on its own thread."""
        above = None if frame.f_back is None else frame.f_back.f_back
        waits = above is not None and above.f_code is Ros2Bridge.run.__code__
        if waits and event == "call" and frame.f_code.co_name in ("wait", "<lambda>") and asked.is_set():
            running.bridge.stop()

    threading.setprofile(interrupt)
    try:
        running = Run(brain)
    finally:
        threading.setprofile(None)
    asked.set()
    running.ended()
    assert running.error is None


def test_end_that_fails_halfway_still_says_bye_and_tells_the_safe_call(brain: Brain) -> None:
    running = Run(brain)
    running.net.stuck = True
    running.bridge.stop()
    running.ended()
    assert isinstance(running.error, OSError)
    message = running.net.told["/diagnostics"][-1].status[0].message  # either way: it may not have connected yet
    assert message.removeprefix("no connection to the server: ") == "safe call in force"
    until(lambda: brain.left, "the server heard no bye")


def test_server_that_refuses_for_good_ends_in_the_safe_call(brain: Brain) -> None:
    running = Run(brain)
    brain.complaint = ErrorMessage(code="busy", message="The robot is taken.", remedy="End that one.", fatal=True)
    running.ended()
    assert isinstance(running.error, Refused)


# The command line, also where torch, Ray and transformers are not installed.


BARE = """
import sys
for name in "torch ray transformers gymnasium numpy typer rosbags".split(): sys.modules[name] = None
from rtcontrol_client.ros2.cli import main
sys.exit(main())
"""
WITHOUT_EXTRA = BARE.replace("rosbags", "rosbags cyclonedds yaml")
ROBOT = str(EXAMPLE)


def run(*arguments: str, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    program = ["-c", code] if code else ["-m", "rtcontrol", "bridge", "ros2"]
    return python(*program, *arguments, env={"COLUMNS": "200", **environment})


def test_its_example_needs_no_extra_and_it_starts_with_nothing_but_that(tmp_path: Path) -> None:
    example = run("--example", code=WITHOUT_EXTRA)
    (tmp_path / "robot.yaml").write_text(example.stdout)
    checked = run("--config", str(tmp_path / "robot.yaml"), "--check", code=BARE)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "publishes /cmd_vel  geometry_msgs/msg/Twist" in checked.stdout
    assert "reads     /rtcontrol/instruction  std_msgs/msg/String  -> the instruction" in checked.stdout
    assert "publishes /diagnostics  diagnostic_msgs/msg/DiagnosticArray" in checked.stdout


def test_it_is_a_command_of_rtcontrol(tmp_path: Path) -> None:
    helped = run("--help")
    assert "usage: rtcontrol bridge ros2" in helped.stdout and "--config" in helped.stdout
    wrong = tmp_path / "robot.yaml"
    wrong.write_text("hz: 16\n")
    done = run("--config", str(wrong), "--check")
    assert done.returncode == 2 and done.stderr.startswith(f"{wrong}: instruction is missing. Add it; ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--hz", "nan"], "--hz nan is out of range. Give 0.1 to 200."),
        (["--connect-timeout", "-1"], "--connect-timeout -1 is out of range."),
        (["--duration", "nan"], "--duration nan is out of range."),
        (["--connect", "http://127.0.0.1:8000"], "http://127.0.0.1:8000 is no endpoint. Write tcp://ADDRESS:PORT, "),
        (
            ["--connect", "127.0.0.1:5555"],
            "127.0.0.1:5555 is no endpoint. Write tcp://ADDRESS:PORT, tcp://[IPV6]:PORT or",
        ),
        (["--server-key", "server.key"], "--server-key is given without --keys."),
        (["--report", "/nowhere/report.json"], "The report /nowhere/report.json cannot be written (No such file"),
        (["--instruct", "x" * 70_000], "instruction: a string of 70000 characters: above the limit"),
    ],
)
def test_a_mistake_is_told_before_anything_is_connected(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", ROBOT, *given, "--check"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(says) and len(told.splitlines()) == 1, told


def test_a_server_on_the_web_is_refused_before_dds_is_started() -> None:
    done = run("--config", ROBOT, "--connect", "https://robots.example:8443")
    assert done.returncode == 2 and "DDS" not in done.stderr
    assert done.stderr.startswith("https://robots.example:8443 is no endpoint.")
    assert done.stderr.endswith("A bridge speaks ZeroMQ: give what `rtcontrol serve` says that it listens on.\n")


def test_a_peer_that_nobody_knows_is_a_mistake_and_not_the_end_of_the_process() -> None:
    done = run("--config", ROBOT, ROS_STATIC_PEERS="no.such.host.invalid", ROS_LOCALHOST_ONLY="0", ROS_DOMAIN_ID="97")
    assert done.returncode == 2, done
    assert done.stderr.startswith("The host 'no.such.host.invalid' of ROS_STATIC_PEERS is unknown")


def test_ctrl_c_while_it_starts_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object, prog: str) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupted)
    assert main(["--config", ROBOT]) == 130


def test_without_cyclonedds_it_says_what_to_install() -> None:
    done = run("--config", "x.yaml", code=WITHOUT_EXTRA)
    assert done.returncode == 2
    assert done.stderr == "The ROS 2 bridge needs cyclonedds. Install it: pip install 'rtcontrol-client[ros2]'.\n"
