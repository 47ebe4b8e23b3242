"""One drilled run, in a process of its own, and the faults injected into it: by signals, busy processes and switches.

`python -m rtcontrol.drill.flight OPTIONS SWITCHES JUDGE` is `rtcontrol run` with its world, agent and decider wrapped.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rtcontrol.agents import Agent
from rtcontrol.drill.faults import FaultKind, Switches
from rtcontrol.drill.wrappers import FaultySource, FaultyWorld, Line, always_calling, faulty_agent
from rtcontrol.envs.base import Environment
from rtcontrol.hosts.protocol import DeciderSource
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions
from rtcontrol.run.run import run
from rtcontrol_client.shutdown import Shutdown, rest

# A decoder may take so long to be there, and a run so long to end, its safe call on the way.
START_S, END_S = 300.0, 60.0
# A run is steady when for so long no two calls were further apart than that, or than three periods.
STEADY_S, STEADY_GAP_S = 1.0, 0.25
PR_SET_PDEATHSIG = 1
# What decided last is asked so often: the standby decides now and then, too.
LOOKS, LOOK_S = 7, 0.03
GC_S = 10.0
# What is stopped needs a moment to go on.
AWAKE_NS = 50_000_000


class Flight:
    """While it is entered, a run of these `options` is drilled in `out`. `messages` are the judge's."""

    def __init__(self, out: Path, options: dict[str, Any], ending: Shutdown) -> None:
        self._out, self._ending, self._options = out, ending, options
        self._gap_s = max(STEADY_GAP_S, 3 / options["hz"])
        self._folder = tempfile.TemporaryDirectory(prefix="rtcontrol-drill-")
        self._shared = [f"{self._folder.name}/{name}" for name in ("switches", "judge")]
        self.switches = Switches(self._shared[0], new=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._shared[1])
        self.line = Line(self._shared[1])
        self.messages: list[dict[str, Any]] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def _listen(self) -> None:
        while "over" not in (message := json.loads(self._socket.recv(1 << 16))):
            self.messages.append(message)

    def __enter__(self) -> Self:
        self._listener.start()
        options = json.dumps({**self._options, "out": str(self._out)})
        with (self._out / "run.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rtcontrol.drill.flight", options, *self._shared],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def over(self) -> bool:
        """Whether the drill was asked to end, or the run has ended by itself."""
        return self._ending.called() or self.process.poll() is not None

    def await_calls(self) -> bool:
        """Wait until a call acted. False where the drill is to end; UserError where none comes."""
        rest(lambda: self.over() or self.switches["acted"] > 0.0, time.monotonic() + START_S)
        if self._ending.called():
            return False
        if (status := self.process.poll()) is not None:
            what = f"The run that is drilled ended by itself (exit status {status}): {self.last_line()}"
            raise UserError(what, f"See {self._out / 'run.log'}.")
        if not self.switches["acted"]:
            raise UserError(f"The run that is drilled calls nothing for {START_S:g} s.", f"See {self._out}/run.log.")
        return True

    def await_steady(self, until_s: float) -> bool:
        """Wait until that instant, and until calls act at each tick for a while. False where that does not come: the
        drill is to end, the run has ended by itself, or does not recover."""
        steady_s = time.monotonic()
        while (now_s := time.monotonic()) < until_s or now_s - steady_s < STEADY_S:
            if now_s - self.switches["acted"] > self._gap_s:
                steady_s = now_s
            if self.over() or now_s > until_s + START_S:
                return False
            time.sleep(0.02)
        return True

    def last_line(self) -> str:
        """Return the last line that the run wrote."""
        lines = (self._out / "run.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"

    def end(self) -> int | None:
        """End the run by SIGTERM and the messages with it; return its exit status, None if it had to be killed."""
        self.line.tell(asked=time.monotonic_ns())
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        finally:
            self.line.tell(over=True)
            self._listener.join()

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.end()
        self._socket.close()
        self._folder.cleanup()


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


# So much longer than the deadline what is made slow takes.
DELAY = 1.5


def main() -> None:
    # However the drill's process ends, this one ends too.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    given, path, line = json.loads(sys.argv[1]), sys.argv[2], Line(sys.argv[3])
    out = Path(given.pop("out"))
    options = RunOptions(out=out, live=False, duration_s=1e6, **given).at(out)
    switches, delay_s = Switches(path), DELAY * options.deadline_ns / 1e9

    def wrapped(agent: Agent, env: Environment, source: DeciderSource) -> tuple[Agent, Environment, DeciderSource]:
        world = FaultyWorld(env, switches, line, delay_s)
        faulty = faulty_agent(agent, world, switches, line, delay_s)
        return faulty, world, FaultySource(always_calling(source), path, delay_s)

    try:
        with Shutdown() as ending:
            sys.exit(run(options, ending, wrapped))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
