"""The fault list of the CARLA bridge: `python -m tests.bridges.carla.faults [--only WORD] [--json FILE] [RUN OPTIONS]`.

A real run (Ray host; without options a model of chance that can only say 50 km/h), the real bridge and client library,
and the stand-in, which is not CARLA; one fault after another, each in a drive of its own. Times are on the machine's
monotonic clock, of the bridge's line a step. The exit status is 1 where a call was executed too old.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import zmq

from tests.bridges.carla import rig
from tests.bridges.carla.rig import Brain, Line, Program
from tests.bridges.carla.soak import CRUISER, bridge_of
from tests.bridges.carla.standin.process import StandIn
from tests.bridges.client.worlds import until
from tests.bridges.faults import strangers
from tests.bridges.faults.served import ACTOR
from tests.bridges.faults.table import Row, finish

KMH = 20.0
TTL_MS, SHORT_TTL_MS = 500.0, 250.0
STORM_S = 5.0


@dataclass
class Drive:
    """A run under way at `KMH`; `standin` may be exchanged."""

    folder: Path
    standin: StandIn
    program: Program
    begin: float = 0.0

    def since(self, begin: float) -> list[Line]:
        return [line for line in self.program.trace() if line["t_s"] >= begin]

    def until_fresh(self, after: float) -> None:
        """Until it is driven again by a call of after this instant."""
        until(lambda: any(_fresh(line) for line in self.since(after + 0.2)), "it does not drive on", 60)

    def row(self, fault: str, begin: float, back: float | None, ttl_ms: float = TTL_MS) -> Row:
        """What the trace shows; `back`: when the fault ended."""
        row, self.begin = Row(fault, ttl_ms), begin
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
        if back is not None:
            after = back if safe is None else max(back, safe["t_s"])
            again = next((line for line in lines if line["t_s"] > after and _fresh(line)), None)
            row.recovered_ms = None if again is None else 1e3 * (again["t_s"] - back)
        slowest = min((line["kmh"] for line in lines), default=speed)
        row.notes.insert(0, f"{speed:.0f} km/h, least {slowest:.0f}")
        oldest = max((line["age_ms"] for line in lines if _fresh(line) or line["status"] == "held"), default=0.0)
        row.too_old = sum((line["age_ms"] or 0.0) > ttl_ms + 62.5 for line in lines)
        row.notes.append(f"oldest call in force {oldest:.0f} ms")
        return row

    def told(self, row: Row) -> Row:
        """With what the bridge and the run said of it at the end."""
        figures = self.program.report()
        row.expired = figures["calls"]["expired"]
        row.too_old += figures["too_old_executed"]
        if deaths := figures.get("deaths"):
            row.found_ms, row.found = 1e3 * (deaths[0]["clock_s"] - self.begin), f"its end ({deaths[0]['how']})"
        return row


def _fresh(line: Line) -> bool:
    return bool(line["status"] == "fresh" and line["call"] is not None)


def carla_killed(drive: Drive) -> Row:
    """SIGKILL to the CARLA server; another one after 2 s."""
    port, begin = drive.standin.port, time.monotonic()
    drive.standin.kill()
    time.sleep(2)
    back = time.monotonic()
    drive.standin = StandIn("--port", str(port), state=drive.folder / "second.json")
    drive.until_fresh(back)
    return _lost(drive, drive.row("CARLA server killed -9, started again after 2 s", begin, back), begin)


def carla_frozen(drive: Drive) -> Row:
    """The CARLA server stands still for 2 s, with all connections open."""
    begin = time.monotonic()
    drive.standin.command("freeze")
    time.sleep(2)
    back = time.monotonic()
    drive.standin.command("thaw")
    drive.until_fresh(back)
    row = drive.row("CARLA server frozen 2 s", begin, back)
    row.notes.append("frozen, it takes no command: on going on the first thing is the brake")
    return _lost(drive, row, begin)


def carla_slow(drive: Drive) -> Row:
    """Each step takes the CARLA server 100 ms, for 5 s."""
    begin = time.monotonic()
    drive.standin.command("slow 100")
    time.sleep(5)
    drive.standin.command("slow 0")
    back = time.monotonic()
    drive.until_fresh(back)
    row = drive.row("each step takes the CARLA server 100 ms, 5 s long", begin, back)
    steps = [line for line in drive.since(begin) if line["t_s"] < back]
    row.notes.append(f"{len(steps) / (back - begin):.1f} steps a second")
    return row


def decoder_killed(drive: Drive) -> Row:
    """SIGKILL to the actor that decides."""
    actor = next(
        child
        for child in psutil.Process(drive.program.popen.pid).children(recursive=True)
        if _is(child, ACTOR) or _is(child, "ray::DecoderActor")
    )
    begin = time.monotonic()
    os.kill(actor.pid, signal.SIGKILL)
    drive.until_fresh(begin + 1)
    return drive.row("decoder's actor killed -9", begin, begin)


def bridge_killed(drive: Drive) -> Row:
    """SIGKILL to the bridge."""
    begin = time.monotonic()
    bridge_of(drive.program.popen.pid).send_signal(signal.SIGKILL)
    return _died(drive, "bridge killed -9", begin)


def bridge_aborted(drive: Drive) -> Row:
    """A packet that CARLA's client library cannot take."""
    begin = time.monotonic()
    drive.standin.command("garbage")
    return _died(drive, "undecodable packet: CARLA's library ends the bridge", begin)


