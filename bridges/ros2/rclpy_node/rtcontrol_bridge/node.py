"""The bridge as a ROS 2 node. UNTESTED: nobody has run it in a ROS 2 installation yet (docs/bridges.md).

The mapping, the client and the safe call are those of `rtcontrol bridge ros2`; only readers and writers are rclpy's, so
that remapping, namespaces, parameters, lifecycle tools and any rmw work as for every node.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rosidl_runtime_py.utilities import get_message

from rtcontrol.bridges.client import Client, Standing
from rtcontrol.bridges.ros2 import config
from rtcontrol.bridges.ros2.actuate import Actuator
from rtcontrol.bridges.ros2.errors import Unmappable
from rtcontrol.bridges.ros2.mapper import Mapper, Topic
from rtcontrol.bridges.ros2.observing import Observer
from rtcontrol.bridges.ros2.paths import fields


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
        self._publisher = node.create_publisher(self._cls, topic.name, _qos(topic, "reliable"))
        self.failed = 0

    def write(self, message: Any) -> bool:
        theirs = self._cls()
        _copy(message, theirs)
        self._publisher.publish(theirs)
        return True


def _copy(ours: Any, theirs: Any) -> None:
    for name in fields(type(ours)):
        value = getattr(ours, name)
        if fields(type(value)):
            _copy(value, getattr(theirs, name))
        elif isinstance(value, list) and value and fields(type(value[0])):
            # The class of the elements is known by the message's own table of slots.
            kind = theirs.get_fields_and_field_types()[name].removeprefix("sequence<").split(">")[0].split(",")[0]
            package, short = kind.split("/")
            made = [get_message(f"{package}/msg/{short}")() for _ in value]
            for one, other in zip(value, made, strict=True):
                _copy(one, other)
            setattr(theirs, name, made)
        else:
            setattr(theirs, name, value)


def _qos(topic: Topic, usual: str) -> QoSProfile:
    reliable = (topic.qos.reliability or usual) == "reliable"
    kept = topic.qos.durability == "transient_local"
    return QoSProfile(
        depth=topic.qos.depth,
        history=HistoryPolicy.KEEP_LAST,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
    )


class BridgeNode(Node):
    """Parameters: `config` (path of robot.yaml), `connect` (the server), `instruction`."""

    def __init__(self) -> None:
        super().__init__("rtcontrol_bridge")
        path = Path(self.declare_parameter("config", "").value)
        endpoint = self.declare_parameter("connect", "tcp://127.0.0.1:5555").value
        instruction = self.declare_parameter("instruction", "").value
        robot = config.load(path)
        mapper = Mapper(robot, str(path))
        self._observer = Observer(mapper, {s.topic.name: RclpyInput(self, s.topic) for s in mapper.sources})
        outputs = {topic.name: RclpyOutput(self, topic) for topic in mapper.topics}
        self._actuator = Actuator(mapper, outputs, robot.hz)
        self._client: Client | None = None  # on_call may come before connect returns
        self._client = Client.connect(
            endpoint,
            tools=mapper.tools(),
            instruction=instruction or robot.instruction,
            hz=robot.hz,
            safe_call={"name": robot.safe.name, "arguments": robot.safe.arguments},
            robot=robot.robot,
            name="rtcontrol_bridge",
            on_call=self._on_call,
        )
        self.create_timer(1.0 / robot.hz, self._tick)

    def _tick(self) -> None:
        look = self._observer.look()
        if look is not None and self._client is not None and self._client.error is None:
            self._client.observe(look.text, None if look.text is not None else look.data, t_ns=look.t_ns)
        # A refusal was told and counted when the call came.
        with contextlib.suppress(Unmappable):
            self._actuator.apply(self._standing)

    def _on_call(self, _: Standing) -> None:
        self._actuator.apply(self._standing)

    def _standing(self) -> Standing:
        return self._client.call() if self._client is not None else Standing(None, "safe", cause="no_session")

    def close(self) -> None:
        """The safe call, and goodbye."""
        self._actuator.close(Standing(None, "safe", cause="closed"))
        if self._client is not None:
            self._client.close()


def main() -> None:
    """`ros2 run rtcontrol_bridge bridge --ros-args -p config:=robot.yaml`."""
    rclpy.init()
    node = BridgeNode()
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.close()
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
