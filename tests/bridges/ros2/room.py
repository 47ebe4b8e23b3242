"""The simulated robot of the ROS 2 tests and its room of 6 m by 6 m, whatever middleware it is on.

A differential-drive robot that obeys /cmd_vel without a watchdog of its own, so that whoever stops it is the bridge.
It publishes /odom at 50 Hz and /scan and /battery_state at 10 Hz. Lines on stdin: `report` prints its figures as JSON,
`since T` what it was told since an instant of the monotonic clock in seconds, `mute TOPIC` and `unmute TOPIC` end and
resume a topic, `poison NUMBER` adds it (nan, inf) to the place in the odometry, `poison utf8` puts a name into it that
is none, `poison off` ends both, `instruct TEXT` publishes it. It imports nothing of rtcontrol.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

HALF = 3.0
RADIUS = 0.2
STEP_S = 0.02
DEADLINE_NS = 200_000_000
BEAMS = 180


class Middleware(Protocol):
    """What the robot hears and says through."""

    def commands(self) -> list[tuple[float, Any]]:
        """The twists since the last time, each with when it was sent by the monotonic clock in seconds."""
        ...

    def diagnosis(self) -> Any | None:
        """The newest DiagnosticStatus since the last time."""
        ...

    def write(self, topic: str, message: Any) -> None: ...

    def watched(self, begin: float) -> dict[str, list[float]]:
        """When who watches the commands' publisher heard it, when the commands' deadline was missed, and when their
        publisher's lease ended, since then."""
        ...


class Robot:
    """Its state, and what it was told."""

    def __init__(self, messages: Mapping[str, Any], x: float = 0.0) -> None:
        self._messages = messages  # classes by name
        self.x, self.y, self.heading = x, 0.0, 0.0
        self.v = self.w = 0.0
        self.travelled = 0.0
        self.collisions = 0
        self.commands: list[tuple[float, float, float]] = []
        self.published: deque[tuple[float, float, float]] = deque(maxlen=50_000)  # when, by the bridge's stamp
        self.told: deque[tuple[float, int, str]] = deque(maxlen=10_000)
        self._diagnosis: list[Any] | None = None
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

    def odometry(self) -> Any:
        message = self._messages["Odometry"](child_frame_id="base_link")
        message.pose.pose.position.x, message.pose.pose.position.y = self.x + self.place, self.y
        message.pose.pose.orientation.z = math.sin(self.heading / 2)
        message.pose.pose.orientation.w = math.cos(self.heading / 2)
        message.twist.twist.linear.x, message.twist.twist.angular.z = self.v, self.w
        return message

    def scan(self) -> Any:
        first, step = -math.pi, math.tau / BEAMS
        ranges = [self._range(self.heading + first + i * step) for i in range(BEAMS)]
        return self._messages["LaserScan"](
            angle_min=first, angle_max=math.pi, angle_increment=step, range_min=0.05, range_max=10.0, ranges=ranges
        )

    def battery(self) -> Any:
        return self._messages["BatteryState"](percentage=0.87)

    def words(self, text: str) -> Any:
        return self._messages["String"](data=text)

    def _range(self, angle: float) -> float:
        dx, dy = math.cos(angle), math.sin(angle)
        along_x = (math.copysign(HALF, dx) - self.x) / dx if abs(dx) > 1e-9 else math.inf
        along_y = (math.copysign(HALF, dy) - self.y) / dy if abs(dy) > 1e-9 else math.inf
        return min(along_x, along_y)

    def hear(self, net: Middleware) -> None:
        for sent_s, twist in net.commands():
            self.v, self.w = twist.linear.x, twist.angular.z
            self.commands.append((time.monotonic(), self.v, self.w))
            self.published.append((sent_s, self.v, self.w))
        if (told := net.diagnosis()) is not None:
            level = int.from_bytes(told.level, "little") if isinstance(told.level, bytes) else told.level
            self._diagnosis = [level, told.message, {v.key: v.value for v in told.values}]
            self.told.append((time.monotonic(), level, told.message))

    def report(self) -> dict[str, Any]:
        return {
            "travelled": self.travelled,
            "collisions": self.collisions,
            "commands": len(self.commands),
            "moving": [self.v, self.w],
            "fastest": max((abs(v) for _, v, _ in self.commands), default=0.0),
            "turning": max((abs(w) for _, _, w in self.commands), default=0.0),
            "diagnostics": self._diagnosis,
        }

    def since(self, begin: float) -> dict[str, Any]:
        return {
            "commands": [entry for entry in self.published if entry[0] >= begin],
            "told": [entry for entry in self.told if entry[0] >= begin],
        }


def live(robot: Robot, net: Middleware) -> None:
    """Until stdin ends."""
    muted = set[str]()
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
        robot.hear(net)
        robot.step()
        said = {"/odom": robot.odometry}
        if k % 5 == 0:
            said |= {"/scan": robot.scan, "/battery_state": robot.battery}
        for topic, message in said.items():
            if topic not in muted:
                net.write(topic, message())
        while lines:
            verb, _, rest = lines.pop(0).partition(" ")
            if verb == "report":
                print(json.dumps(robot.report()), flush=True)
            elif verb == "since":
                begin = float(rest)
                print(json.dumps(robot.since(begin) | net.watched(begin)), flush=True)
            elif verb == "poison":
                robot.place, robot.garbles = float(rest) if rest in ("nan", "inf") else 0.0, rest == "utf8"
            elif verb == "instruct":
                net.write("/rtcontrol/instruction", robot.words(rest))
            else:
                (muted.add if verb == "mute" else muted.discard)(rest)
        k += 1
        ended.wait(max(0.0, began + k * STEP_S - time.monotonic()))
