"""A process next to the bridge that publishes the safe call when the bridge cannot: it was killed, or does not run for
longer than the active call may act. `python -m rtcontrol_client.ros2.guard` is started by the bridge alone, and is a
node with the bridge's names.

Each beat of the bridge has the instant until which the active call may act, and comes before that call is published; or
none, after the safe call was. The guard publishes once that instant is over without another beat, until one comes, and
where the pipe between them ends without a farewell. It has its publishers from its start: a robot needs about a second
to discover them, and the bridge lets nothing drive before the guard reports that it was discovered.
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
from rtcontrol_client import Standing
from rtcontrol_client.ros2 import Ros2BridgeError, split
from rtcontrol_client.ros2.actuate import Ros2Actuator
from rtcontrol_client.ros2.config import RobotConfig
from rtcontrol_client.ros2.goals import action_clients
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.shutdown import SIGNALS, SUSPENDS, outlive_terminal, write_now

GRACE_S = 0.02  # the bridge's safe call comes first, where it lives
HOLD_S = 1.0  # after the bridge's end, and after the first subscriber that was met since then
MOST_S = 5.0  # after the bridge's end, where no subscriber is met
END_S = 2.0
MEET_S = 4.0  # a guard that no subscriber or server has met by then is as ready as it can be
BYE, SAFE, READY = b"bye", b"-", b"+"
# -P: a file of the working folder is not a module of ours.
PROGRAM = ("-P", "-m", "rtcontrol_client.ros2.guard")


class Guard:
    """The bridge's side: starts the process, and beats, from any thread. It never waits."""

    def __init__(self, config: RobotConfig, ros: Sequence[str] = ()) -> None:
        """`ros`: arguments of the guard's node."""
        self._lock = threading.Lock()
        self._ready, ready = os.pipe()
        os.set_blocking(self._ready, False)
        # Not the file: it may have changed, or be a pipe.
        text = os.memfd_create("robot.json")
        os.write(text, config.model_dump_json(by_alias=True, exclude_unset=True).encode())
        folders = (str(Path(rtcontrol_client.__file__).parents[1]), os.environ.get("PYTHONPATH"))
        # In its own session: what the terminal sends is the bridge's.
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
        """Whether the robot may be driven: the guard has met it."""
        if not self._is_ready:
            with contextlib.suppress(BlockingIOError):
                self._is_ready = os.read(self._ready, 1) == READY
        return self._is_ready

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def beat(self, left_ms: float | None) -> None:
        """Say that the active call may act for `left_ms`; None: the safe call is active, or one without a limit."""
        self._write(SAFE if left_ms is None else b"%d" % (time.monotonic_ns() + int(left_ms * 1e6)))

    def close(self) -> None:
        """End the process: the bridge ends in order, and the guard has nothing to do."""
        self._write(BYE)
        with self._lock:
            self._pipe.close()
            os.close(self._ready)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, line: bytes) -> None:
        # A full pipe has enough to read; a broken one is seen by `ended`.
        with self._lock, contextlib.suppress(OSError):
            if not self._pipe.closed:
                os.write(self._pipe.fileno(), line + b"\n")


class Watch:
    """When the safe call is due, by what was received. Pure: the caller brings `time.monotonic`, in seconds."""

    def __init__(self) -> None:
        self.over = self._farewell = False
        self._until: float | None = None  # the active call may act; None: without end
        self._ended = 0.0
        self._met: float | None = None  # since then a subscriber is there
        self._part = b""

    def receive(self, data: bytes, now: float) -> None:
        """Take what came through the pipe; nothing: it has ended. A line that is not a beat is ignored."""
        if not data:  # and so it is whenever it is read again
            self._ended = self._ended if self.over else now
            self.over = True
            return
        *lines, self._part = (self._part + data).split(b"\n")
        self._part = self._part[-32:]
        for line in lines:
            if line == BYE:
                self._farewell = True
            elif line == SAFE:
                self._until = None
            elif line.isdigit():
                self._until = int(line) / 1e9

    def meet(self, now: float) -> None:
        """Note that a subscriber of the safe call is there."""
        self._met = now if self._met is None else self._met

    def due(self, now: float) -> bool:
        """Return whether the safe call is to be published now."""
        if self.over:
            return not self.done(now)
        return self._until is not None and now >= self._until + GRACE_S

    def done(self, now: float) -> bool:
        """Return whether there is nothing more to do."""
        if not self.over or self._farewell:
            return self.over
        holds = self._ended + MOST_S if self._met is None else max(self._ended, self._met) + HOLD_S
        return now >= min(holds, self._ended + MOST_S)

    def rest(self, now: float, most: float) -> float:
        """Return how long nothing is due, `most` at the most."""
        if self._until is None or self.over:
            return most
        left = self._until + GRACE_S - now
        return min(most, left) if left > 0 else most


