"""The bridge as a ROS 2 node: run with rclpy of Jazzy and Kilted in the tests, never built by colcon (docs/bridges.md).

It is the bridge of `rtcontrol bridge ros2`; only readers and writers are rclpy's, so that remapping, namespaces,
parameters and any rmw work as for every node. With `--guard` it is the guard (rtcontrol_client.ros2.guard) that the
node starts beside itself: a node of the same middleware, with the same names.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import rclpy
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args

from rtcontrol_client import ClientError
from rtcontrol_client.ros2 import config
from rtcontrol_client.ros2.bridge import Ros2Bridge, Ros2BridgeOptions
from rtcontrol_client.ros2.definitions import ServiceType
from rtcontrol_client.ros2.errors import Ros2BridgeError
from rtcontrol_client.ros2.guard import Guard, guard
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.ros2.parts import Topic
from rtcontrol_client.ros2.paths import fields
from rtcontrol_client.shutdown import Interrupted, Shutdown

GUARD = "--guard"


class RclpyInput:
    """A subscription that keeps its newest messages."""

    def __init__(self, node: Node, topic: Topic) -> None:
        self._lock = threading.Lock()
        self._newest: deque[tuple[Any, int]] = deque(maxlen=topic.qos.depth)
        made = node.create_subscription(_class(topic.type), _name(topic), self._hear, _qos(topic, "best_effort"))
        self.resolved = made.topic_name

    def _hear(self, message: Any) -> None:
        with self._lock:
            self._newest.append((message, time.monotonic_ns()))

    def poll(self) -> tuple[Any, int] | None:
        with self._lock:
            newest = self._newest[-1] if self._newest else None
            self._newest.clear()
        return newest

    def take(self) -> list[Any]:
        with self._lock:
            taken = [message for message, _ in self._newest]
            self._newest.clear()
        return taken


class RclpyOutput:
    """A publisher of our message classes, copied field by field into ROS's."""

    def __init__(self, node: Node, topic: Topic) -> None:
        self._cls = _class(topic.type)
        self.publisher = node.create_publisher(self._cls, _name(topic), _qos(topic, "reliable"))
        self.failed = 0

    def write(self, message: Any) -> bool:
        theirs = self._cls()
        _copy(message, theirs)
        self.publisher.publish(theirs)
        return True

    def readers(self) -> int:
        return int(self.publisher.get_subscription_count())


class RclpyService:
    """A client whose answers are those of its own requests."""

    def __init__(self, node: Node, name: str, kind: ServiceType) -> None:
        self._cls, self._lock = _class(kind.form), threading.Lock()
        self._client = node.create_client(self._cls, name)
        self.resolved = self._client.service_name
        self._answers: list[Any] = []
        self._last: Any = None

    def ready(self) -> bool:
        return bool(self._client.service_is_ready())

    def exact(self) -> bool:
        return True

    def send(self, request: Any) -> bool:
        theirs = self._cls.Request()
        _copy(request, theirs)
        self._last = future = self._client.call_async(theirs)
        future.add_done_callback(self._hear)
        return True

    def _hear(self, future: Any) -> None:
        # Another request was sent meanwhile: the answer is of no interest.
        with self._lock:
            if future is self._last and future.result() is not None:
                self._answers.append(future.result())

    def answers(self) -> list[Any]:
        with self._lock:
            found, self._answers = self._answers, []
        return found

    def trouble(self) -> str | None:
        name = self.resolved.partition("/_action/")[0]
        return None if self.ready() else f"Nobody serves {name}. Start its node, or correct the name."


class RclpyNetwork:
    """The topics of a node, as Ros2Bridge uses them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._inputs: dict[str, RclpyInput] = {}
        self._outputs: dict[str, RclpyOutput] = {}
        self.resolved: dict[str, str] = {}  # a name that was asked for -> its name in the graph

    def input(self, topic: Topic) -> RclpyInput:
        self._inputs[topic.name] = self.listen(topic)
        return self._inputs[topic.name]

    def output(self, topic: Topic, promise_ms: float | None = None, lease: bool = True) -> RclpyOutput:
        # No deadline and no lease is offered here, whatever was promised.
        made = self._outputs[topic.name] = RclpyOutput(self._node, topic)
        self.resolved[_name(topic)] = made.publisher.topic_name
        return made

    def listen(self, topic: Topic) -> RclpyInput:
        made = RclpyInput(self._node, topic)
        self.resolved[_name(topic)] = made.resolved
        return made

    def service(self, name: str, kind: ServiceType, relative: bool, listens: bool = True) -> RclpyService:
        asked = name.removeprefix("/") if relative else name
        made = RclpyService(self._node, asked, kind)
        self.resolved[asked] = made.resolved
        return made

    def problems(self) -> dict[str, str]:
        # Counted by their names in the graph: a namespace or a remapping changes them.
        found = {
            name: f"Nobody publishes {one.resolved}."
            for name, one in self._inputs.items()
            if not self._node.count_publishers(one.resolved)
        }
        for name, output in self._outputs.items():
            resolved = output.publisher.topic_name
            if not self._node.count_subscribers(resolved):
                found[name] = f"Nobody subscribes to {resolved}."
        return found

    def flush(self, seconds: float) -> None:
        for output in self._outputs.values():
            output.publisher.wait_for_all_acked(Duration(seconds=seconds))


def _name(topic: Topic) -> str:
    """As the file has it: a node's namespace goes before a name without a /."""
    return topic.name.removeprefix("/") if topic.relative else topic.name


