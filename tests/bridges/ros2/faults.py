"""The fault list of the ROS 2 bridge: `python -m tests.bridges.ros2.faults [--only WORD] [--json FILE]`.

Real server (Ray host, bundled model), real bridge, simulated robot over DDS; one fault after another. Times are on the
machine's monotonic clock: commands by the bridge's DDS time stamp, calls and observations as they pass a tap between
bridge and server. The exit status is 1 where a call was executed too old.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rtcontrol.bridges.client.check.stand import Stand
from rtcontrol.bridges.wire.messages import FunctionCall, Hello
from tests.bridges.client.worlds import free_port
from tests.bridges.faults import served
from tests.bridges.faults.table import Row, finish
from tests.bridges.faults.tap import Tap
from tests.bridges.ros2.rig import Rig

STORM_S = 5.0


def server_killed(rig: Rig) -> Row:
    """SIGKILL; started again after 2 s."""
    begin = time.monotonic()
    rig.server.kill()
    time.sleep(2)
    rig.server.start()
    back = time.monotonic()
    return rig.row("server killed -9, started again after 2 s", begin, back, back)


def server_stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s."""
    begin = time.monotonic()
    rig.server.signal(signal.SIGSTOP)
    time.sleep(2)
    back = time.monotonic()
    rig.server.signal(signal.SIGCONT)
    rig.until_moving(back)
    return rig.row("server SIGSTOP 2 s", begin, time.monotonic(), back)


def decoder_killed(rig: Rig) -> Row:
    """SIGKILL to the process that decides; the server starts another."""
    begin = served.kill_decoder(rig.server) / 1e9
    rig.until_moving(begin + 1)
    return rig.row("decoder's process killed -9", begin, time.monotonic(), begin)


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
    rig.until_moving(back)
    row = rig.row("bridge killed -9, started again after 2 s", begin, time.monotonic(), back)
    row.notes = [*quiet.notes, "that safe command is the new bridge's: before it the robot drives on"]
    _by_dds(rig, row, begin)
    return row


def bridge_stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s."""
    assert rig.bridge is not None
    begin = time.monotonic()
    rig.bridge.send_signal(signal.SIGSTOP)
    time.sleep(2)
    back = time.monotonic()
    rig.bridge.send_signal(signal.SIGCONT)
    rig.until_moving(back)
    row = rig.row("bridge SIGSTOP 2 s", begin, time.monotonic(), back)
    row.notes.append("meanwhile the robot drives on")
    _by_dds(rig, row, begin)
    return row


def bridge_stopped_often(rig: Rig) -> Row:
    """SIGSTOP for 300 ms, thirty times, with a time-to-live of 250 ms: wherever it is stopped, what it does next must
    not be of before."""
    rig.fly(250.0)
    assert rig.bridge is not None
    begin = time.monotonic()
    for _ in range(30):
        rig.bridge.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        rig.bridge.send_signal(signal.SIGCONT)
        back = time.monotonic()
        time.sleep(random.uniform(0.2, 0.4))
    rig.until_moving(back)
    return rig.row("bridge SIGSTOP 300 ms, thirty times", begin, time.monotonic(), begin + 0.3)


def robot_stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s to the robot: it neither publishes nor obeys."""
    begin = time.monotonic()
    rig.robot.send_signal(signal.SIGSTOP)
    time.sleep(2)
    back = time.monotonic()
    rig.robot.send_signal(signal.SIGCONT)
    rig.until_moving(back)
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
    row = _through(rig, "/odom and /scan at 2,000 Hz", STORM_S)
    row.notes.append(storm.communicate()[0].strip())
    return row


def strangers_storm(rig: Rig) -> Row:
    """Garbage and hellos at the server's socket."""
    storm = served.strangers(rig.server.endpoint, STORM_S + 1)
    time.sleep(1)
    row = _through(rig, "strangers flood the server's socket", STORM_S)
    row.notes.append(f"a second: {storm.communicate()[0].strip()}")
    return row


def calls_storm(rig: Rig) -> Row:
    """A server that sends fresh calls as fast as it can for 3 s, each another one, then falls silent."""
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    own, rig.tap = rig.tap, Tap(int(stand.endpoint.rpartition(":")[2]))
    try:
        rig.fly(400.0, rig.tap.endpoint)
        stand.expect(Hello, 20.0, "hello")
        stand.welcome()
        seen = stand.observation()
        process = rig.process()
        cpu, sent, began = sum(process.cpu_times()[:2]), 0, time.monotonic()
        while time.monotonic() < began + 3:
            stand.call(seen, call=FunctionCall(name="steer", arguments={"turn": ("left", "right")[sent % 2]}))
            sent += 1
            if sent % 25 == 0:
                stand.pump(0.001)
            seen = next((m for m in reversed(stand.heard) if m.type == "observe"), seen)
            del stand.heard[:-20]
        cpu, silent = sum(process.cpu_times()[:2]) - cpu, time.monotonic()
        told = _published(rig, began, silent)
        stand.pump(2)
        row = rig.row("a server that floods calls 3 s, then is silent", silent, time.monotonic(), None)
        row.notes.append(
            f"{sent / 3:.0f} calls/s, {told / 3:.0f} commands/s to the robot, bridge {cpu / 3:.0%} of a core"
        )
        return row
    finally:
        rig.tap.close()
        rig.tap = own
        rig.land()
        stand.close()