def bridge_stopped(drive: Drive) -> Row:
    """SIGSTOP to the bridge, 2 s."""
    bridge, begin = bridge_of(drive.program.popen.pid), time.monotonic()
    bridge.send_signal(signal.SIGSTOP)
    time.sleep(2)
    back = time.monotonic()
    bridge.send_signal(signal.SIGCONT)
    drive.until_fresh(back)
    return drive.row("bridge SIGSTOP 2 s", begin, back)


def run_stalled(drive: Drive) -> Row:
    """SIGSTOP to the run's process (the loop), 300 ms, five times."""
    begin = time.monotonic()
    for _ in range(5):
        drive.program.popen.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        drive.program.popen.send_signal(signal.SIGCONT)
        time.sleep(0.7)
    back = time.monotonic()
    drive.until_fresh(back)
    return drive.row("loop SIGSTOP 300 ms, five times", begin, back)


def storm(drive: Drive) -> Row:
    """Garbage and hellos of strangers on the wire endpoint."""
    command = bridge_of(drive.program.popen.pid).cmdline()
    endpoint = command[command.index("--connect") + 1]
    begin, sent = time.monotonic(), 0
    dealers = [zmq.Context.instance().socket(zmq.DEALER) for _ in range(strangers.DEALERS)]
    for dealer in dealers:
        dealer.linger = 0
        dealer.connect(endpoint)
    while time.monotonic() < begin + STORM_S:
        for dealer in dealers:
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart([random.randbytes(200)], zmq.NOBLOCK)
                dealer.send_multipart(strangers.hello("stranger"), zmq.NOBLOCK)
                sent += 2
            with contextlib.suppress(zmq.Again):
                while True:
                    dealer.recv_multipart(zmq.NOBLOCK)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as raw:
            raw.connect(endpoint.removeprefix("ipc://"))
            raw.sendall(random.randbytes(5000))
        time.sleep(0.005)
    for dealer in dealers:
        dealer.close()
    back = time.monotonic()
    drive.until_fresh(back)
    row = drive.row("strangers flood the wire's endpoint 5 s", begin, back)
    lines = [line for line in drive.since(begin) if line["t_s"] < back]
    row.notes.append(f"{sent / STORM_S:.0f} messages a second, {len(lines) / STORM_S:.1f} steps a second")
    return row


def _is(process: psutil.Process, name: str) -> bool:
    try:
        return name in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _lost(drive: Drive, row: Row, begin: float) -> Row:
    lost = drive.program.report()["server_lost"][-1]
    row.found_ms, row.found = 1e3 * (lost["clock_s"] - begin), "the step's time limit"
    return row


def _died(drive: Drive, fault: str, begin: float) -> Row:
    drive.until_fresh(begin)
    until(lambda: len(drive.standin.state()["alive"]) == 1, "not one vehicle")
    state = drive.standin.state()
    row = drive.row(fault, begin, begin)
    row.notes.append(f"the old vehicle destroyed: {len(state['destroyed']) == 1}; the simulation stood still meanwhile")
    return row


def calls_stalled(folder: Path) -> Row:
    """No call passes for 300 ms, then all at once; ten times, with a time-to-live of 250 ms; a scripted server."""
    brain = Brain("set_speed", kmh=50)
    brain.ttl_ms = SHORT_TTL_MS
    with StandIn(state=folder / "standin.json") as standin:
        drive = Drive(folder, standin, rig.bridge(folder, brain.endpoint, standin.port))
        try:
            drive.program.reaches(KMH)
            begin = time.monotonic()
            for _ in range(10):
                brain.stalled = True
                time.sleep(0.3)
                brain.stalled = False
                time.sleep(0.7)
            back = time.monotonic()
            drive.until_fresh(back)
            row = drive.row("calls stall 300 ms, ten times (ttl 250 ms)", begin, back, SHORT_TTL_MS)
            drive.program.end()
            return drive.told(row)
        finally:
            drive.program.kill()
            brain.close()


FAULTS: list[Callable[[Drive], Row]] = [
    carla_killed,
    carla_frozen,
    carla_slow,
    decoder_killed,
    bridge_killed,
    bridge_aborted,
    bridge_stopped,
    run_stalled,
    storm,
]


@contextmanager
def driving(folder: Path, options: list[str]) -> Iterator[Drive]:
    """A run at speed; ended with SIGTERM."""
    with StandIn(state=folder / "standin.json") as standin:
        drive = Drive(folder, standin, rig.run(folder, standin.port, *options))
        try:
            drive.program.says("in session", 120)
            drive.program.reaches(KMH, 60)
            yield drive
        finally:
            drive.program.kill()
            drive.standin.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bridges.carla.faults", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose function's name has this word")
    parser.add_argument("--json", type=Path, help="write the findings to this file")
    given, options = parser.parse_known_args()
    rows: list[Row] = []
    for fault in [*FAULTS, calls_stalled]:
        if given.only not in fault.__name__:
            continue
        print(f"{fault.__name__} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            if fault is calls_stalled:
                rows.append(calls_stalled(Path(folder)))
                continue
            with driving(Path(folder), options or CRUISER) as drive:
                row = fault(drive)  # type: ignore[arg-type]
                drive.program.end()
                rows.append(drive.told(row))
    return finish(rows, given.json, what="CARLA stand-in, not CARLA", options=options or CRUISER)


if __name__ == "__main__":
    sys.exit(main())