def _class(name: str) -> Any:
    """The class of `package/msg/Name`, or of a service, or of a part of an action. Raises Ros2BridgeError where ROS
    does not have it."""
    package, form, short = name.split("/")
    whole, _, part = short.rpartition("_")
    try:
        if form != "action":
            return getattr(import_module(f"{package}.{form}"), short)
        parts = getattr(import_module(f"{package}.action"), whole).Impl
        return getattr(parts, part if part == "FeedbackMessage" else f"{part}Service")
    except (ImportError, AttributeError) as error:
        raise Ros2BridgeError(f"This ROS has no {name} ({error}).", f"Install the package {package}.") from None


def _copy(ours: Any, theirs: Any) -> None:
    kinds = theirs.get_fields_and_field_types()
    for name in fields(type(ours)):
        value = getattr(ours, name)
        if name not in kinds:
            continue  # std_msgs/Empty has a byte in DDS, and none in rclpy
        if fields(type(value)):
            _copy(value, getattr(theirs, name))
        elif isinstance(value, list) and value and fields(type(value[0])):
            kind = kinds[name].removeprefix("sequence<").split(">")[0].split("[")[0].split(",")[0]
            made = [_class(kind.replace("/", "/msg/"))() for _ in value]
            for one, other in zip(value, made, strict=True):
                _copy(one, other)
            setattr(theirs, name, made)
        else:
            setattr(theirs, name, bytes([value]) if kinds[name] == "octet" else value)


def _qos(topic: Topic, usual: str) -> QoSProfile:
    reliable = (topic.qos.reliability or usual) == "reliable"
    kept = topic.qos.durability == "transient_local"
    return QoSProfile(
        depth=topic.qos.depth,
        history=HistoryPolicy.KEEP_LAST,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
    )


def run(node: Node) -> int:
    """Until a signal; the exit status. Parameters: `config` (path of robot.yaml), `connect` (the server), `instruction`
    (empty: the file's), `keys` (this client's .key_secret, for a server with keys), `guard` (false: no process beside
    it that stops the robot where the node is killed)."""
    given = {
        name: node.declare_parameter(name, default).value
        for name, default in (
            ("config", ""),
            ("connect", Ros2BridgeOptions.endpoint),
            ("instruction", ""),
            ("keys", ""),
            ("guard", True),
        )
    }
    if not given["config"]:
        raise Ros2BridgeError("The parameter config is missing.", "Give it: --ros-args -p config:=/path/robot.yaml")
    robot = config.load(Path(given["config"]))
    if node.get_parameter("use_sim_time").value:
        robot = robot.model_copy(update={"use_sim_time": True})
    mapper = Mapper(robot, given["config"])
    for warning in mapper.warnings():
        node.get_logger().warning(warning)
    options = Ros2BridgeOptions(
        endpoint=given["connect"],
        hz=robot.hz,
        instruction=given["instruction"] or None,
        client={"keys": given["keys"]} if given["keys"] else {},
    )
    network = RclpyNetwork(node)
    bridge = Ros2Bridge(mapper, network, options)
    with _spinning(node), Shutdown(lambda name: bridge.stop()):
        if given["guard"]:
            program = ("-P", str(Path(__file__).resolve()), GUARD)
            bridge.protect(Guard(robot, robot.hz, bridge.promise_ms, program, _ros_arguments(node, network.resolved)))
        try:
            bridge.run()
        except Interrupted as interrupted:
            return interrupted.status
    return 0


@contextmanager
def _spinning(node: Node) -> Iterator[None]:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    # A thread in rclpy's C++ when the interpreter ends aborts the process: it is waited for.
    spinning = threading.Thread(target=executor.spin, daemon=True)
    spinning.start()
    try:
        yield
    finally:
        executor.shutdown()
        spinning.join()


def _ros_arguments(node: Node, resolved: dict[str, str]) -> list[str]:
    """Those of the guard, whose node has another name: what is resolved by this one's (`-r pilot:/cmd_vel:=/base`) is
    written out. The first rule for a name holds; what this process was given besides comes behind."""
    rules = {"__node": f"{node.get_name()}_guard", "__ns": node.get_namespace(), **resolved}
    given = takewhile(lambda one: one != "--", dropwhile(lambda one: one != "--ros-args", sys.argv))
    return ["--ros-args", *(word for name, to in rules.items() for word in ("-r", f"{name}:={to}")), *given]


def main() -> int:
    """`ros2 run rtcontrol_bridge bridge --ros-args -p config:=robot.yaml`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    given = remove_ros_args(sys.argv)[1:]
    guards = given[:1] == [GUARD]
    if guards:
        # Fast DDS's shared memory may be locked for ever by a process that was killed (eProsima/Fast-DDS#1144).
        os.environ.setdefault("FASTDDS_BUILTIN_TRANSPORTS", "UDPv4")
    # rclpy's own handlers would close the publishers before the safe call.
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = Node("rtcontrol_bridge", start_parameter_services=not guards)
    try:
        if not guards:
            return run(node)
        with _spinning(node):
            return guard(given[1:], lambda: RclpyNetwork(node))
    except (Ros2BridgeError, ClientError) as error:
        node.get_logger().fatal(f"{error.what} {error.remedy}")
        return 2
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    raise SystemExit(main())
