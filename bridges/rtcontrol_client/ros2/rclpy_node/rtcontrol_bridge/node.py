"""The bridge as a ROS 2 node: run with rclpy of Jazzy and Kilted in the tests, never built by colcon (docs/bridges.md).

It is the bridge of `rtcontrol bridge ros2`; only readers and writers are rclpy's, so that remapping, namespaces,
parameters and any rmw work as for every node.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import Any

import rclpy
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions

from rtcontrol_client import ClientError
from rtcontrol_client.ros2 import config
from rtcontrol_client.ros2.bridge import Ros2Bridge, Ros2BridgeOptions
from rtcontrol_client.ros2.definitions import ServiceType
from rtcontrol_client.ros2.errors import Ros2BridgeError
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.ros2.parts import Topic
from rtcontrol_client.ros2.paths import fields
from rtcontrol_client.shutdown import Interrupted, Shutdown


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


class RclpyService:
    """A client whose answers are those of its own requests."""

    def __init__(self, node: Node, name: str, kind: ServiceType) -> None:
        self._cls, self._lock = _class(kind.form), threading.Lock()
        self._client = node.create_client(self._cls, name)
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
        name = self._client.service_name.partition("/_action/")[0]
        return None if self.ready() else f"Nobody serves {name}. Start its node, or correct the name."


class RclpyNetwork:
    """The topics of a node, as Ros2Bridge uses them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._inputs: dict[str, RclpyInput] = {}
        self._outputs: dict[str, RclpyOutput] = {}

    def input(self, topic: Topic) -> RclpyInput:
        self._inputs[topic.name] = RclpyInput(self._node, topic)
        return self._inputs[topic.name]

    def output(self, topic: Topic, promise_ms: float | None = None) -> RclpyOutput:
        # No deadline and no lease is offered here, whatever was promised.
        self._outputs[topic.name] = RclpyOutput(self._node, topic)
        return self._outputs[topic.name]

    def listen(self, topic: Topic) -> RclpyInput:
        return RclpyInput(self._node, topic)

    def service(self, name: str, kind: ServiceType, relative: bool, listens: bool = True) -> RclpyService:
        return RclpyService(self._node, name.removeprefix("/") if relative else name, kind)

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
    (empty: the file's), `keys` (this client's .key_secret, for a server with keys)."""
    given = {
        name: node.declare_parameter(name, default).value
        for name, default in (
            ("config", ""),
            ("connect", Ros2BridgeOptions.endpoint),
            ("instruction", ""),
            ("keys", ""),
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
    bridge = Ros2Bridge(mapper, RclpyNetwork(node), options)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    # A thread in rclpy's C++ when the interpreter ends aborts the process: it is waited for.
    spinning = threading.Thread(target=executor.spin, daemon=True)
    spinning.start()
    with Shutdown(lambda name: bridge.stop()):
        try:
            bridge.run()
        except Interrupted as interrupted:
            return interrupted.status
        finally:
            executor.shutdown()
            spinning.join()
    return 0


def main() -> int:
    """`ros2 run rtcontrol_bridge bridge --ros-args -p config:=robot.yaml`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # rclpy's own handlers would close the publishers before the safe call.
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = Node("rtcontrol_bridge")
    try:
        return run(node)
    except (Ros2BridgeError, ClientError) as error:
        node.get_logger().fatal(f"{error.what} {error.remedy}")
        return 2
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    raise SystemExit(main())
