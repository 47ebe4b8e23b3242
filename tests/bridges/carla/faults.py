"""A run with the CARLA bridge, and the stand-in, which is not CARLA, on their rig: each fault in a drive of its own.

Times are of the bridge's line a step. Without options chance decides, in an actor of its own, and can only say 50 km/h.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time

import psutil

from tests.bridges.carla import rig as programs
from tests.bridges.carla.rig import Brain, Line, Program
from tests.bridges.carla.standin_process import StandIn
from tests.bridges.rig import base
from tests.bridges.rig import faults as general
from tests.bridges.rig.base import Row, child, stall
from tests.helpers.processes import ROOT, until

KMH = 20.0
CRUISER = ("--agent", str(ROOT / "tests" / "bridges" / "carla" / "cruiser.py"), "--model", "random")


class Rig(base.Rig):
    """Run and bridge speak over a socket of their own, so there is no tap: what is in force is in the trace."""

    what = "bridge"
    program: Program
    standin: StandIn

    def open(self) -> None:
        self.options = self.options or CRUISER
        self._drives = 0

    def start(self) -> None:
        self._drives += 1
        self.drive = self.folder / str(self._drives)
        self.drive.mkdir()
        self.standin = StandIn(state=self.drive / "standin.json")
        self.program = programs.run(self.drive, self.standin.port, *self.options, trace=not self.measured)
        self.program.says("in session", 120)
        if not self.measured:
            self.program.reaches(KMH, 60)

    def fly(self, ttl_ms: float = base.TTL_MS, waits: bool = True) -> None:
        self.land()
        self.start()

    def land(self) -> None:
        if self._drives and self.program.popen.poll() is None:
            status = self.program.end()
            self.standin.end()
            self.figures = {"exit_status": status, "bridge": self.program.report()}
            with contextlib.suppress(OSError):
                told = json.loads((self.drive / "out" / "report.json").read_text())
                self.figures |= {"on_time_share": told["on_time"] / told["releases"], "releases": told["releases"]}
                state = json.loads((self.drive / "standin.json").read_text())
                self.figures["vehicle"] = [one for one in state["destroyed"] if one["role_name"] == "hero"]

    def close(self) -> None:
        if self._drives:
            self.program.kill()
            self.standin.end()

    def tell(self, line: str) -> None:
        self.standin.command(line)

    def process(self) -> psutil.Process:
        return child(self.program.popen.pid, "rtcontrol_client.carla")

    def deciding(self) -> psutil.Process:
        return psutil.Process(self.program.popen.pid)

    def door(self) -> str:
        command = self.process().cmdline()
        return command[command.index("--connect") + 1]

    def on_time(self, begin: float, end: float) -> str:
        lines = [line for line in self.since(begin) if line["t_s"] < end]
        return f"{sum(map(_fresh, lines))} of {len(lines)} steps on time"

    def since(self, begin: float) -> list[Line]:
        return [line for line in self.program.trace() if line["t_s"] >= begin]

    def driven(self, since: float) -> float | None:
        return next((line["t_s"] for line in self.since(since + 0.2) if _fresh(line)), None)

    def row(self, fault: str, begin: float, end: float, mended: float | None, ttl_ms: float = base.TTL_MS) -> Row:
        row, self._begin = Row(fault, ttl_ms), begin
        before = [line for line in self.program.trace() if line["t_s"] < begin]
        lines = self.since(begin)
        speed = before[-1]["kmh"]
        safe = next((line for line in lines if line["status"] == "safe"), None)
        called = [line for line in lines if safe is None or line["t_s"] < safe["t_s"]]
        if called:
            row.last, row.last_ms = "a call", 1e3 * (called[-1]["t_s"] - begin)
        if safe is not None:
            row.safe_ms = 1e3 * (safe["t_s"] - begin)
            row.notes.append(f"safe: {safe['cause']}")
        if (without := next((line for line in lines if not _fresh(line)), None)) is not None:
            row.found_ms, row.found = 1e3 * (without["t_s"] - begin), "a step without a fresh call"
        if mended is not None:
            after = mended if safe is None else max(mended, safe["t_s"])
            again = next((line for line in lines if line["t_s"] > after and _fresh(line)), None)
            row.recovered_ms = None if again is None else 1e3 * (again["t_s"] - mended)
        slowest = min((line["kmh"] for line in lines), default=speed)
        row.notes.insert(0, f"{speed:.0f} km/h, least {slowest:.0f}")
        oldest = max((line["age_ms"] for line in lines if _fresh(line) or line["status"] == "held"), default=0.0)
        row.too_old = sum((line["age_ms"] or 0.0) > ttl_ms + 62.5 for line in lines)
        row.notes.append(f"oldest call in force {oldest:.0f} ms")
        return row

    def told(self, row: Row) -> Row:
        figures = self.figures["bridge"]
        row.expired = figures["calls"]["expired"]
        row.too_old += figures["too_old_executed"]
        if deaths := figures.get("deaths"):
            row.found_ms, row.found = 1e3 * (deaths[0]["clock_s"] - self._begin), f"its end ({deaths[0]['how']})"
        return row


def _fresh(line: Line) -> bool:
    return bool(line["status"] == "fresh" and line["call"] is not None)


def carla_killed(rig: Rig) -> Row:
    """SIGKILL to the CARLA server; another one after 2 s."""
    port, begin = rig.standin.port, time.monotonic()
    rig.standin.kill()
    time.sleep(2)
    back = time.monotonic()
    rig.standin = StandIn("--port", str(port), state=rig.drive / "second.json")
    rig.until_driven(back)
    return _lost(rig, rig.row("CARLA server killed -9, started again after 2 s", begin, time.monotonic(), back), begin)


def carla_frozen(rig: Rig) -> Row:
    """The CARLA server stands still for 2 s, with all connections open."""
    begin = time.monotonic()
    rig.standin.command("freeze")
    time.sleep(2)
    back = time.monotonic()
    rig.standin.command("thaw")
    rig.until_driven(back)
    row = rig.row("CARLA server frozen 2 s", begin, time.monotonic(), back)
    row.notes.append("frozen, it takes no command: on going on the first thing is the brake")
    return _lost(rig, row, begin)


def carla_slow(rig: Rig) -> Row:
    """Each step takes the CARLA server 100 ms, for 5 s."""
    begin = time.monotonic()
    rig.standin.command("slow 100")
    time.sleep(5)
    rig.standin.command("slow 0")
    back = time.monotonic()
    rig.until_driven(back)
    row = rig.row("each step takes the CARLA server 100 ms, 5 s long", begin, time.monotonic(), back)
    steps = [line for line in rig.since(begin) if line["t_s"] < back]
    row.notes.append(f"{len(steps) / (back - begin):.1f} steps a second")
    return row


def bridge_killed(rig: Rig) -> Row:
    """SIGKILL to the bridge."""
    begin = time.monotonic()
    rig.process().send_signal(signal.SIGKILL)
    return _died(rig, "bridge killed -9", begin)


def bridge_aborted(rig: Rig) -> Row:
    """A packet that CARLA's client library cannot take."""
    begin = time.monotonic()
    rig.standin.command("garbage")
    return _died(rig, "undecodable packet: CARLA's library ends the bridge", begin)


