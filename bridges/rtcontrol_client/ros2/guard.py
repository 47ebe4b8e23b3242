"""The guard, a process that publishes the safe call if the bridge is killed, or hangs until its call has expired.

Only the bridge starts this process (`python -m rtcontrol_client.ros2.guard`), as a node with the same topic names.

Before the bridge publishes a call, it sends the guard a heartbeat with the time at which the call expires; after the
safe call, it sends a heartbeat without a time. The guard publishes the safe call from the expiry until the next
heartbeat, and also if the pipe from the bridge is closed without the line `bye`. A robot needs about a second to
discover the guard's publishers, so the bridge publishes no driving call before.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import rtcontrol_client
from rtcontrol_client import Standing, clock
from rtcontrol_client.ros2 import Ros2BridgeError, split_ros_arguments
from rtcontrol_client.ros2.actuate import Ros2Actuator
from rtcontrol_client.ros2.config import RobotConfig
from rtcontrol_client.ros2.goals import action_clients
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.shutdown import SIGNALS, SUSPENDS, ignore_closed_terminal, write_without_blocking

GRACE_S = 0.02  # the guard waits this long after the expiry, so that a running bridge can publish the safe call itself
HOLD_S = 1.0  # publish for this time after the bridge's end, or after a later first subscriber
MOST_S = 5.0  # publish for this time after the bridge's end if no subscriber appears
END_S = 2.0
MEET_S = 4.0  # after this time the guard counts as ready, even without a subscriber or server
BYE, SAFE, READY = b"bye", b"-", b"+"
# With -P, files in the working folder cannot replace modules.
PROGRAM = ("-P", "-m", "rtcontrol_client.ros2.guard")


class Guard:
    """Starts the guard's process and sends it heartbeats. Any thread may send a heartbeat; this never blocks."""

    def __init__(self, config: RobotConfig, ros: Sequence[str] = ()) -> None:
        """Start the guard's process; `ros` are the ROS arguments of its node."""
        self._lock = threading.Lock()
        self._ready, ready = os.pipe()
        os.set_blocking(self._ready, False)
        # Pass the parsed config, because the file may have changed or may have been a pipe.
        text = os.memfd_create("robot.json")
        os.write(text, config.model_dump_json(by_alias=True, exclude_unset=True).encode())
        folders = (str(Path(rtcontrol_client.__file__).parents[1]), os.environ.get("PYTHONPATH"))
        # The process has its own session, so that the terminal's signals reach only the bridge.
        self._process = subprocess.Popen(
            [sys.executable, *PROGRAM, f"/proc/self/fd/{text}", str(ready), *ros],
            stdin=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
            pass_fds=[text, ready],
        )
        os.close(text)
        os.close(ready)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)
        self._is_ready = False

    @property
    def ready(self) -> bool:
        """Return whether calls may drive the robot: it has discovered the guard, or MEET_S has passed."""
        if not self._is_ready:
            with contextlib.suppress(BlockingIOError):
                self._is_ready = os.read(self._ready, 1) == READY
        return self._is_ready

    @property
    def ended(self) -> bool:
        """Return whether the guard's process has exited."""
        return self._process.poll() is not None

    def send_heartbeat(self, left_ms: float | None) -> None:
        """Send a heartbeat. `left_ms` is when the active call expires; None: no limit, or the safe call is active."""
        self._write_line(SAFE if left_ms is None else b"%d" % (clock.now_ns() + int(left_ms * 1e6)))

    def close(self) -> None:
        """End the guard's process without a safe call, because the bridge ends normally."""
        self._write_line(BYE)
        with self._lock:
            self._pipe.close()
            os.close(self._ready)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write_line(self, line: bytes) -> None:
        # If the pipe is full, it has unread heartbeats, so this heartbeat may be lost. `ended` detects a broken pipe.
        with self._lock, contextlib.suppress(OSError):
            if not self._pipe.closed:
                os.write(self._pipe.fileno(), line + b"\n")


