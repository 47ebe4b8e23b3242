"""A process next to the bridge that publishes the safe call when the bridge cannot: it was killed, or does not run for
longer than the active call may act. `python -m rtcontrol_client.ros2.guard` is started by the bridge alone, and is a
node with the bridge's names.

Each beat of the bridge says until when the active call may act; it comes before that call is published, and that there
is none after the safe call was. The guard publishes where that instant is over without another beat, until one comes,
and where the pipe between them ends without a farewell. It has its publishers from its start: a robot needs about a
second to find them, and the bridge lets nothing drive before the guard says that it has been found.
"""

from __future__ import annotations

import contextlib
import logging
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
from rtcontrol_client.ros2.goals import channels
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.shutdown import OTHERS, SIGNALS, SUSPENDS, outlive_terminal, write_now

GRACE_S = 0.02  # the bridge's safe call comes first, where it lives
HOLD_S = 1.0  # after the bridge's end, and after the first subscriber that was met since then
MOST_S = 5.0  # after the bridge's end, where no subscriber is met
AGAIN_S = 5.0  # from one start of the process to the next
END_S = 2.0
MEET_S = 4.0  # a guard that no subscriber or server has met by then is as ready as it can be
READY_S = 10.0  # how long nothing drives because the guard is not ready
BYE, SAFE, READY = b"bye", b"-", b"+"
# -P: a file of the working folder is not a module of ours.
PROGRAM = ("-P", "-m", "rtcontrol_client.ros2.guard")
log = logging.getLogger("rtcontrol.ros2")


class Guard:
    """The bridge's side: starts the process, and beats, from any thread. It never waits; what goes wrong is logged."""

    def __init__(self, config: RobotConfig, promise_ms: float, ros: Sequence[str] = ()) -> None:
        """`promise_ms`: the deadline that the bridge's publishers offer; `ros`: arguments of the guard's node."""
        # Not the file: it may have changed, or be a pipe, when another guard reads it.
        self._config = os.memfd_create("robot.json")
        os.write(self._config, config.model_dump_json(by_alias=True, exclude_unset=True).encode())
        self._command = [sys.executable, *PROGRAM, f"/proc/self/fd/{self._config}", f"{promise_ms:g}"]
        self._ros = ros
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._created_s, self._started_s = time.monotonic(), -AGAIN_S
        self._is_ready, self._ready_pipe = False, -1
        self.mend()

    @property
    def ready(self) -> bool:
        """Whether the robot may be driven: the guard has met it, or was waited for in vain, which is logged."""
        with self._lock:
            if not self._is_ready and self._ready_pipe >= 0:
                with contextlib.suppress(BlockingIOError):
                    self._is_ready = os.read(self._ready_pipe, 1) == READY
            if not self._is_ready and time.monotonic() > self._created_s + READY_S:
                self._is_ready = True
                log.warning(
                    "The guard is not ready after %g s: until then nothing stops a killed bridge's robot.", READY_S
                )
            return self._is_ready

    def mend(self) -> None:
        """Start the process where there is none. Takes milliseconds."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            if self._process is not None:
                self._lost()
            if time.monotonic() >= self._started_s + AGAIN_S:
                self._start()

    def beat(self, left_ms: float | None) -> None:
        """Say that the active call may act for `left_ms`; None: the safe call is active, or one without a limit."""
        until_ns = None if left_ms is None else time.monotonic_ns() + int(left_ms * 1e6)
        self._write(SAFE if until_ns is None else b"%d" % until_ns)

    def close(self) -> None:
        """End the process: the bridge ends in order, and the guard has nothing to do."""
        self._write(BYE)
        with self._lock:
            process, self._process, self._started_s = self._process, None, float("inf")
            os.close(self._config)
            self._close_ready_pipe()
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write(self, line: bytes) -> None:
        with self._lock:
            if self._process is None or self._process.stdin is None:
                return
            try:
                os.write(self._process.stdin.fileno(), line + b"\n")
            except BlockingIOError:
                pass  # it is late, and has enough to read
            except OSError:
                self._lost()

    def _lost(self) -> None:
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None
        log.warning("The guard has ended: nothing stops the robot if this bridge is killed. Another one is started.")
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.kill()
        process.wait()

    def _close_ready_pipe(self) -> None:
        if self._ready_pipe >= 0:
            os.close(self._ready_pipe)
            self._ready_pipe = -1

    def _start(self) -> None:
        self._started_s = time.monotonic()
        self._close_ready_pipe()
        self._ready_pipe, ready = os.pipe()
        os.set_blocking(self._ready_pipe, False)
        folders = (str(Path(rtcontrol_client.__file__).parents[1]), os.environ.get("PYTHONPATH"))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
        try:
            # In its own session: what the terminal sends is the bridge's.
            self._process = subprocess.Popen(
                [*self._command, str(ready), *self._ros],
                stdin=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
                env=environment,
                pass_fds=[self._config, ready],
            )
        except OSError as error:
            log.warning("The guard cannot be started (%s): nothing stops the robot if this bridge is killed.", error)
            return
        finally:
            os.close(ready)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)


class Watch:
    """When the safe call is due, by what was received. Pure: the caller brings `time.monotonic`, in seconds."""

    def __init__(self) -> None:
        self.over = self._farewell = False
        self._until: float | None = None  # the active call may act; None: without end
        self._ended = 0.0
        self._met: float | None = None  # since then a subscriber is there
        self._part = b""

    def receive(self, data: bytes, now: float) -> None:
        """Take what came through the pipe; nothing: it has ended. A line that is not a beat says nothing."""
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
        """A subscriber of the safe call is there."""
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
    for number in (*SIGNALS, *OTHERS, SUSPENDS, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    file, promise_ms, ready = given
    try:
        mapper = Mapper(RobotConfig.model_validate_json(Path(file).read_bytes()), "the bridge's file")
        watch_bridge(mapper, network(), float(promise_ms), partial(_say_ready, int(ready)))
    except Ros2BridgeError as error:
        write_now(2, f"guard: {error.what} {error.remedy}\n".encode())
        return 2
    return 0


def _say_ready(file: int) -> None:
    with contextlib.suppress(OSError):  # the bridge does not wait for it any more
        os.write(file, READY)
    os.close(file)


def watch_bridge(mapper: Mapper, bus: Any, promise_ms: float, ready: Callable[[], None]) -> None:
    """Publish what is due; `ready` is called once, when the robot is there to receive it."""
    call, steady, hz = mapper.config.safe, mapper.steady(), mapper.config.hz
    names = {publication.topic for publication in mapper.publications(call.name, call.arguments, 0)}
    outputs = {
        name: bus.output(topic, promise_ms if name in steady else None, lease=False)
        for name, topic in mapper.topics.items()
        if name in names
    }
    served = channels(mapper, bus, names, alone=True)
    ends: dict[str, Any] = {**outputs, **served}
    actuator, watch, why = Ros2Actuator(mapper, ends, hz, bus.stamp_ns), Watch(), ""
    safe, period_s = Standing(None, "safe", cause="guard"), 0.5 / max(hz, 1.0)
    started_s, waits = time.monotonic(), True
    while not watch.done(time.monotonic()):
        _await_beat(watch, period_s)
        for channel in served.values():
            channel.advance()
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
