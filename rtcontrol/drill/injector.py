"""Inject faults from outside the run: signals and busy processes, or a switch that the run's wrappers read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rtcontrol.drill.faults import FaultKind, Switches
from rtcontrol.drill.wrappers import Line
from rtcontrol_client.shutdown import rest

# What decided last is asked so often: the standby decides now and then, too.
LOOKS, LOOK_S = 7, 0.03
GC_S = 10.0
# What is stopped needs a moment to go on.
AWAKE_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that was injected; instants of CLOCK_MONOTONIC. `hit`: there was something to inject it into."""

    fault: FaultKind
    begin_ns: int
    end_ns: int
    hit: bool = True


class Injector:
    """Of the run with this pid. `inject` blocks for as long as the fault lasts, shorter where `over` says so; whatever
    happens, nothing stays stopped or busy."""

    def __init__(self, pid: int, switches: Switches, line: Line, over: Callable[[], bool]) -> None:
        self._pid, self._switches, self._line, self._over = pid, switches, line, over
        self._hit = True

    def inject(self, fault: FaultKind) -> Injection:
        begin_ns, self._hit = time.monotonic_ns(), True
        ways: dict[str, Callable[[float], None]] = {
            "busy_core": self._burn,
            "stop_decoder": lambda seconds: self._stop(self.decoder(), seconds),
            "stop_loop": lambda seconds: self._stop(self._pid, seconds),
            "kill_decoder": lambda seconds: self._send(self.decoder(), signal.SIGKILL),
            "gc": self._collect,
        }
        way = ways.get(fault.name)
        if way is not None:
            way(fault.seconds)
        else:
            self._switches[fault.name] = time.monotonic() + fault.seconds
            self._rest(fault.seconds)
            self._switches[fault.name] = 0.0
        end_ns = time.monotonic_ns()
        if fault.name in ("stop_loop", "hang"):
            self._line.tell(excused=[begin_ns, end_ns + AWAKE_NS])
        return Injection(fault, begin_ns, end_ns, self._hit)

    def decoder(self) -> int:
        """Return the process that decides; 0 where that is the run's own."""
        seen: Counter[int] = Counter()
        for _ in range(LOOKS):
            seen[int(self._switches["decoder"])] += 1
            time.sleep(LOOK_S)
        pid = seen.most_common(1)[0][0]
        return 0 if pid == self._pid else pid

    def _rest(self, seconds: float) -> None:
        rest(self._over, time.monotonic() + seconds)

    def _burn(self, seconds: float) -> None:
        command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
        busy = [subprocess.Popen(command, start_new_session=True) for _ in range(2 * (os.cpu_count() or 1))]
        try:
            self._rest(seconds)
        finally:
            for process in busy:
                process.kill()
                process.wait()

    def _stop(self, pid: int, seconds: float) -> None:
        self._send(pid, signal.SIGSTOP)
        try:
            self._rest(seconds)
        finally:
            self._send(pid, signal.SIGCONT)

    def _send(self, pid: int, number: int) -> None:
        try:
            if pid <= 1:
                raise ProcessLookupError
            os.kill(pid, number)
        except ProcessLookupError:
            self._hit = False

    def _collect(self, seconds: float) -> None:
        """The run's own thread says when it is over."""
        self._switches["gc"] = time.monotonic() + GC_S
        rest(lambda: self._over() or self._switches["gc"] == 0.0, time.monotonic() + GC_S)
        self._switches["gc"] = 0.0
