"""The fault list of the ROS 2 bridge: `python -m tests.bridges.ros2.faults [--only WORD] [--json FILE]`.

Real server (Ray host, bundled model), real bridge, simulated robot over DDS; one fault after another. Times are on the
machine's monotonic clock: commands by the bridge's DDS time stamp, calls and observations as they pass a tap between
bridge and server. The exit status is 1 where a call was executed too old.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bridges.faults import frame
from tests.bridges.faults.frame import STORM_S
from tests.bridges.faults.table import Row
from tests.bridges.ros2.rig import Rig


def bridge_killed(rig: Rig) -> Row:
    """SIGKILL; started again after 2 s."""
    assert rig.bridge is not None
    begin = time.monotonic()
    rig.bridge.kill()
    rig.bridge.wait()
    time.sleep(2)
    back = time.monotonic()
    quiet = rig.row("", begin, back, None)
    rig.start_bridge()
    rig.until_driven(back)
    row = rig.row("bridge killed -9, started again after 2 s", begin, time.monotonic(), back)
    row.notes = [*quiet.notes, "that safe command is the new bridge's: before it the robot drives on"]
    _by_dds(rig, row, begin)
    return row


def bridge_stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s to the bridge."""
    begin = time.monotonic()
    row = frame.stopped(rig)
    row.notes.append("meanwhile the robot drives on")
    _by_dds(rig, row, begin)
    return row


def robot_stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s to the robot: it neither publishes nor obeys."""
    begin = time.monotonic()
    rig.robot.send_signal(signal.SIGSTOP)
    time.sleep(2)
    back = time.monotonic()
    rig.robot.send_signal(signal.SIGCONT)
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
    storm = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=rig.environment)
    assert storm.stdout is not None
    storm.stdout.readline()
    row = frame.through(rig, "/odom and /scan at 2,000 Hz", STORM_S)
    row.notes.append(storm.communicate()[0].strip())
    return row


def calls_storm(rig: Rig) -> Row:
    """A server that sends fresh calls as fast as it can for 3 s, each another one, then falls silent."""
    return frame.calls_storm(rig, lambda begin, end: _published(rig, begin, end))


def sensor_silent(rig: Rig) -> Row:
    """/scan is not published for 3 s."""
    row = frame.ill(rig, "/scan silent for 3 s", "mute /scan", "unmute /scan")
    row.notes.append("its max_age_ms is 500")
    return row


def poisoned(number: str) -> Callable[[Rig], Row]:
    """The odometry has such a number for 3 s."""

    def fault(rig: Rig) -> Row:
        what = "a name that is no UTF-8" if number == "utf8" else number
        return frame.ill(rig, f"/odom has {what} for 3 s", f"poison {number}", "poison off")

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


FAULTS: list[Callable[[Rig], Row]] = [
    frame.server_stopped,
    frame.decoder_killed,
    bridge_killed,
    bridge_stopped,
    frame.stopped_often,
    robot_stopped,
    topics_storm,
    frame.strangers_storm,
    calls_storm,
    sensor_silent,
    poisoned("nan"),
    poisoned("inf"),
    poisoned("utf8"),
    instruction_too_long,
    frame.link_stalled,
    frame.server_killed,
]


def run(folder: Path, model: str, host: str, only: str | None = None) -> list[Row]:
    """The rows of the faults whose name or description has the word."""
    return frame.run(Rig(folder, model, host), FAULTS, host, only)


if __name__ == "__main__":
    sys.exit(frame.main(__doc__, run))
