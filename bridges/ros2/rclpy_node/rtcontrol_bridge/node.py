"""The bridge as a ROS 2 node. UNTESTED: nobody has run it in a ROS 2 installation yet (docs/bridges.md).

It is the bridge of `rtcontrol bridge ros2`; only readers and writers are rclpy's, so that remapping, namespaces,
parameters and any rmw work as for every node.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import rclpy
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rosidl_runtime_py.utilities import get_message

from rtcontrol.bridges.client import ClientError
from rtcontrol.bridges.ros2 import config
from rtcontrol.bridges.ros2.bridge import Ros2Bridge, Ros2BridgeOptions
from rtcontrol.bridges.ros2.errors import Ros2BridgeError
from rtcontrol.bridges.ros2.mapper import Mapper, Topic
from rtcontrol.bridges.ros2.paths import fields
from rtcontrol.bridges.shutdown import Interrupted, Shutdown


class RclpyInput:
    """A subscription that keeps its newest message."""

    def __init__(self, node: Node, topic: Topic) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[Any, int] | None = None
        node.create_subscription(get_message(topic.type), topic.name, self._hear, _qos(topic, "best_effort"))

    def _hear(self, message: Any) -> None:
        with self._lock:
            self._newest = (message, time.monotonic_ns())

    def poll(self) -> tuple[Any, int] | None:
        with self._lock:
            newest, self._newest = self._newest, None
        return newest


class RclpyOutput:
    """A publisher of our message classes, copied field by field into ROS's."""

    def __init__(self, node: Node, topic: Topic) -> None:
        self._cls = get_message(topic.type)
        self.publisher = node.create_publisher(self._cls, topic.name, _qos(topic, "reliable"))
        self.failed = 0

    def write(self, message: Any) -> bool:
        theirs = self._cls()
        _copy(message, theirs)
        self.publisher.publish(theirs)
        return True


class RclpyNetwork:
    """The topics of a node, as Ros2Bridge uses them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._inputs: list[str] = []
        self._outputs: dict[str, RclpyOutput] = {}

    def input(self, topic: Topic) -> RclpyInput:
        self._inputs.append(topic.name)
        return RclpyInput(self._node, topic)

    def output(self, topic: Topic, promise_ms: float | None = None) -> RclpyOutput:
        # No deadline and no lease is offered here, whatever was promised.
        self._outputs[topic.name] = RclpyOutput(self._node, topic)
        return self._outputs[topic.name]

    def problems(self) -> dict[str, str]:
        found = {name: f"Nobody publishes {name}." for name in self._inputs if not self._node.count_publishers(name)}
        for name in self._outputs:
            if not self._node.count_subscribers(name):
                found[name] = f"Nobody subscribes to {name}."
        return found

    def flush(self, seconds: float) -> None:
        for output in self._outputs.values():
            output.publisher.wait_for_all_acked(Duration(seconds=seconds))


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
            package, short = kind.split("/")
            made = [get_message(f"{package}/msg/{short}")() for _ in value]
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
    threading.Thread(target=executor.spin, daemon=True).start()
    with Shutdown(lambda name: bridge.stop()):
        try:
            bridge.run()
        except Interrupted as interrupted:
            return interrupted.status
        finally:
            executor.shutdown()
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
