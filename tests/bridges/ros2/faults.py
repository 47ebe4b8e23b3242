"""The ROS 2 bridge and a simulated robot over DDS, on their rig.

Commands have the bridge's DDS time stamp; calls and observations are timed as they pass the tap.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import yaml

from rtcontrol_client.ros2 import EXAMPLE
from tests.bridges.rig import base
from tests.bridges.rig import faults as general
from tests.bridges.rig.base import Row, stall
from tests.bridges.rig.faults import STORM_S
from tests.bridges.rig.tap import too_old
from tests.bridges.ros2.conftest import SimulatedRobot
from tests.helpers.processes import Program, environment
from tests.helpers.ros_domain import own_domain

Command = tuple[float, float, float]  # when it was published, m/s, rad/s


def config(ttl_ms: float) -> dict[str, Any]:
    """The example's robot with tools that the bundled model uses without having been trained on them: it always steers,
    so that a standing robot is one that was stopped."""
    found: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    twist: dict[str, Any] = {"type": "geometry_msgs/msg/Twist"}
    turns = {"left": 0.8, "straight": 0.1, "right": -0.8}
    steer = {"linear.x": 0.2, "angular.z": {"from": "turn", "values": turns}}
    found["tools"] = {
        "steer": {
            "description": "Turn.",
            "parameters": {"turn": {"type": "string", "enum": list(turns)}},
            "publish": {"/cmd_vel": {**twist, "set": steer}},
        },
        "shut_down": {"description": "Turn the motors off.", "publish": {"/cmd_vel": twist}},
    }
    found["instruction"], found["safe"] = "Drive forward.", "shut_down"
    found["session"], found["diagnostics"] = {"ttl_ms": ttl_ms}, {"hz": 10}
    return found


class Rig(base.Rig):
    what = "bridge"

    def open(self) -> None:
        super().open()
        self.environment = own_domain()
        self.bridge: Program | None = None
        self.robot = SimulatedRobot(self.environment, self.folder / "robot.log", "0")

    def tell(self, line: str) -> None:
        self.robot.tell(line)

    def since(self, begin: float) -> dict[str, Any]:
        """What the robot was told since then."""
        return self.robot.since(begin)

    def start(self) -> None:
        path = self.folder / f"robot-{self.ttl_ms:g}.yaml"
        path.write_text(EXAMPLE.read_text() if self.measured else yaml.safe_dump(config(self.ttl_ms)))
        arguments = ["--config", str(path), "--connect", self.endpoint, "--report", str(self.folder / "report.json")]
        command = ["-m", "rtcontrol_client.ros2", *arguments, "--connect-timeout", "60"]
        self.bridge = Program(command, self.folder / f"bridge-{time.monotonic_ns()}.log", env=self.environment)

    def land(self) -> None:
        if self.bridge is not None and self.bridge.popen.poll() is None:
            self.bridge.end()
            self.figures = {"bridge": json.loads((self.folder / "report.json").read_text())}

    def driven(self, since: float) -> float | None:
        calls = self.tap.calls(int(since * 1e9))
        fresh = [(t, m) for t, m in calls if m.status == "fresh" and (m.t_obs_ns or 0) > since * 1e9]
        # A model that was not trained on these tools may call for standing where a guard has stopped the robot.
        stands = bool(fresh) and fresh[0][1].call is not None and fresh[0][1].call.name == "shut_down"
        commands = self.since(since)["commands"]
        moved = [t for t, v, w in commands if (v or w or stands) and fresh and t >= fresh[0][0] / 1e9]
        return moved[0] if moved else None

    def process(self) -> psutil.Process:
        assert self.bridge is not None
        return psutil.Process(self.bridge.popen.pid)

    def close(self) -> None:
        self.robot.kill()
        super().close()

    # Reading off.

    def row(self, fault: str, begin: float, end: float, mended: float | None) -> Row:
        heard = self.since(begin - 1)
        commands = [(t, v, w) for t, v, w in heard["commands"] if t < end]
        row = Row(
            fault, self.ttl_ms, too_old=too_old((round(t * 1e9) for t, v, w in commands if v or w), self.tap.calls())
        )
        row.expired = self.expired(begin)
        self._found(row, heard["told"], begin, end)
        safe = self._safe(row, commands, begin)
        if mended is not None:
            row.recovered_ms = 1e3 * (self.until_driven(max(mended, safe or mended)) - mended)
        row.notes += [
            f"the lease of its commands ended at {1e3 * (t - begin):.0f}" for t in heard["dead"][:1] if t > begin
        ]
        return row

    def _found(self, row: Row, told: list[Any], begin: float, end: float) -> None:
        before = [_kind(text) for t, _, text in told if t < begin][-1:]
        signs = [
            (t, f"/diagnostics: {text}")
            for t, level, text in told
            if t >= begin and level and "on time" not in text and _kind(text) not in before
        ]
        signs += self.missed(begin, end)
        if signs:
            first, row.found = min(signs)
            row.found_ms = 1e3 * (first - begin)

    def _safe(self, row: Row, commands: list[Command], begin: float) -> float | None:
        """When the robot was told to stand; the row has what was before."""
        # One that stood already, on a machine that starved the server, was not stopped by the fault.
        drove = next((v or w for t, v, w in reversed(commands) if t < begin), False)
        stop = next((t for t, v, w in commands if t >= begin and not (v or w)), None)
        if not drove:
            row.notes.append("the safe call was in force before")
        moving = [c for c in commands if (c[1] or c[2]) and (stop is None or c[0] < stop)]
        if moving:
            row.last = f"steer {moving[-1][2]:+.1f} rad/s"
            row.last_ms = 1e3 * (moving[-1][0] - begin)
        if stop is not None:
            row.safe_ms = 1e3 * (stop - begin)
            fresh = [m.t_obs_ns or 0 for t, m in self.tap.calls(0, int(stop * 1e9)) if m.status == "fresh"]
            row.age_ms = 1e3 * stop - max(fresh) / 1e6 if fresh else None
        return stop


def _kind(text: str) -> str:
    return "".join(c for c in text if not c.isdigit())


# The faults of this bridge.


def bridge_killed(rig: Rig) -> Row:
    """SIGKILL; started again after 2 s."""
    assert rig.bridge is not None
    begin = time.monotonic()
    rig.bridge.kill()
    time.sleep(2)
    back = time.monotonic()
    quiet = rig.row("", begin, back, None)
    rig.start()
    rig.until_driven(back)
    row = rig.row("bridge killed -9, started again after 2 s", begin, time.monotonic(), back)
    row.notes = [*quiet.notes, "that safe command is the guard's"]
    _by_dds(rig, row, begin)
    return row


def bridge_stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s to the bridge."""
    begin = time.monotonic()
    row = general.stopped(rig)
    row.notes.append("that safe command is the guard's")
    _by_dds(rig, row, begin)
    return row


