"""A process beside the bridge that tells the robot the safe call when the bridge cannot: it was killed, or stands still
for longer than what is in force may be. `python -m rtcontrol_client.ros2.guard` is started by the bridge alone.

Each beat of the bridge says how long the call in force may go on. The guard publishes where that time is over without
another beat, until one comes; and for `HOLD_S` where the pipe between them ends without a farewell. Its publishers are
its own, made at its start: a robot needs about a second to find them.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from rtcontrol_client import Standing

HOLD_S = 1.0
AGAIN_S = 5.0  # from one start of the process to the next
END_S = 2.0
BYE, UNLIMITED = b"bye", b"-"
log = logging.getLogger("rtcontrol.ros2")


class Guard:
    """The bridge's side: starts the process, and beats. It never blocks, and what goes wrong is told in the log."""

    def __init__(self, config: Path, hz: float) -> None:
        line = ["-m", "rtcontrol_client.ros2.guard", "--config", str(config), "--hz", f"{hz:g}"]
        self._command = [sys.executable, *line]
        self._process: subprocess.Popen[bytes] | None = None
        self._started = -AGAIN_S
        self._start()

    @property
    def pid(self) -> int | None:
        """Of the process, where it runs."""
        return None if self._process is None else self._process.pid

    def beat(self, left_ms: float | None) -> None:
        """We are alive. What is in force may go on for `left_ms` (None: as long as we live, or it is the safe call)."""
        if self._process is None or self._process.stdin is None:
            self._start()
            return
        try:
            os.write(self._process.stdin.fileno(), b"%b\n" % (UNLIMITED if left_ms is None else b"%d" % left_ms))
        except BlockingIOError:
            pass  # it is behind, and has enough to read
        except OSError:
            log.warning("The guard has ended: nobody stops the robot if this bridge is killed. Another one is started.")
            self._end()

    def close(self) -> None:
        """The bridge ends in order: the guard has nothing to do."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), BYE + b"\n")
        self._end()

    def _start(self) -> None:
        if time.monotonic() < self._started + AGAIN_S:
            return
        self._started = time.monotonic()
        try:
            # A session of its own: what the terminal sends is the bridge's.
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True, bufsize=0)
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        except OSError as error:
            log.warning("The guard cannot be started (%s): nobody stops the robot if this bridge is killed.", error)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Watch:
    """When the safe call is due, from what was heard. Pure: the caller has the clock, in seconds."""

    def __init__(self) -> None:
        self.over = self._farewell = False
        self._until: float | None = None  # what is in force may go on; None: without end
        self._ended = 0.0
        self._part = b""

    def hear(self, data: bytes, now: float) -> None:
        """What came through the pipe; nothing: it has ended. A line that is no beat says nothing."""
        if not data:  # and so it is whenever it is read again
            self._ended = self._ended if self.over else now
            self.over = True
            return
        *lines, self._part = (self._part + data).split(b"\n")
        self._part = self._part[-16:]
        for line in lines:
            if line == BYE:
                self._farewell = True
            elif line == UNLIMITED:
                self._until = None
            elif line.isdigit():
                self._until = now + int(line) / 1e3

    def due(self, now: float) -> bool:
        """Whether the robot is to be told the safe call now."""
        if self.over:
            return not self._farewell and now < self._ended + HOLD_S
        return self._until is not None and now >= self._until

    def done(self, now: float) -> bool:
        """Whether there is nothing more to do."""
        return self.over and (self._farewell or now >= self._ended + HOLD_S)


def main() -> None:
    """Until the bridge has ended."""
    # What ends the bridge must not end this one before it: its end is that of the pipe.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="python -m rtcontrol_client.ros2.guard", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--hz", type=float, required=True)
    given = parser.parse_args()
    from rtcontrol_client.ros2 import config
    from rtcontrol_client.ros2.actuate import Ros2Actuator
    from rtcontrol_client.ros2.bus import Bus
    from rtcontrol_client.ros2.environment import domain
    from rtcontrol_client.ros2.mapper import Mapper

    mapper = Mapper(config.load(given.config), str(given.config))
    bus = Bus(domain(os.environ))
    call = mapper.config.safe
    named = {publication.topic for publication in mapper.publications(call.name, call.arguments, 0)}
    outputs = {topic.name: bus.output(topic) for topic in mapper.topics if topic.name in named}
    actuator = Ros2Actuator(mapper, outputs, given.hz)
    safe, watch, told = Standing(None, "safe", cause="guard"), Watch(), False
    while not watch.done(now := time.monotonic()):
        if watch.over:
            time.sleep(0.5 / given.hz)
        elif select.select([0], [], [], 0.5 / given.hz)[0]:
            watch.hear(os.read(0, 4096), time.monotonic())
        if watch.due(now := time.monotonic()):
            if not told:
                why = "was killed" if watch.over else "stands still"
                print(f"guard: the bridge {why}: the safe call is published", file=sys.stderr, flush=True)
            actuator.apply(lambda: safe)
        told = watch.due(now)
    bus.flush(0.3)


if __name__ == "__main__":
    main()
