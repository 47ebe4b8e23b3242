"""Services and actions as a call asks for them, with servers of a real ROS 2 over Fast DDS."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol_client.ros2.errors import Ros2BridgeError, Unmappable
from rtcontrol_client.ros2.goals import Order
from rtcontrol_client.wire.messages import FunctionCall
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import Start, our_node, with_packages
from tests.bridges.ros2.links import linked, robot, without_lamp
from tests.bridges.ros2.mapping import put
from tests.helpers.processes import Program, free_port, until


class Server(Program):
    """tests/bridges/ros2/rclpy_server.py."""

    def __init__(self, ros: str, domain: dict[str, str], log: Path) -> None:
        script = str(Path(__file__).with_name("rclpy_server.py"))
        super().__init__([script], log, ros, env=domain, stdin=-1, stdout=-1)
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == '"ready"\n', self.log()
        self.seen: list[Any] = []

    def ask(self, do: str, **values: Any) -> Any:
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.popen.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self.popen.stdin.flush()
        answer = self.popen.stdout.readline()
        assert answer, self.log()
        return json.loads(answer)

    def asked(self, *what: str) -> list[Any]:
        """All of these that it has been asked."""
        self.seen += self.ask("asked")
        return [one for one in self.seen if one[0] in what]

    def until_asked(self, *what: Any) -> None:
        until(lambda: list(what) in self.asked(what[0]), f"it was not asked {what}, but {self.seen}", 20)


def obey(text: str, instruction: str) -> FunctionCall:
    """The instruction is the call: `count 5`, `lamp on`."""
    name, _, given = instruction.partition(" ")
    arguments: dict[str, Any] = {}
    if name == "count":
        arguments = {"to": int(given)}
    if name == "lamp":
        arguments = {"on": given == "on"}
    return FunctionCall(name=name, arguments=arguments)


@pytest.fixture
def brain() -> Iterator[Brain]:
    found = Brain(obey)
    yield found
    found.close()


@pytest.fixture
def serve(ros: str, domain: dict[str, str], tmp_path: Path) -> Iterator[Callable[[], Server]]:
    with_packages(ros, "std_srvs", "test_msgs")
    made: list[Server] = []

    def start() -> Server:
        made.append(Server(ros, domain, tmp_path / f"server-{len(made)}.log"))
        return made[-1]

    yield start
    for one in made:
        one.kill()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "linked.yaml"
    path.write_text(robot(without_lamp))
    return path


def until_observed(brain: Brain, words: str, seconds: float = 20.0) -> None:
    def seen() -> bool:
        return brain.observed is not None and re.search(words, brain.observed.text or "") is not None

    try:
        until(seen, f"not observed: {words}", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}, but {brain.observed.text if brain.observed else None}") from None


def do(brain: Brain, instruction: str) -> None:
    brain.instruction = instruction


@pytest.fixture(params=["bridge", "node"])
def start(
    request: pytest.FixtureRequest, ros: str, brain: Brain, bridge: Start, file: Path, domain: Any, tmp_path: Path
) -> Iterator[Callable[..., Program]]:
    """Starts the bridge, or our rclpy node."""
    made: list[Program] = []

    def run(config: Path = file) -> Program:
        if request.param == "bridge":
            return bridge(brain.endpoint, config=config)
        made.append(our_node(ros, domain, tmp_path / f"node-{len(made)}.log", brain.endpoint, config=config))
        return made[-1]

    yield run
    for one in made:
        one.kill()


def test_a_goal_is_pursued_once_followed_to_its_result_and_gives_way_to_another(
    brain: Brain, serve: Callable[[], Server], start: Callable[[], Program]
) -> None:
    server, running = serve(), start()
    do(brain, "wait")
    until_observed(brain, "beat 1.0 count idle at unknown got unknown lamp idle on unknown knock idle")
    do(brain, "count 5")
    until_observed(brain, r"count (executing|succeeded) at 1")
    until_observed(brain, r"count succeeded at 1 got 2")
    assert server.asked("goal") == [["goal", 5]]
    do(brain, "count 800")
    until_observed(brain, "count executing")
    server.until_asked("goal", 800)
    do(brain, "wait")  # it says nothing of the goal, which goes on
    do(brain, "count 800")
    do(brain, "count 700")
    server.until_asked("goal", 700)
    assert server.asked("goal", "canceled") == [["goal", 5], ["goal", 800], ["canceled", 800], ["goal", 700]]
    brain.silent = True  # the safe call
    server.until_asked("canceled", 700)
    brain.silent = False
    server.ask("behave", accepts=False)
    do(brain, "count 3")
    until_observed(brain, "count rejected")
    running.says("The server of /count has rejected the goal.")
    server.ask("behave", accepts=True, end="abort")
    do(brain, "count 2")
    until_observed(brain, "count aborted at 1 got unknown")
    running.says("The server of /count has aborted the goal.")
    do(brain, "count 600")
    server.until_asked("goal", 600)
    assert running.end() in (0, 143) and "Traceback" not in running.log(), running.log()
    server.until_asked("canceled", 600)


def test_a_service_is_asked_once_a_call_and_its_answer_or_silence_is_told(
    brain: Brain, serve: Callable[[], Server], start: Callable[[], Program]
) -> None:
    server, running = serve(), start()
    do(brain, "wait")
    until_observed(brain, "lamp idle")
    do(brain, "lamp on")
    until_observed(brain, "lamp answered on on")
    do(brain, "lamp off")
    until_observed(brain, "lamp answered on off")
    do(brain, "knock")
    until_observed(brain, "knock answered")
    assert server.asked("lamp", "knock") == [["lamp", True], ["lamp", False], ["knock"]]
    server.ask("behave", delay_s=2.5)
    do(brain, "lamp on")
    until_observed(brain, "lamp no answer on unknown")
    running.says("/lamp has not answered within 1000 ms.")
    server.until_asked("lamp", True)
    assert "Traceback" not in running.log()


# A server that is not there, or goes: a goal or a request is otherwise lost without a word (ros2/rclcpp#455).
def test_a_server_that_is_missing_or_goes_is_told_and_asked_when_it_comes(
    brain: Brain, serve: Callable[[], Server], bridge: Start, file: Path, domain: dict[str, str], tmp_path: Path
) -> None:
    text = file.read_text().replace("/beat:", "/odom:").replace("std_msgs/Float64", "nav_msgs/Odometry")
    file.write_text(text.replace("beat: data", "beat: twist.twist.linear.x"))
    other = Program(["-m", "tests.bridges.ros2.robot"], tmp_path / "robot.log", env=domain, stdin=-1, stdout=-1)
    try:
        running = bridge(brain.endpoint, config=file)
        running.says("Nobody serves /count. Start its node, or correct the name, the type or ROS_DOMAIN_ID.")
        running.says("Nobody serves /lamp.")
        do(brain, "count 800")
        until_observed(brain, "count no server")
        do(brain, "lamp on")
        until_observed(brain, "lamp no server")
        do(brain, "count 800")
        until_observed(brain, "count no server")
        server = serve()
        until_observed(brain, "count executing")
        server.kill()
        until_observed(brain, "count lost", 45)  # the lease of Fast DDS is 20 s
        running.says("What became of the goal of /count is not known: its server is gone, or does not answer.")
        again = serve()
        do(brain, "count 700")
        again.until_asked("goal", 700)
        until_observed(brain, "count executing")
    finally:
        other.kill()


# ros-navigation/navigation2#6373: who cancels all goals of a server cancels others' goals, too.
# ros2/rclcpp#2241: a server goes on with the goal of a client that was killed, and is told nothing.
def test_only_our_own_goal_is_canceled_but_by_a_start_and_by_the_guard_all(
    brain: Brain, serve: Callable[[], Server], start: Callable[[], Program]
) -> None:
    server = serve()
    server.ask("behave", step_s=0.02)
    server.ask("pursue", order=501)
    server.until_asked("goal", 501)
    running = start()
    server.until_asked("canceled", 501)  # as if an earlier bridge had left it
    do(brain, "wait")
    until_observed(brain, "count idle")
    server.ask("pursue", order=502)
    server.until_asked("goal", 502)
    do(brain, "count 503")
    until_observed(brain, "count executing")
    do(brain, "stop")
    server.until_asked("canceled", 503)
    until_observed(brain, "count canceled")
    assert ["cancel", 502] not in server.asked("cancel")
    do(brain, "count 504")
    until_observed(brain, "count executing")
    running.kill()
    server.until_asked("canceled", 504)
    server.until_asked("canceled", 502)


def test_a_bridge_that_stands_still_has_its_goal_canceled_and_pursues_another_when_it_goes_on(
    brain: Brain, serve: Callable[[], Server], start: Callable[[], Program]
) -> None:
    server = serve()
    running = start()
    do(brain, "wait")
    until_observed(brain, "count idle")
    for order in (601, 602):  # each time
        do(brain, f"count {order}")
        until_observed(brain, "count executing")
        running.popen.send_signal(signal.SIGSTOP)
        server.until_asked("canceled", order)
        do(brain, "wait")  # before it goes on: a call that still wants the goal would pursue it again
        time.sleep(0.2)
        running.popen.send_signal(signal.SIGCONT)
        until_observed(brain, "count canceled")
    running.says("guard: the bridge stands still: the safe call is published")


def test_over_dds_alone_an_answer_beside_another_client_is_not_taken_for_ours(
    brain: Brain, serve: Callable[[], Server], bridge: Start, file: Path
) -> None:
    server = serve()
    assert server.ask("call", data=True) is True  # from now on there is another client
    running = bridge(brain.endpoint, config=file)
    do(brain, "wait")
    until_observed(brain, "lamp idle")
    do(brain, "lamp on")
    server.until_asked("lamp", True)
    until_observed(brain, "lamp unclear on unknown")
    running.says("An answer of /lamp may be that of another request: what it said is not shown.")
    do(brain, "count 4")  # the goal's id tells whose it is
    until_observed(brain, "count succeeded at 1 got 2")


def test_the_guard_asks_the_service_of_the_safe_call_when_the_bridge_is_killed(
    brain: Brain, serve: Callable[[], Server], start: Callable[[Path], Program], tmp_path: Path
) -> None:
    server = serve()
    file = tmp_path / "safe.yaml"
    file.write_text(robot())
    running = start(file)
    until_observed(brain, "lamp (idle|answered)")
    do(brain, "lamp on")
    until_observed(brain, "lamp answered on on")
    server.asked("lamp")
    server.seen.clear()
    running.kill()
    server.until_asked("lamp", False)


def test_another_definition_of_a_service_is_told_by_its_hash(
    brain: Brain, serve: Callable[[], Server], bridge: Start, tmp_path: Path
) -> None:
    serve()
    file = tmp_path / "other.yaml"
    longer = put(
        "types", "test_msgs/action/Fibonacci", value="int64 order\n---\nint32[] sequence\n---\nint32[] sequence"
    )
    file.write_text(robot(longer))
    running = bridge(brain.endpoint, config=file)
    running.says("/count/_action/send_goal is served as another test_msgs/action/Fibonacci_SendGoal_Request than ours")


@pytest.mark.slow
def test_any_legal_calls_of_the_real_server_leave_no_goal_behind(
    serve: Callable[[], Server], bridge: Start, tmp_path: Path
) -> None:
    server, endpoint = serve(), f"tcp://127.0.0.1:{free_port()}"
    serving = Program(["-m", "rtcontrol", "serve", "--model", "random", "--bind", endpoint], tmp_path / "serve.log")
    try:
        serving.says("listening on", 90)
        file = tmp_path / "any.yaml"
        file.write_text(
            robot(put("tools", "count", "parameters", "to", value={"type": "integer", "enum": [5, 20, 300]}))
        )
        running = bridge(endpoint, "--duration", "20", config=file)
        assert running.popen.wait(60) == 0 and "refused 0," in running.log(), running.log()
        goals = server.asked("goal")
        until(lambda: len(server.asked("canceled", "succeed")) >= len(goals), "a goal goes on")
        assert len(goals) > 5 and len(server.asked("canceled", "succeed")) == len(goals)
    finally:
        serving.kill()


# What a file says of services and actions: without a network.


def test_a_call_makes_goals_requests_and_cancellations() -> None:
    made = linked()
    (goal,) = made.publications("count", {"to": 5}, 7)
    assert goal.topic == "/count" and goal.message.goal.order == 5 and not goal.repeat
    assert goal.message.key == made.publications("count", {"to": 5}, 8)[0].message.key
    assert goal.message.key != made.publications("count", {"to": 6}, 7)[0].message.key
    (request,) = made.publications("lamp", {"on": True}, 0)
    assert request.message.data is True
    none, off = made.publications("stop", {}, 0)
    assert (none.topic, none.message, off.topic, off.message.data) == ("/count", Order(), "/lamp", False)
    assert made.publications("wait", {}, 0) == []
    with pytest.raises(Unmappable, match="to: it is missing"):
        made.publications("count", {}, 0)


def test_the_same_goal_stamped_at_another_time_is_the_same_goal() -> None:
    action = "geometry_msgs/PoseStamped pose\n---\n---\nfloat32 left"

    def change(c: Any) -> None:
        put("types", value={"nav/action/To": action})(c)
        goal = {"/to": {"type": "nav/To", "set": {"pose.header.stamp": "now", "pose.header.frame_id": "map"}}}
        put("tools", "go", value={"description": "", "goal": goal})(c)
        c["tools"].pop("count")
        c["observe"].pop("actions")
        c["observe"]["text"] = None

    made = linked(change)
    first, second = (made.publications("go", {}, stamp)[0].message for stamp in (10**9, 2 * 10**9))
    assert first.key == second.key and (first.goal.pose.header.stamp.sec, second.goal.pose.header.stamp.sec) == (1, 2)


GOAL = ("tools", "count", "goal", "/count")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put(*GOAL, "type", value="nav2_msgs/NavigateToPose"), "unknown action type 'nav2_msgs/NavigateToPose'; known"),
        (
            put("types", value={}),
            "unknown action type 'test_msgs/Fibonacci'; none is defined in `types` or `type_files`",
        ),
        (put(*GOAL, "set", "order", value={"from": "to"}), "goal./count.set.order: add `min` and `max`"),
        (put(*GOAL, "set", "orders", value=1), "goal./count.set.orders: there is no 'orders' in Fibonacci_Goal"),
        (
            put("tools", "knock", "request", "/knock", "type", value="std_srvs/Nock"),
            "unknown service type 'std_srvs/Nock'",
        ),
        (put("tools", "wait", "cancel", value=["/other"]), "tools.wait.cancel: no tool has a goal for /other."),
        (put("tools", "count", "cancel", value=["count"]), "tools.count.cancel: the tool has a goal for /count, too."),
        (put("observe", "actions", "/other", value={"fields": {"o": "state"}}), "/other: no tool has a goal for it"),
        (put("observe", "services", "/lamp", "fields", "on", value="response.massage"), "fields.on: path: there is no"),
        (
            put("observe", "actions", "/count", "fields", "at", value="feedback"),
            "fields.at: path: feedback is a message",
        ),
        (
            put("observe", "topics", "/lamp", value={"type": "std_msgs/Bool", "fields": {"b": "data"}}),
            "/lamp is a topic,",
        ),
        (
            put("tools", "knock", "request", value={"/lamp": {"type": "std_srvs/Trigger"}}),
            "it is said to be std_srvs/srv/",
        ),
        (put("tools", "knock", "request", value={"~/l": {"type": "std_srvs/Trigger"}}), "~/l is private to a node"),
    ],
)
def test_a_mistake_in_a_service_or_an_action_names_key_and_remedy(change: Any, says: str) -> None:
    with pytest.raises(Ros2BridgeError) as raised:
        linked(change)
    assert says in raised.value.what and raised.value.remedy, raised.value.what