def sensor_silent(rig: Rig) -> Row:
    """/scan is not published for 3 s."""
    begin = time.monotonic()
    rig.tell("mute /scan")
    time.sleep(3)
    back = time.monotonic()
    rig.tell("unmute /scan")
    rig.until_moving(back)
    row = rig.row("/scan silent for 3 s", begin, time.monotonic(), back)
    row.notes.append("its max_age_ms is 500")
    return row


def poisoned(number: str) -> Callable[[Rig], Row]:
    """The odometry has such a number for 3 s."""

    def fault(rig: Rig) -> Row:
        begin = time.monotonic()
        rig.tell(f"poison {number}")
        time.sleep(3)
        back = time.monotonic()
        rig.tell("poison off")
        rig.until_moving(back)
        what = "a name that is no UTF-8" if number == "utf8" else number
        return rig.row(f"/odom has {what} for 3 s", begin, time.monotonic(), back)

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


def link_stalled(rig: Rig) -> Row:
    """300 ms without a byte between bridge and server, five times, with a time-to-live of 250 ms."""
    rig.fly(250.0)
    begin = time.monotonic()
    for _ in range(5):
        rig.tap.stall(0.3)
        time.sleep(0.8)
    back = time.monotonic()
    rig.until_moving(back)
    row = rig.row("link stalls 300 ms, five times", begin, time.monotonic(), begin + 0.3)
    row.notes.append(f"{row.expired} calls refused as too old")
    return row


def _through(rig: Rig, fault: str, seconds: float) -> Row:
    """A fault through which the bridge must drive on."""
    process = rig.process()
    begin, cpu, memory = time.monotonic(), sum(process.cpu_times()[:2]), process.memory_info().rss
    time.sleep(seconds)
    end = time.monotonic()
    cpu, memory = sum(process.cpu_times()[:2]) - cpu, process.memory_info().rss - memory
    row = rig.row(fault, begin, end, None)
    calls = rig.tap.calls(int(begin * 1e9), int(end * 1e9))
    fresh = sum(m.status == "fresh" for _, m in calls)
    row.notes.append(
        f"{fresh} of {len(calls)} ticks on time, bridge {cpu / seconds:.0%} of a core, {memory / 1e6:+.1f} MB"
    )
    return row


def _by_dds(rig: Rig, row: Row, begin: float) -> None:
    """Where the bridge itself is the fault, its subscribers find it."""
    missed = rig.since(begin)["missed"]
    if missed:
        row.found_ms, row.found = 1e3 * (missed[0] - begin), "a subscriber's DDS deadline of 200 ms"


def _published(rig: Rig, begin: float, end: float) -> int:
    return sum(begin <= t < end for t, _, _ in rig.since(begin)["commands"])


FAULTS: list[Callable[[Rig], Row]] = [
    server_stopped,
    decoder_killed,
    bridge_killed,
    bridge_stopped,
    bridge_stopped_often,
    robot_stopped,
    topics_storm,
    strangers_storm,
    calls_storm,
    sensor_silent,
    poisoned("nan"),
    poisoned("inf"),
    poisoned("utf8"),
    instruction_too_long,
    link_stalled,
    server_killed,
]


def run(folder: Path, model: str, host: str, only: str | None = None) -> list[Row]:
    """The rows of the faults whose description has the word."""
    chosen = [f for f in FAULTS if only is None or only in f"{getattr(f, '__name__', '')} {f.__doc__}"]
    rig, rows = Rig(folder, model, host), []
    try:
        for fault in chosen:
            if fault is decoder_killed and host != "ray":
                continue
            rig.fly()
            rows.append(fault(rig))
            print(rows[-1].cells(), file=sys.stderr, flush=True)
            rig.land()
    finally:
        rig.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="faults whose description has this word")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", default="", help="of the server (default: the bundled one)")
    parser.add_argument("--host", default="ray", choices=["ray", "inprocess"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = run(Path(folder), given.model, given.host, given.only)
    return finish(rows, given.json, model=given.model or "bundled", host=given.host)


if __name__ == "__main__":
    sys.exit(main())
