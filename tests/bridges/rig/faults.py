"""The faults of the server, of the link and of what is driven, and the run of a bridge's list of them."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from rtcontrol_client.wire.messages import FunctionCall, Hello
from tests.bridges.rig.base import Rig, Row, stall, strangers
from tests.bridges.rig.tap import Tap
from tests.conformance.check.stand import Stand
from tests.helpers.processes import free_port

STORM_S = 5.0
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
    back = stall(rig.deciding(), 2)
    rig.until_driven(back)
    return rig.row("server SIGSTOP 2 s", begin, time.monotonic(), back)


def decoder_killed(rig: Rig) -> Row:
    """SIGKILL to the process that decides; the server starts another."""
    begin = time.monotonic()
    rig.decider().send_signal(signal.SIGKILL)
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
    storm = strangers(rig.door(), STORM_S + 1)
    time.sleep(1)
    row = through(rig, "strangers flood the server's socket", STORM_S)
    row.notes.append(f"a second: {storm.communicate()[0].strip()}")
    return row


def stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s to what is driven."""
    begin = time.monotonic()
    back = stall(rig.process(), 2)
    rig.until_driven(back)
    return rig.row(f"{rig.what} SIGSTOP 2 s", begin, time.monotonic(), back)


def stopped_often(rig: Rig) -> Row:
    """SIGSTOP for 300 ms, thirty times, with a time-to-live of 250 ms: wherever it is stopped, what it does next must
    not be of before."""
    rig.fly(250.0)
    process, begin = rig.process(), time.monotonic()
    for _ in range(30):
        back = stall(process, 0.3)
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
    used = f"{rig.what} {cpu / seconds:.0%} of a core, {memory / 1e6:+.1f} MB"
    row.notes.append(f"{rig.on_time(begin, end)}, {used}")
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


def run(rig: Rig, only: str = "") -> list[Row]:
    """The rows of the rig's faults whose name or description has the word. The rig is closed then."""
    rows = []
    try:
        for fault in rig.faults:
            if only not in f"{getattr(fault, '__name__', '')} {fault.__doc__}":
                continue
            if fault is decoder_killed and "inprocess" in rig.options:
                continue
            rig.fly()
            row = fault(rig)
            rig.land()
            rows.append(rig.told(row))
            print(rows[-1].cells(), file=sys.stderr, flush=True)
    finally:
        rig.close()
    return rows
