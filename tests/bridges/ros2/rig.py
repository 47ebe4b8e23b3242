"""The rig of the fault run: server, tap, bridge and simulated robot, and what is read off them."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.bridges.client.worlds import ROOT, free_port, until
from tests.bridges.faults import served
from tests.bridges.faults.table import Row
from tests.bridges.faults.tap import Tap, too_old

EXAMPLE = ROOT / "bridges" / "ros2" / "examples" / "robot.yaml"
TTL_MS = 500.0
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


class Rig:
    """One server for all faults (it takes long to start), a new bridge for each."""

    what = "bridge"

    def __init__(self, folder: Path, model: str, host: str) -> None:
        self.folder = folder
        port = free_port()
        self.server = served.server(folder, port, model, host)
        self.server.start()
        self.tap = Tap(port)
        domain = {"ROS_DOMAIN_ID": str(random.randint(101, 200)), "ROS_LOCALHOST_ONLY": "1"}
        self.environment = {**os.environ, **domain, "PYTHONPATH": str(ROOT)}
        self.robot = self._start("tests.bridges.ros2.robot")
        assert self.robot.stdout is not None
        self.robot.stdout.readline()
        self.bridge: subprocess.Popen[str] | None = None
        self._arguments: list[str] = []
        self.ttl_ms = TTL_MS

    def _start(self, *command: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        with (self.folder / f"{command[0]}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                text=True,
                env=self.environment,
                cwd=ROOT,
            )

    def tell(self, line: str) -> None:
        assert self.robot.stdin is not None
        self.robot.stdin.write(line + "\n")
        self.robot.stdin.flush()

    def since(self, begin: float) -> dict[str, Any]:
        """What the robot was told since then."""
        self.tell(f"since {begin}")
        assert self.robot.stdout is not None
        found: dict[str, Any] = json.loads(self.robot.stdout.readline())
        return found

    def fly(self, ttl_ms: float = TTL_MS, waits: bool = True) -> None:
        """A new bridge, and two seconds of driving."""
        self.land()
        path = self.folder / f"robot-{ttl_ms:g}.yaml"
        path.write_text(yaml.safe_dump(config(ttl_ms)))
        self.ttl_ms = ttl_ms
        self._arguments = ["--config", str(path), "--connect", self.tap.endpoint]
        self.start_bridge()
        if waits:
            self.until_driven(time.monotonic(), 30)
            time.sleep(2)

    def start_bridge(self) -> None:
        self.bridge = self._start("rtcontrol.bridges.ros2", *self._arguments, "--connect-timeout", "60")

    def land(self) -> None:
        """End the bridge as a user does."""
        if self.bridge is not None and self.bridge.poll() is None:
            self.bridge.send_signal(signal.SIGTERM)
            self.bridge.wait(20)

    def until_driven(self, begin: float, seconds: float = 90.0) -> float:
        """When the robot was told to move by a call that answers an observation made since."""

        def told() -> bool:
            time.sleep(0.05)
            return self._answered(begin) is not None

        until(told, "the robot does not go on", seconds)
        found = self._answered(begin)
        assert found is not None
        return found

    def _answered(self, begin: float) -> float | None:
        fresh = [
            t for t, m in self.tap.calls(int(begin * 1e9)) if m.status == "fresh" and (m.t_obs_ns or 0) > begin * 1e9
        ]
        moved = [t for t, v, w in self.since(begin)["commands"] if (v or w) and fresh and t >= fresh[0] / 1e9]
        return moved[0] if moved else None

    def process(self) -> psutil.Process:
        assert self.bridge is not None
        return psutil.Process(self.bridge.pid)

    def close(self) -> None:
        for one in (self.bridge, self.robot):
            if one is not None and one.poll() is None:
                one.kill()
                one.wait()
        self.tap.close()
        self.server.stop()

    # Reading off.

    def row(self, fault: str, begin: float, end: float, mended: float | None) -> Row:
        """The row of a fault between two instants; `mended`: what recovery is counted from (None: nothing recovers)."""
        heard = self.since(begin - 1)
        commands = [(t, v, w) for t, v, w in heard["commands"] if t < end]
        row = Row(
            fault, self.ttl_ms, too_old=too_old((round(t * 1e9) for t, v, w in commands if v or w), self.tap.calls())
        )
        row.expired = sum(o.outcome == "expired" for o in self.tap.outcomes(int(begin * 1e9)))
        self._found(row, heard["told"], begin, end)
        times = [t for t, _, _ in commands if t >= begin]
        row.gap_ms = max((1e3 * (b - a) for a, b in itertools.pairwise(times)), default=None)
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
        missed = [(t / 1e9, m) for t, m in self.tap.calls(int(begin * 1e9), int(end * 1e9)) if m.status != "fresh"]
        signs += [(t, f"the server: {m.status} ({m.cause})") for t, m in missed[:1]]
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
