"""A process beside the bridge that tells the robot the safe call when the bridge cannot: it was killed, or stands still
for longer than what is in force may be. `python -m rtcontrol_client.ros2.guard` is started by the bridge alone, and
is a node with the bridge's names.

Each beat of the bridge says until when the call in force may go on; it comes before that call is published, and that
there is none after the safe call was. The guard publishes where that instant is over without another beat, until one
comes, and where the pipe between them ends without a farewell. Its publishers are its own, made at its start: a robot
needs about a second to find them, and the bridge lets nobody drive before the guard says that it has been found.
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

GRACE_S = 0.02  # the bridge's own safe call comes first, where it lives
HOLD_S = 1.0  # behind the bridge's end, and behind the first subscriber that was found since then
MOST_S = 5.0  # behind the bridge's end, where no subscriber is found
AGAIN_S = 5.0  # from one start of the process to the next
END_S = 2.0
MEET_S = 4.0  # a guard that no subscriber or server has met by then is as ready as it can be
READY_S = 10.0  # so long nobody drives because the guard is not ready
BYE, SAFE, READY = b"bye", b"-", b"+"
# -P: a file of the working folder is no module of ours.
PROGRAM = ("-P", "-m", "rtcontrol_client.ros2.guard")
log = logging.getLogger("rtcontrol.ros2")


class Guard:
    """The bridge's side: starts the process, and beats, from any thread. It waits for nothing, and what goes wrong is
    told in the log."""

    def __init__(
        self,
        config: RobotConfig,
        hz: float,
        period_ms: float,
        last: Sequence[str] = (),
    ) -> None:
        """`period_ms`: the deadline that the bridge's own publishers offer; `last`: arguments of the guard's node."""
        # Not the file: it may have changed, or be a pipe, when another guard reads it.
        self._text = os.memfd_create("robot.json")
        os.write(self._text, config.model_dump_json(by_alias=True, exclude_unset=True).encode())
        given = [f"/proc/self/fd/{self._text}", f"{hz:g}", f"{period_ms:g}"]
        self._command, self._last = [sys.executable, *PROGRAM, *given], last
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._began, self._started, self._ready = time.monotonic(), -AGAIN_S, False
        self._word = -1  # by which the process says that it is ready
        self.mend()

    @property
    def ready(self) -> bool:
        """Whether the robot may be driven: the guard has met it, or was waited for in vain, which is warned of."""
        with self._lock:
            if not self._ready and self._word >= 0:
                with contextlib.suppress(BlockingIOError):
                    self._ready = os.read(self._word, 1) == READY
            if not self._ready and time.monotonic() > self._began + READY_S:
                self._ready = True
                log.warning(
                    "The guard is not ready after %g s: nobody stops the robot if this bridge is killed before it is.",
                    READY_S,
                )
            return self._ready

    def mend(self) -> None:
        """Start the process where there is none. Takes milliseconds."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            if self._process is not None:
                self._lost()
            if time.monotonic() >= self._started + AGAIN_S:
                self._start()

    def beat(self, left_ms: float | None) -> None:
        """What is in force may go on for `left_ms`; None: the safe call is, or one without a limit."""
        until_ns = None if left_ms is None else time.monotonic_ns() + int(left_ms * 1e6)
        self._tell(SAFE if until_ns is None else b"%d" % until_ns)

    def close(self) -> None:
        """The bridge ends in order: the guard has nothing to do."""
        self._tell(BYE)
        with self._lock:
            process, self._process, self._started = self._process, None, float("inf")
            os.close(self._text)
            self._forget_word()
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

    def _tell(self, line: bytes) -> None:
        with self._lock:
            if self._process is None or self._process.stdin is None:
                return
            try:
                os.write(self._process.stdin.fileno(), line + b"\n")
            except BlockingIOError:
                pass  # it is behind, and has enough to read
            except OSError:
                self._lost()

    def _lost(self) -> None:
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None
        log.warning("The guard has ended: nobody stops the robot if this bridge is killed. Another one is started.")
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.kill()
        process.wait()

    def _forget_word(self) -> None:
        if self._word >= 0:
            os.close(self._word)
            self._word = -1

    def _start(self) -> None:
        self._started = time.monotonic()
        self._forget_word()
        self._word, word = os.pipe()
        os.set_blocking(self._word, False)
        folders = (str(Path(rtcontrol_client.__file__).parents[1]), os.environ.get("PYTHONPATH"))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
        pipe = subprocess.PIPE
        try:
            # A session of its own: what the terminal sends is the bridge's.
            self._process = subprocess.Popen(
                [*self._command, str(word), *self._last],
                stdin=pipe,
                start_new_session=True,
                bufsize=0,
                env=environment,
                pass_fds=[self._text, word],
            )
        except OSError as error:
            log.warning("The guard cannot be started (%s): nobody stops the robot if this bridge is killed.", error)
            return
        finally:
            os.close(word)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)