def guard(given: Sequence[str], network: Callable[[], Any]) -> int:
    """Run the process, with these arguments, until the bridge has ended; return the exit status."""
    outlive_terminal()
    # What ends or stops the bridge, for all of a terminal's processes, must not do so here: the pipe's end is the end.
    for number in (*SIGNALS, SUSPENDS, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    file, ready = given
    try:
        mapper = Mapper(RobotConfig.model_validate_json(Path(file).read_bytes()), "the bridge's file")
        watch_bridge(mapper, network(), partial(_report_ready, int(ready)))
    except Ros2BridgeError as error:
        write_now(2, f"guard: {error.what} {error.remedy}\n".encode())
        return 2
    return 0


def _report_ready(file: int) -> None:
    with contextlib.suppress(OSError):  # the bridge is gone
        os.write(file, READY)


def watch_bridge(mapper: Mapper, bus: Any, ready: Callable[[], object]) -> None:
    """Publish what is due; `ready` is called once, when the robot is there to receive it."""
    call, hz = mapper.config.safe, mapper.config.hz
    names = {publication.topic for publication in mapper.publications(call.name, call.arguments, 0)}
    actions = action_clients(mapper, bus, names, sweeps=True)
    ends: dict[str, Any] = {
        name: bus.output(topic, mapper.promise_ms(name), lease=False)
        for name, topic in mapper.topics.items()
        if name in names
    }
    ends |= {name: bus.service(name, cls) for name, cls in mapper.services.items() if name in names}
    ends |= actions
    actuator, watch, why = Ros2Actuator(mapper, ends, hz, bus.stamp_ns), Watch(), ""
    safe, period_s = Standing(None, "safe", cause="guard"), 0.5 / max(hz, 1.0)
    started_s, waits = time.monotonic(), True
    while not watch.done(time.monotonic()):
        _await_beat(watch, period_s)
        for action in actions.values():
            action.advance()
        met = [bool(end.readers()) for end in ends.values()]
        if any(met):
            watch.meet(time.monotonic())
        if waits and (all(met) or time.monotonic() > started_s + MEET_S):
            waits = False
            ready()
        if not watch.due(time.monotonic()):
            why = ""
            continue
        if not why:
            actuator.renew()  # all of it, also what is published once
        actuator.apply(lambda: safe)
        before, why = why, "was killed" if watch.over else "stands still"
        if why != before:
            write_now(2, f"guard: the bridge {why}: the safe call is published\n".encode())
    bus.flush(0.3)


def _await_beat(watch: Watch, period_s: float) -> None:
    """Read all beats; wait for one until something is due."""
    if watch.over:
        time.sleep(period_s)
    wait_s = watch.rest(time.monotonic(), period_s)
    while not watch.over and select.select([0], [], [], wait_s)[0]:
        watch.receive(os.read(0, 4096), time.monotonic())
        wait_s = 0.0  # all that is there: its end, too


def main() -> int:
    """Run as the process that the bridge starts: a node whose names and rules follow `--ros-args`."""
    from rtcontrol_client.ros2.node import RosNetwork, started

    given, ros = split(sys.argv[1:])
    # Fast DDS's shared memory may be locked for ever by a process that was killed (eProsima/Fast-DDS#1144).
    os.environ.setdefault("FASTDDS_BUILTIN_TRANSPORTS", "UDPv4")
    with started(ros, services=False) as node:
        return guard(given, lambda: RosNetwork(node))


if __name__ == "__main__":
    sys.exit(main())
