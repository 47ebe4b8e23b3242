"""A simulated differential-drive robot in a room of 6 m by 6 m, in a process of its own, on DDS alone.

It publishes /odom at 50 Hz and /scan and /battery_state at 10 Hz and obeys /cmd_vel without a watchdog of its own, so
that whoever stops it is the bridge. Lines on stdin: `report` prints its figures as JSON, `since T` what it was told
since an instant of the monotonic clock in seconds, `mute TOPIC` and `unmute TOPIC` end and resume a topic, `poison
NUMBER` adds it (nan, inf) to the place in the odometry, `poison utf8` puts a name into it that is none, `poison off`
ends both. An argument: how far in front of the room's middle it starts, in metres.

A second subscriber asks DDS for a deadline of 200 ms: what it learns of the publisher is in `since`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections import deque
from typing import Any

from cyclonedds.qos import Policy
from cyclonedds.qos import Qos as DdsQos
from cyclonedds.sub import DataReader

from rtcontrol.bridges.ros2.bus import Bus
from rtcontrol.bridges.ros2.config import Qos
from rtcontrol.bridges.ros2.dds import Input
from rtcontrol.bridges.ros2.environment import domain
from rtcontrol.bridges.ros2.mapper import Topic
from rtcontrol.bridges.ros2.msgs import nav_msgs, sensor_msgs, std_msgs
from rtcontrol.bridges.ros2.paths import message_type

HALF = 3.0
RADIUS = 0.2
STEP_S = 0.02
DEADLINE_NS = 200_000_000
BEAMS = 180


def topic(name: str, kind: str, **qos: Any) -> Topic:
    full, cls, type_hash = message_type(kind)
    return Topic(name, full, cls, type_hash, Qos(**qos))


def frozen(message: Any, wire: bytes) -> Any:
    """A message that goes out as these bytes."""
    message.serialize = lambda **_: wire
    return message


class Robot:
    """Its state, and what it was told."""

    def __init__(self, x: float = 0.0) -> None:
        self.x, self.y, self.heading = x, 0.0, 0.0
        self.v = self.w = 0.0
        self.travelled = 0.0
        self.collisions = 0
        self.commands: list[tuple[float, float, float]] = []
        self.published: deque[tuple[float, float, float]] = deque(maxlen=50_000)  # when, by the bridge's stamp
        self.told: deque[tuple[float, int, str]] = deque(maxlen=10_000)
        self.diagnostics: Any = None
        self.place = 0.0  # what is added to the odometry
        self.garbles = False

    def step(self) -> None:
        self.heading += self.w * STEP_S
        x, y = self.x + self.v * STEP_S * math.cos(self.heading), self.y + self.v * STEP_S * math.sin(self.heading)
        if max(abs(x), abs(y)) > HALF - RADIUS:
            self.collisions += 1
            return
        self.travelled += math.hypot(x - self.x, y - self.y)
        self.x, self.y = x, y

    def odometry(self) -> nav_msgs.Odometry:
        message = nav_msgs.Odometry(child_frame_id="base_link")
        message.pose.pose.position.x, message.pose.pose.position.y = self.x + self.place, self.y
        message.pose.pose.orientation.z = math.sin(self.heading / 2)
        message.pose.pose.orientation.w = math.cos(self.heading / 2)
        message.twist.twist.linear.x, message.twist.twist.angular.z = self.v, self.w
        return frozen(message, message.serialize().replace(b"base_link", b"base\xfflink")) if self.garbles else message

    def scan(self) -> sensor_msgs.LaserScan:
        first, step = -math.pi, math.tau / BEAMS
        ranges = [self._range(self.heading + first + i * step) for i in range(BEAMS)]
        return sensor_msgs.LaserScan(
            angle_min=first, angle_max=math.pi, angle_increment=step, range_min=0.05, range_max=10.0, ranges=ranges
        )

    def _range(self, angle: float) -> float:
        dx, dy = math.cos(angle), math.sin(angle)
        along_x = (math.copysign(HALF, dx) - self.x) / dx if abs(dx) > 1e-9 else math.inf
        along_y = (math.copysign(HALF, dy) - self.y) / dy if abs(dy) > 1e-9 else math.inf
        return min(along_x, along_y)

    def report(self) -> dict[str, Any]:
        told = self.diagnostics
        return {
            "travelled": self.travelled,
            "collisions": self.collisions,
            "commands": len(self.commands),
            "moving": [self.v, self.w],
            "fastest": max((abs(v) for _, v, _ in self.commands), default=0.0),
            "turning": max((abs(w) for _, _, w in self.commands), default=0.0),
            "diagnostics": None if told is None else [told.level, told.message, {v.key: v.value for v in told.values}],
        }

    def since(self, begin: float) -> dict[str, Any]:
        return {
            "commands": [entry for entry in self.published if entry[0] >= begin],
            "told": [entry for entry in self.told if entry[0] >= begin],
        }


class Watch:
    """What DDS tells a subscriber that asks for a deadline: when it was missed, when the publisher's lease ended."""

    def __init__(self, plain: Input) -> None:
        asked = DdsQos(Policy.Reliability.BestEffort, Policy.Deadline(DEADLINE_NS))
        self._reader = DataReader(plain.entity.participant, plain.entity.topic, asked)
        self.missed: list[float] = []
        self.dead: list[float] = []
        self._count, self._alive = 0, 0

    def look(self) -> None:
        now = time.monotonic()
        count = self._reader.get_requested_deadline_missed_status().total_count
        alive = self._reader.get_liveliness_changed_status().alive_count
        self.missed += [now] if count > self._count else []
        self.dead += [now] if alive < self._alive else []
        self._count, self._alive = count, alive

    def since(self, begin: float) -> dict[str, Any]:
        return {"missed": [t for t in self.missed if t >= begin], "dead": [t for t in self.dead if t >= begin]}