def run_stalled(rig: Rig) -> Row:
    """SIGSTOP to the run's process (the loop), 300 ms, five times."""
    begin = time.monotonic()
    for _ in range(5):
        back = stall(rig.deciding(), 0.3)
        time.sleep(0.7)
    rig.until_driven(back)
    return rig.row("loop SIGSTOP 300 ms, five times", begin, time.monotonic(), back)


def _lost(rig: Rig, row: Row, begin: float) -> Row:
    lost = rig.program.report()["server_lost"][-1]
    row.found_ms, row.found = 1e3 * (lost["clock_s"] - begin), "the step's time limit"
    return row


def _died(rig: Rig, fault: str, begin: float) -> Row:
    rig.until_driven(begin)
    until(lambda: len(rig.standin.state()["alive"]) == 1, "not one vehicle")
    state = rig.standin.state()
    row = rig.row(fault, begin, time.monotonic(), begin)
    row.notes.append(f"the old vehicle destroyed: {len(state['destroyed']) == 1}; the simulation stood still meanwhile")
    return row


def calls_stalled(rig: Rig) -> Row:
    """No call passes for 300 ms, then all at once; ten times, with a time-to-live of 250 ms; a scripted server."""
    rig.land()
    brain, rig.standin = Brain("set_speed", kmh=50), StandIn(state=rig.drive / "scripted.json")
    brain.ttl_ms = 250.0
    try:
        rig.program = programs.bridge(rig.drive, brain.endpoint, rig.standin.port)
        rig.program.reaches(KMH)
        begin = time.monotonic()
        for _ in range(10):
            brain.stalled = True
            time.sleep(0.3)
            brain.stalled = False
            time.sleep(0.7)
        back = time.monotonic()
        rig.until_driven(back)
        row = rig.row("calls stall 300 ms, ten times (ttl 250 ms)", begin, time.monotonic(), back, brain.ttl_ms)
        rig.land()
        return row
    finally:
        brain.close()


Rig.faults = [
    carla_killed, carla_frozen, carla_slow, general.decoder_killed, bridge_killed, bridge_aborted, general.stopped,
    run_stalled, general.strangers_storm, calls_stalled,
]  # fmt: skip
