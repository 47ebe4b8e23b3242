"""The simulated robot of the ROS 2 tests: a node of a real ROS, in a room of 6 m by 6 m.

Run `python -m tests.bridges.ros2.robot [X]` with ROS's Python to start X metres in front of the room's middle. The
differential-drive robot obeys /cmd_vel without a watchdog, so that only the bridge stops it. It publishes /odom at 50
Hz, /scan and /battery_state at 10 Hz. Lines on stdin: `report` prints the robot's figures as JSON, `mute TOPIC` and
`unmute TOPIC`, `poison NUMBER` adds a number to the odometry's place, `instruct TEXT` publishes an instruction, `clock
START RATE` publishes /clock from now on, `rival TOPIC` adds a node that publishes it, `alone` removes this node. This
program imports nothing from rtcontrol.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from typing import Any

import rclpy
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import LivelinessPolicy, QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import BatteryState, LaserScan
from std_msgs.msg import String

DEADLINE_NS = 200_000_000
HALF, RADIUS, STEP_S, BEAMS = 3.0, 0.2, 0.02, 180


class Robot:
    """The robot's state, its topics, and the messages that it received."""

    def __init__(self, x: float) -> None:
        self.x, self.y, self.heading, self.v, self.w = x, 0.0, 0.0, 0.0, 0.0
        self.travelled, self.collisions, self.place = 0.0, 0, 0.0
        self.commands: list[tuple[float, float, float]] = []
        self.alive = 0  # number of live publishers, seen by a subscriber that watches their lease
        self.clock: tuple[float, float, float] | None = None
        self.rival: Node | None = None
        node = self.node = Node("robot")
        kinds = {"/odom": (Odometry, 10), "/scan": (LaserScan, qos_profile_sensor_data), "/clock": (Clock, 10)}
        kinds |= {"/battery_state": (BatteryState, 10), "/rtcontrol/instruction": (String, 10)}
        self.outputs = {topic: node.create_publisher(cls, topic, qos) for topic, (cls, qos) in kinds.items()}
        node.create_subscription(Twist, "/cmd_vel", self._obey, 10)

        watching = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        watching.deadline = Duration(nanoseconds=DEADLINE_NS)
        watching.liveliness = LivelinessPolicy.MANUAL_BY_TOPIC
        watching.liveliness_lease_duration = Duration(nanoseconds=2 * DEADLINE_NS)
        events = SubscriptionEventCallbacks(liveliness=self._note)
        node.create_subscription(Twist, "/cmd_vel", lambda _: None, watching, event_callbacks=events)

    def _note(self, event: Any) -> None:
        self.alive += event.alive_count_change

    def _obey(self, twist: Any) -> None:
        self.v, self.w = twist.linear.x, twist.angular.z
        self.commands.append((time.monotonic(), self.v, self.w))

    def step(self) -> None:
        self.heading += self.w * STEP_S
        x, y = self.x + self.v * STEP_S * math.cos(self.heading), self.y + self.v * STEP_S * math.sin(self.heading)
        if max(abs(x), abs(y)) > HALF - RADIUS:
            self.collisions += 1
            return
        self.travelled += math.hypot(x - self.x, y - self.y)
        self.x, self.y = x, y

    def odometry(self) -> Any:
        message = Odometry(child_frame_id="base_link")
        message.pose.pose.position.x, message.pose.pose.position.y = self.x + self.place, self.y
        message.pose.pose.orientation.z = math.sin(self.heading / 2)
        message.pose.pose.orientation.w = math.cos(self.heading / 2)
        message.twist.twist.linear.x, message.twist.twist.angular.z = self.v, self.w
        return message

    def scan(self) -> Any:
        first, step = -math.pi, math.tau / BEAMS
        ranges = [self._range(self.heading + first + i * step) for i in range(BEAMS)]
        shape = {"angle_min": first, "angle_max": math.pi, "angle_increment": step}
        return LaserScan(**shape, range_min=0.05, range_max=10.0, ranges=ranges)

    def _range(self, angle: float) -> float:
        dx, dy = math.cos(angle), math.sin(angle)
        along_x = (math.copysign(HALF, dx) - self.x) / dx if abs(dx) > 1e-9 else math.inf
        along_y = (math.copysign(HALF, dy) - self.y) / dy if abs(dy) > 1e-9 else math.inf
        return min(along_x, along_y)

    def tell_time(self) -> None:
        if self.clock is not None:
            start, rate, since = self.clock
            reported = Clock()
            reported.clock.sec, reported.clock.nanosec = divmod(
                int(1e9 * (start + rate * (time.monotonic() - since))), 10**9
            )
            self.outputs["/clock"].publish(reported)

    def report(self) -> dict[str, Any]:
        return {
            "travelled": self.travelled,
            "collisions": self.collisions,
            "commands": len(self.commands),
            "alive": self.alive,
            "moving": [self.v, self.w],
            "fastest": max((abs(v) for _, v, _ in self.commands), default=0.0),
            "turning": max((abs(w) for _, _, w in self.commands), default=0.0),
        }

    def do(self, verb: str, rest: str) -> None:
        if verb == "report":
            print(json.dumps(self.report()), flush=True)
        elif verb == "poison":
            self.place = float(rest)
        elif verb == "instruct":
            self.outputs["/rtcontrol/instruction"].publish(String(data=rest))
        elif verb == "rival":
            self.rival = Node("teleop")
            self.rival.create_publisher(Twist if rest == "/cmd_vel" else LaserScan, rest, 10)
        elif verb == "alone" and self.rival is not None:
            self.rival.destroy_node()
        elif verb == "clock":
            start, rate = map(float, rest.split())
            self.clock = start, rate, time.monotonic()


def main() -> None:
    rclpy.init()
    robot, muted = Robot(*map(float, sys.argv[1:2] or ["0"])), set[str]()
    executor = SingleThreadedExecutor()
    executor.add_node(robot.node)
    lines: list[str] = []
    ended = threading.Event()

    def read() -> None:
        for line in sys.stdin:
            lines.append(line.strip())
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    print("ready", flush=True)
    k, due = 0, time.monotonic()
    while not ended.is_set():
        due += STEP_S
        while (left := due - time.monotonic()) > 0:
            executor.spin_once(timeout_sec=left)
        robot.step()
        robot.tell_time()
        said = {"/odom": robot.odometry}
        if k % 5 == 0:
            said |= {"/scan": robot.scan, "/battery_state": lambda: BatteryState(percentage=0.87)}
        for topic, message in said.items():
            if topic not in muted:
                robot.outputs[topic].publish(message())
        while lines:
            verb, _, rest = lines.pop(0).partition(" ")
            if verb in ("mute", "unmute"):
                (muted.add if verb == "mute" else muted.discard)(rest)
            else:
                robot.do(verb, rest)
        k += 1
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