def main() -> None:
    bus = Bus(domain(os.environ))
    odom = bus.output(topic("/odom", "nav_msgs/Odometry"))
    # As lidar drivers do: sensor data.
    scan = bus.output(topic("/scan", "sensor_msgs/LaserScan", reliability="best_effort", depth=5))
    battery = bus.output(topic("/battery_state", "sensor_msgs/BatteryState"))
    command = bus.input(topic("/cmd_vel", "geometry_msgs/Twist", reliability="reliable", depth=10))
    diagnostics = bus.input(topic("/diagnostics", "diagnostic_msgs/DiagnosticArray"))
    instruct = bus.output(topic("/rtcontrol/instruction", "std_msgs/String", depth=10))
    robot, muted, watch = Robot(*map(float, sys.argv[1:2])), set[str](), Watch(command)
    wall_s = time.time() - time.monotonic()
    lines: list[str] = []
    ended = threading.Event()

    def read() -> None:
        for line in sys.stdin:
            lines.append(line.strip())
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    print("ready", flush=True)
    k, began = 0, time.monotonic()
    while not ended.is_set():
        for twist in command.take():
            robot.v, robot.w = twist.linear.x, twist.angular.z
            robot.commands.append((time.monotonic(), robot.v, robot.w))
            robot.published.append((twist.sample_info.source_timestamp / 1e9 - wall_s, robot.v, robot.w))
        watch.look()
        if (told := diagnostics.poll()) is not None:
            robot.diagnostics = told[0].status[0]
            robot.told.append((time.monotonic(), robot.diagnostics.level, robot.diagnostics.message))
        robot.step()
        if "/odom" not in muted:
            odom.write(robot.odometry())
        if k % 5 == 0 and "/scan" not in muted:
            scan.write(robot.scan())
            battery.write(sensor_msgs.BatteryState(percentage=0.87))
        while lines:
            verb, _, rest = lines.pop(0).partition(" ")
            if verb == "report":
                print(json.dumps(robot.report()), flush=True)
            elif verb == "since":
                print(json.dumps(robot.since(float(rest)) | watch.since(float(rest))), flush=True)
            elif verb == "poison":
                robot.place, robot.garbles = float(rest) if rest in ("nan", "inf") else 0.0, rest == "utf8"
            elif verb == "instruct":
                instruct.write(std_msgs.String(data=rest))
            else:
                (muted.add if verb == "mute" else muted.discard)(rest)
        k += 1
        ended.wait(max(0.0, began + k * STEP_S - time.monotonic()))


if __name__ == "__main__":
    main()
