"""What the fault runs of the bridges have in common: the faults of the server and of the link, the storms, and the run
itself. Each bridge has a rig of its own, and the faults of its own world."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

from rtcontrol.bridges.wire.messages import FunctionCall, Hello
from tests.bridges.client.worlds import Process, free_port
from tests.bridges.faults import served
from tests.bridges.faults.table import Row, finish
from tests.bridges.faults.tap import Tap
from tests.conformance.check.stand import Stand

STORM_S = 5.0


class Rig(Protocol):
    """A server, what is driven by it, and the tap between them; `what` names the driven process in the table."""

    what: str
    server: Process
    tap: Tap

    def fly(self, ttl_ms: float = ..., waits: bool = True) -> None:
        """A new flight; `waits`: until it has been driven for two seconds."""

    def land(self) -> None:
        """End the flight as a user does."""

    def close(self) -> None:
        """End everything."""

    def tell(self, line: str) -> None:
        """An order to the world."""

    def process(self) -> psutil.Process:
        """Of what is driven."""

    def until_driven(self, since: float, seconds: float = 90.0) -> float:
        """When it was driven by a call that answers an observation made since."""

    def row(self, fault: str, begin: float, end: float, mended: float | None) -> Row:
        """What happened between two instants; `mended`: what recovery is counted from (None: nothing recovers)."""


R = TypeVar("R", bound=Rig)

# The faults. Their first lines are what `--only` looks into.


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
    rig.until_driven(back)
    return rig.row("server SIGSTOP 2 s", begin, time.monotonic(), back)


def decoder_killed(rig: Rig) -> Row:
    """SIGKILL to the process that decides; the server starts another."""
    begin = served.kill_decoder(rig.server) / 1e9
    rig.until_driven(begin + 1)
    return rig.row("decoder's process killed -9", begin, time.monotonic(), begin)


def link_stalled(rig: Rig) -> Row:
    """300 ms without a byte between it and the server, five times, with a time-to-live of 250 ms."""
    rig.fly(250.0)
    begin = time.monotonic()
    for _ in range(5):
        rig.tap.stall(0.3)
        time.sleep(0.8)
    rig.until_driven(time.monotonic())
    row = rig.row("link stalls 300 ms, five times", begin, time.monotonic(), begin + 0.3)
    row.notes.append(f"{row.expired} calls refused as too old")
    return row


def strangers_storm(rig: Rig) -> Row:
    """Garbage and hellos at the server's socket."""
    storm = served.strangers(rig.server.endpoint, STORM_S + 1)
    time.sleep(1)
    row = through(rig, "strangers flood the server's socket", STORM_S)
    row.notes.append(f"a second: {storm.communicate()[0].strip()}")
    return row


def stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s to what is driven."""
    begin = time.monotonic()
    rig.process().send_signal(signal.SIGSTOP)
    time.sleep(2)
    back = time.monotonic()
    rig.process().send_signal(signal.SIGCONT)
    rig.until_driven(back)
    return rig.row(f"{rig.what} SIGSTOP 2 s", begin, time.monotonic(), back)


def stopped_often(rig: Rig) -> Row:
    """SIGSTOP for 300 ms, thirty times, with a time-to-live of 250 ms: wherever it is stopped, what it does next must
    not be of before."""
    rig.fly(250.0)
    process, begin = rig.process(), time.monotonic()
    for _ in range(30):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        process.send_signal(signal.SIGCONT)
        back = time.monotonic()
        time.sleep(random.uniform(0.2, 0.4))
    rig.until_driven(back)
    return rig.row(f"{rig.what} SIGSTOP 300 ms, thirty times", begin, time.monotonic(), begin + 0.3)


# What faults are made of.


def ill(rig: Rig, fault: str, ill: str, well: str) -> Row:
    """The world is told to be ill for 3 s."""
    begin = time.monotonic()
    rig.tell(ill)
    time.sleep(3)
    back = time.monotonic()
    rig.tell(well)
    rig.until_driven(back)
    return rig.row(fault, begin, time.monotonic(), back)


def through(rig: Rig, fault: str, seconds: float) -> Row:
    """A fault through which it must be driven on."""
    process = rig.process()
    begin, cpu, memory = time.monotonic(), sum(process.cpu_times()[:2]), process.memory_info().rss
    time.sleep(seconds)
    end = time.monotonic()
    cpu, memory = sum(process.cpu_times()[:2]) - cpu, process.memory_info().rss - memory
    row = rig.row(fault, begin, end, None)
    calls = rig.tap.calls(int(begin * 1e9), int(end * 1e9))
    fresh = sum(m.status == "fresh" for _, m in calls)
    used = f"{rig.what} {cpu / seconds:.0%} of a core, {memory / 1e6:+.1f} MB"
    row.notes.append(f"{fresh} of {len(calls)} ticks on time, {used}")
    return row


def calls_storm(rig: Rig, done: Callable[[float, float], int]) -> Row:
    """A server that sends fresh calls as fast as it can for 3 s, each another one, then falls silent; `done`: how much
    was carried out between two instants."""
    rig.land()
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    own, rig.tap = rig.tap, Tap(int(stand.endpoint.rpartition(":")[2]))
    try:
        rig.fly(400.0, waits=False)
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
        stand.pump(2)
        row = rig.row("a server that floods calls 3 s, then is silent", silent, time.monotonic(), None)
        rate = f"{sent / 3:.0f} calls/s, {done(began, silent) / 3:.0f}/s carried out"
        row.notes.append(f"{rate}, {rig.what} {cpu / 3:.0%} of a core")
        return row
    finally:
        rig.land()
        rig.tap.close()
        rig.tap = own
        stand.close()


# The run.


def run(rig: R, faults: Sequence[Callable[[R], Row]], host: str, only: str | None = None) -> list[Row]:
    """The rows of the faults whose name or description has the word. The rig is closed then."""
    rows = []
    try:
        for fault in faults:
            if only is not None and only not in f"{getattr(fault, '__name__', '')} {fault.__doc__}":
                continue
            if fault is decoder_killed and host != "ray":
                continue
            rig.fly()
            rows.append(fault(rig))
            print(rows[-1].cells(), file=sys.stderr, flush=True)
            rig.land()
    finally:
        rig.close()
    return rows


def main(what: str | None, run_in: Callable[[Path, str, str, str | None], list[Row]]) -> int:
    """The command line of a fault run; its exit status."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="faults whose name or description has this word")
    parser.add_argument("--json", type=Path, help="write the findings to this file")
    parser.add_argument("--model", default="", help="of the server (default: the bundled one)")
    parser.add_argument("--host", default="ray", choices=["ray", "inprocess"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = run_in(Path(folder), given.model, given.host, given.only)
    return finish(rows, given.json, model=given.model or "bundled", host=given.host)
