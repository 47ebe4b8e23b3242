"""The simulated robot of room.py in a process of its own, on DDS alone: `python -m tests.bridges.ros2.robot [X]`, X
metres in front of the room's middle.

A second subscriber of /cmd_vel asks DDS for a deadline of 200 ms: what it learns of the publisher is in `since`.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from cyclonedds.qos import Policy
from cyclonedds.qos import Qos as DdsQos
from cyclonedds.sub import DataReader

from rtcontrol_client.ros2.bus import Bus
from rtcontrol_client.ros2.config import Qos
from rtcontrol_client.ros2.dds import Input
from rtcontrol_client.ros2.definitions import Definitions
from rtcontrol_client.ros2.environment import domain
from rtcontrol_client.ros2.msgs import nav_msgs, sensor_msgs, std_msgs
from rtcontrol_client.ros2.parts import Topic
from tests.bridges.ros2 import room
from tests.bridges.ros2.room import DEADLINE_NS


def topic(name: str, kind: str, **qos: Any) -> Topic:
    full, cls, type_hash = Definitions({}, "").message(kind)
    return Topic(name, full, cls, type_hash, Qos(**qos))


def frozen(message: Any, wire: bytes) -> Any:
    """A message that goes out as these bytes."""
    message.serialize = lambda **_: wire
    return message


class Robot(room.Robot):
    def __init__(self, x: float = 0.0) -> None:
        classes = (nav_msgs.Odometry, sensor_msgs.LaserScan, sensor_msgs.BatteryState, std_msgs.String)
        super().__init__({cls.__name__: cls for cls in classes}, x)

    def odometry(self) -> Any:
        message = super().odometry()
        return frozen(message, message.serialize().replace(b"base_link", b"base\xfflink")) if self.garbles else message


class Watch:
    """What DDS tells a subscriber that asks for a deadline: when it was missed, when the publisher's lease ended."""

    def __init__(self, plain: Input) -> None:
        asked = DdsQos(Policy.Reliability.BestEffort, Policy.Deadline(DEADLINE_NS))
        self._reader = DataReader(plain.entity.participant, plain.entity.topic, asked)
        self.met: list[float] = []
        self.missed: list[float] = []
        self.dead: list[float] = []
        self._count, self._alive = 0, 0

    def look(self) -> None:
        now = time.monotonic()
        count = self._reader.get_requested_deadline_missed_status().total_count
        alive = self._reader.get_liveliness_changed_status().alive_count
        self.met += [now] if self._reader.take() else []
        self.missed += [now] if count > self._count else []
        self.dead += [now] if alive < self._alive else []
        self._count, self._alive = count, alive

    def since(self, begin: float) -> dict[str, Any]:
        times = {"met": self.met, "missed": self.missed, "dead": self.dead}
        return {what: [t for t in when if t >= begin] for what, when in times.items()}


class Dds:
    """room.Middleware over the bridge's own readers and writers."""

    def __init__(self) -> None:
        bus = self._bus = Bus(domain(os.environ))  # it lives as long as its readers
        # As lidar drivers do: sensor data.
        sensor = {"reliability": "best_effort", "depth": 5}
        topics = [
            topic("/odom", "nav_msgs/Odometry"),
            topic("/scan", "sensor_msgs/LaserScan", **sensor),
            topic("/battery_state", "sensor_msgs/BatteryState"),
            topic("/rtcontrol/instruction", "std_msgs/String", depth=10),
        ]
        self._outputs = {one.name: bus.output(one) for one in topics}
        self._command = bus.input(topic("/cmd_vel", "geometry_msgs/Twist", reliability="reliable", depth=10))
        self._diagnostics = bus.input(topic("/diagnostics", "diagnostic_msgs/DiagnosticArray"))
        self._watch, self._wall_s = Watch(self._command), time.time() - time.monotonic()

    def commands(self) -> list[tuple[float, Any]]:
        self._watch.look()
        taken = self._command.take()
        return [(twist.sample_info.source_timestamp / 1e9 - self._wall_s, twist) for twist in taken]

    def diagnosis(self) -> Any | None:
        told = self._diagnostics.poll()
        return None if told is None else told[0].status[0]

    def write(self, topic: str, message: Any) -> None:
        self._outputs[topic].write(message)

    def watched(self, begin: float) -> dict[str, list[float]]:
        return self._watch.since(begin)


if __name__ == "__main__":
    room.live(Robot(*map(float, sys.argv[1:2])), Dds())