class HeartbeatMonitor:
    """Decides from the heartbeats when the safe call is due. The caller passes `clock.now_s()`, in seconds."""

    def __init__(self) -> None:
        self.over = self._farewell = False
        self._expires_s: float | None = None  # when the active call expires (None: never)
        self._ended_s = 0.0
        self._met_s: float | None = None  # when the first subscriber of the safe call appeared
        self._partial_line = b""

    def receive(self, data: bytes, now: float) -> None:
        """Process bytes from the pipe; empty bytes mean that the pipe was closed. Lines that are not heartbeats are
        ignored."""
        if not data:  # every read of a closed pipe returns empty bytes
            self._ended_s = self._ended_s if self.over else now
            self.over = True
            return
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        self._partial_line = self._partial_line[-32:]
        for line in lines:
            if line == BYE:
                self._farewell = True
            elif line == SAFE:
                self._expires_s = None
            elif line.isdigit():
                self._expires_s = int(line) / 1e9

    def record_subscriber(self, now: float) -> None:
        """Record that the safe call has a subscriber."""
        self._met_s = now if self._met_s is None else self._met_s

    def is_due(self, now: float) -> bool:
        """Return whether the safe call must be published now."""
        if self.over:
            return not self.may_end(now)
        return self._expires_s is not None and now >= self._expires_s + GRACE_S

    def may_end(self, now: float) -> bool:
        """Return whether the guard may end."""
        if not self.over or self._farewell:
            return self.over
        holds = self._ended_s + MOST_S if self._met_s is None else max(self._ended_s, self._met_s) + HOLD_S
        return now >= min(holds, self._ended_s + MOST_S)

    def seconds_until_due(self, now: float, limit: float) -> float:
        """Return the seconds until the safe call may be due, at most `limit`."""
        if self._expires_s is None or self.over:
            return limit
        left = self._expires_s + GRACE_S - now
        return min(limit, left) if left > 0 else limit


def run_guard(given: Sequence[str], network: Callable[[], Any]) -> int:
    """Run the guard with these arguments until the bridge has ended; return the exit status."""
    ignore_closed_terminal()
    # Ignore the signals that a terminal sends to all its processes: the guard may end only with the pipe.
    for number in (*SIGNALS, SUSPENDS, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    file, ready = given
    try:
        mapper = Mapper(RobotConfig.model_validate_json(Path(file).read_bytes()), "the bridge's file")
        watch_bridge(mapper, network(), partial(_report_ready, int(ready)))
    except Ros2BridgeError as error:
        write_without_blocking(2, f"guard: {error.what} {error.remedy}\n".encode())
        return 2
    return 0


def _report_ready(file: int) -> None:
    with contextlib.suppress(OSError):  # the bridge has ended
        os.write(file, READY)


def watch_bridge(mapper: Mapper, bus: Any, ready: Callable[[], object]) -> None:
    """Publish the safe call whenever it is due. Call `ready` once, as soon as the robot can receive the safe call."""
    call, hz = mapper.config.safe, mapper.config.hz
    names = {publication.topic for publication in mapper.publications(call.name, call.arguments, 0)}
    actions = action_clients(mapper, bus, names, cancels_all=True)
    ends: dict[str, Any] = {
        name: bus.output(topic, mapper.max_interval_ms(name), lease=False)
        for name, topic in mapper.topics.items()
        if name in names
    }
    ends |= {name: bus.service(name, cls) for name, cls in mapper.services.items() if name in names}
    ends |= actions
    actuator, watch, reason = Ros2Actuator(mapper, ends, hz, bus.stamp_ns), HeartbeatMonitor(), ""
    safe, period_s = Standing(None, "safe", cause="guard"), 0.5 / max(hz, 1.0)
    started_s, waits_for_robot = clock.now_s(), True
    while not watch.may_end(clock.now_s()):
        _read_heartbeats(watch, period_s)
        for action in actions.values():
            action.advance()
        met = [bool(end.readers()) for end in ends.values()]
        if any(met):
            watch.record_subscriber(clock.now_s())
        if waits_for_robot and (all(met) or clock.now_s() > started_s + MEET_S):
            waits_for_robot = False
            ready()
        if not watch.is_due(clock.now_s()):
            reason = ""
            continue
        if not reason:
            actuator.publish_again()  # publish everything, including messages without `repeat`
        actuator.apply(lambda: safe)
        previous_reason, reason = reason, "was killed" if watch.over else "hangs"
        if reason != previous_reason:
            write_without_blocking(2, f"guard: the bridge {reason}: the safe call is published\n".encode())
    bus.flush(0.3)


def _read_heartbeats(watch: HeartbeatMonitor, period_s: float) -> None:
    """Read all heartbeats. If none has arrived, wait for one until the safe call may be due."""
    if watch.over:
        time.sleep(period_s)
    wait_s = watch.seconds_until_due(clock.now_s(), period_s)
    while not watch.over and select.select([0], [], [], wait_s)[0]:
        watch.receive(os.read(0, 4096), clock.now_s())
        wait_s = 0.0  # read everything that has arrived, including the end of the pipe


def main() -> int:
    """Run the guard as a ROS 2 node; its name and remapping rules follow `--ros-args`."""
    from rtcontrol_client.ros2.node import RosNetwork, running_node

    given, ros = split_ros_arguments(sys.argv[1:])
    # A killed process may leave Fast DDS's shared memory locked permanently (eProsima/Fast-DDS#1144).
    os.environ.setdefault("FASTDDS_BUILTIN_TRANSPORTS", "UDPv4")
    with running_node(ros, services=False) as node:
        return run_guard(given, lambda: RosNetwork(node))


if __name__ == "__main__":
    sys.exit(main())
