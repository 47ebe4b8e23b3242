"""The simulated robot of room.py as a node of a real ROS 2, run by that ROS's Python:
`python -m tests.bridges.ros2.rclpy_robot [X]`, X metres in front of the room's middle."""

from __future__ import annotations

import sys
import time
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import LivelinessPolicy, QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from sensor_msgs.msg import BatteryState, LaserScan
from std_msgs.msg import String

from tests.bridges.ros2 import room


class Rclpy:
    """room.Middleware as a node whose callbacks run in `commands`."""

    def __init__(self) -> None:
        node = self._node = Node("robot")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        kinds = {"/odom": (Odometry, 10), "/scan": (LaserScan, qos_profile_sensor_data)}
        kinds |= {"/battery_state": (BatteryState, 10), "/rtcontrol/instruction": (String, 10)}
        self._outputs = {topic: node.create_publisher(cls, topic, qos) for topic, (cls, qos) in kinds.items()}
        self._heard: list[tuple[float, Any]] = []
        self._told: list[Any] = []
        self._met: list[float] = []  # when the subscription that watches the publisher heard it
        self._missed: list[float] = []
        self._dead: list[float] = []
        self._wall_s = time.time() - time.monotonic()
        node.create_subscription(Twist, "/cmd_vel", self._hear, 10)
        node.create_subscription(DiagnosticArray, "/diagnostics", lambda m: self._told.append(m.status[0]), 10)
        asked = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        asked.deadline = Duration(nanoseconds=room.DEADLINE_NS)
        asked.liveliness = LivelinessPolicy.MANUAL_BY_TOPIC
        asked.liveliness_lease_duration = Duration(nanoseconds=2 * room.DEADLINE_NS)
        events = SubscriptionEventCallbacks(
            deadline=lambda _: self._missed.append(time.monotonic()),
            liveliness=lambda e: self._dead.extend([time.monotonic()] if e.alive_count_change < 0 else []),
        )
        node.create_subscription(Twist, "/cmd_vel", self._meet, asked, event_callbacks=events)

    def _hear(self, twist: Any, info: Any) -> None:
        self._heard.append((info["source_timestamp"] / 1e9 - self._wall_s, twist))

    def _meet(self, twist: Any) -> None:
        self._met.append(time.monotonic())

    def commands(self) -> list[tuple[float, Any]]:
        end = time.monotonic() + room.STEP_S / 2
        while time.monotonic() < end:
            self._executor.spin_once(timeout_sec=max(0.0, end - time.monotonic()))
        heard, self._heard = self._heard, []
        return heard

    def diagnosis(self) -> Any | None:
        told, self._told = self._told, []
        return told[-1] if told else None

    def write(self, topic: str, message: Any) -> None:
        self._outputs[topic].publish(message)

    def watched(self, begin: float) -> dict[str, list[float]]:
        times = {"met": self._met, "missed": self._missed, "dead": self._dead}
        return {what: [t for t in when if t >= begin] for what, when in times.items()}


if __name__ == "__main__":
    rclpy.init()
    classes = (Odometry, LaserScan, BatteryState, String)
    room.live(room.Robot({cls.__name__: cls for cls in classes}, *map(float, sys.argv[1:2])), Rclpy())
    rclpy.try_shutdown()