class Watch:
    """When the safe call is due, from what was heard. Pure: the caller has the clock, `time.monotonic` in seconds."""

    def __init__(self) -> None:
        self.over = self._farewell = False
        self._until: float | None = None  # what is in force may go on; None: without end
        self._ended = 0.0
        self._met: float | None = None  # since then a subscriber is there
        self._part = b""

    def hear(self, data: bytes, now: float) -> None:
        """What came through the pipe; nothing: it has ended. A line that is no beat says nothing."""
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
        """Whether the robot is to be told the safe call now."""
        if self.over:
            return not self.done(now)
        return self._until is not None and now >= self._until + GRACE_S

    def done(self, now: float) -> bool:
        """Whether there is nothing more to do."""
        if not self.over or self._farewell:
            return self.over
        holds = self._ended + MOST_S if self._met is None else max(self._ended, self._met) + HOLD_S
        return now >= min(holds, self._ended + MOST_S)

    def rest(self, now: float, most: float) -> float:
        """How long nothing is due, `most` at the most."""
        if self._until is None or self.over:
            return most
        left = self._until + GRACE_S - now
        return min(most, left) if left > 0 else most


def guard(given: Sequence[str], network: Callable[[], Any]) -> int:
    """The process, with these arguments, until the bridge has ended; the exit status."""
    outlive_terminal()
    # What ends or stops the bridge, for all of a terminal's processes, must not do so here: the pipe's end is the end.
    for number in (*SIGNALS, *OTHERS, SUSPENDS, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    file, hz, promise_ms, ready = given
    try:
        mapper = Mapper(RobotConfig.model_validate_json(Path(file).read_bytes()), "the bridge's file")
        watching(mapper, network(), float(hz), float(promise_ms), partial(_say_ready, int(ready)))
    except Ros2BridgeError as error:
        write_now(2, f"guard: {error.what} {error.remedy}\n".encode())
        return 2
    return 0


def _say_ready(file: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        os.write(file, READY)
    os.close(file)


def watching(mapper: Mapper, bus: Any, hz: float, promise_ms: float, ready: Callable[[], None] = lambda: None) -> None:
    """Publish what is due; `ready` is called once, when the robot is there to hear it. Raises Ros2BridgeError where the
    network cannot be used."""
    call, steady = mapper.config.safe, mapper.steady()
    named = {publication.topic for publication in mapper.publications(call.name, call.arguments, 0)}
    outputs = {
        name: bus.output(topic, promise_ms if name in steady else None, lease=False)
        for name, topic in mapper.topics.items()
        if name in named
    }
    asked = channels(mapper, bus, named, alone=True)
    told: dict[str, Any] = {**outputs, **asked}
    actuator, watch, why = Ros2Actuator(mapper, told, hz, bus.stamp_ns), Watch(), ""
    safe, period_s = Standing(None, "safe", cause="guard"), 0.5 / max(hz, 1.0)
    began, waits = time.monotonic(), True
    while not watch.done(time.monotonic()):
        if watch.over:
            time.sleep(period_s)
        wait_s = watch.rest(time.monotonic(), period_s)
        while not watch.over and select.select([0], [], [], wait_s)[0]:
            watch.hear(os.read(0, 4096), time.monotonic())
            wait_s = 0.0  # all that is there: its end, too
        for channel in asked.values():
            channel.advance()
        met = [bool(one.readers()) for one in told.values()]
        if any(met):
            watch.meet(time.monotonic())
        if waits and (all(met) or time.monotonic() > began + MEET_S):
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