def robot_stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s to the robot: it neither publishes nor obeys."""
    begin = time.monotonic()
    back = stall(psutil.Process(rig.robot.popen.pid), 2)
    rig.until_driven(back)
    row = rig.row("robot's process SIGSTOP 2 s", begin, time.monotonic(), back)
    # What it did not keep, nobody saw: of the commands of the two seconds the last are left.
    left = [(v, w) for t, v, w in rig.since(begin)["commands"] if t < back]
    row.notes = []  # its own clock stood still
    row.did = f"finds {len(left)} commands waiting, {left.count((0, 0))} of them safe"
    return row


def topics_storm(rig: Rig) -> Row:
    """/odom and /scan at 2,000 Hz each, by another process."""
    command = [sys.executable, "-m", "tests.bridges.ros2.storm", "2000", str(STORM_S)]
    storm = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(**rig.environment))
    assert storm.stdout is not None
    storm.stdout.readline()
    row = general.through(rig, "/odom and /scan at 2,000 Hz", STORM_S)
    row.notes.append(storm.communicate()[0].strip())
    return row


def calls_storm(rig: Rig) -> Row:
    """A server that sends fresh calls as fast as it can for 3 s, each another one, then falls silent."""
    return general.calls_storm(rig, lambda begin, end: _published(rig, begin, end))


def sensor_silent(rig: Rig) -> Row:
    """/scan is not published for 3 s."""
    row = general.ill(rig, "/scan silent for 3 s", "mute /scan", "unmute /scan")
    row.notes.append("its max_age_ms is 500")
    return row


def poisoned(number: str) -> Callable[[Rig], Row]:
    """The odometry has such a number for 3 s."""

    def fault(rig: Rig) -> Row:
        what = "a name that is no UTF-8" if number == "utf8" else number
        return general.ill(rig, f"/odom has {what} for 3 s", f"poison {number}", "poison off")

    fault.__doc__ = f"/odom with {number}."
    return fault


def instruction_too_long(rig: Rig) -> Row:
    """70,000 characters on the instruction's topic."""
    begin = time.monotonic()
    rig.tell("instruct " + "x" * 70_000)
    time.sleep(3)
    row = rig.row("70,000 characters on the instruction's topic", begin, time.monotonic(), None)
    row.notes.append("warned of, and not taken")
    return row


def _by_dds(rig: Rig, row: Row, begin: float) -> None:
    """Where the bridge itself is the fault, its subscribers find it."""
    missed = rig.since(begin)["missed"]
    if missed:
        row.found_ms, row.found = 1e3 * (missed[0] - begin), "a subscriber's DDS deadline of 200 ms"


def _published(rig: Rig, begin: float, end: float) -> int:
    return sum(begin <= t < end for t, _, _ in rig.since(begin)["commands"])


Rig.faults = [
    general.server_stopped, general.decoder_killed, bridge_killed, bridge_stopped, general.stopped_often, robot_stopped,
    topics_storm, general.strangers_storm, calls_storm, sensor_silent, poisoned("nan"), poisoned("inf"),
    poisoned("utf8"), instruction_too_long, general.link_stalled, general.server_killed,
]  # fmt: skip
