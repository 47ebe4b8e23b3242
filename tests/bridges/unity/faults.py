"""The fault list of the Unity client: `python -m tests.bridges.unity.faults [--only WORD] [--json FILE]`.

Real server (Ray host, bundled model), the shipped C# under Mono with a frame loop in place of the engine; one fault
after another. Times of acts are the game's own, in the frame that carried them out; calls and observations as they pass
a tap between game and server. The exit status is 1 where a call was executed too old.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rtcontrol.bridges.client.check.stand import Stand
from rtcontrol.bridges.wire.messages import FunctionCall, Hello
from tests.bridges.client.worlds import free_port
from tests.bridges.faults import served
from tests.bridges.faults.table import Row, finish
from tests.bridges.faults.tap import Tap
from tests.bridges.unity.mono import MISSING, REASON
from tests.bridges.unity.rig import Rig

STORM_S = 5.0


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
    rig.until_called(back)
    return rig.row("server SIGSTOP 2 s", begin, time.monotonic(), back)


def decoder_killed(rig: Rig) -> Row:
    """SIGKILL to the process that decides; the server starts another."""
    begin = served.kill_decoder(rig.server) / 1e9
    rig.until_called(begin + 1)
    return rig.row("decoder's process killed -9", begin, time.monotonic(), begin)


def game_killed(rig: Rig) -> Row:
    """SIGKILL; started again after 2 s."""
    assert rig.game is not None
    begin = time.monotonic()
    rig.game.end()
    time.sleep(0.1)
    row = rig.row("game killed -9, started again after 2 s", begin, time.monotonic(), None)
    time.sleep(1.9)
    back = time.monotonic()
    rig.start_game()
    row.recovered_ms = 1e3 * (rig.until_called(back) - back)
    row.did = "ends with its process"
    row.notes.append("a new session")
    return row


def game_stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s."""
    begin = time.monotonic()
    rig.process().send_signal(signal.SIGSTOP)
    time.sleep(2)
    back = time.monotonic()
    rig.process().send_signal(signal.SIGCONT)
    rig.until_called(back)
    row = rig.row("game SIGSTOP 2 s", begin, time.monotonic(), back)
    row.notes.append("nothing of it goes on meanwhile")
    return row


def game_stopped_often(rig: Rig) -> Row:
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
    rig.until_called(back)
    return rig.row("game SIGSTOP 300 ms, thirty times", begin, time.monotonic(), begin + 0.3)


def frame_stalled(rig: Rig) -> Row:
    """A frame of 300 ms, ten times, with a time-to-live of 250 ms."""
    rig.fly(250.0)
    begin = time.monotonic()
    for _ in range(10):
        rig.tell("stall 300")
        time.sleep(random.uniform(0.5, 0.7))
    rig.until_called(time.monotonic())
    return rig.row("a frame takes 300 ms, ten times", begin, time.monotonic(), begin + 0.3)


def observations_storm(rig: Rig) -> Row:
    """2,000 observations a second."""
    before = rig.stats()["observed"]
    rig.tell("rate 2000")
    row = _through(rig, "2,000 observations a second", STORM_S)
    rig.tell("rate 16")
    row.notes.append(f"{(rig.stats()['observed'] - before) / STORM_S:.0f} a second")
    return row


def strangers_storm(rig: Rig) -> Row:
    """Garbage and hellos at the server's socket."""
    storm = served.strangers(rig.server.endpoint, STORM_S + 1)
    time.sleep(1)
    row = _through(rig, "strangers flood the server's socket", STORM_S)
    row.notes.append(f"a second: {storm.communicate()[0].strip()}")
    return row


def calls_storm(rig: Rig) -> Row:
    """A server that sends fresh calls as fast as it can for 3 s, each another one, then falls silent."""
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
        done = sum(e["event"] == "call" for e in rig.events)
        row.notes.append(f"{sent / 3:.0f} calls/s, {done / 3:.0f}/s carried out, game {cpu / 3:.0%} of a core")
        return row
    finally:
        rig.land()
        rig.tap.close()
        rig.tap = own
        stand.close()


def observations_silent(rig: Rig) -> Row:
    """Nothing is observed for 3 s."""
    return _unobserved(rig, "no observation for 3 s", "rate 0", "rate 16")


def observations_nan(rig: Rig) -> Row:
    """Observations with NaN for 3 s."""
    return _unobserved(rig, "observations with NaN for 3 s", "nan", "text")


def link_stalled(rig: Rig) -> Row:
    """300 ms without a byte between game and server, five times, with a time-to-live of 250 ms."""
    rig.fly(250.0)
    begin = time.monotonic()
    for _ in range(5):
        rig.tap.stall(0.3)
        time.sleep(0.8)
    rig.until_called(time.monotonic())
    row = rig.row("link stalls 300 ms, five times", begin, time.monotonic(), begin + 0.3)
    row.notes.append(f"{row.expired} calls refused as too old")
    return row


def _unobserved(rig: Rig, fault: str, ill: str, well: str) -> Row:
    begin = time.monotonic()
    rig.tell(ill)
    time.sleep(3)
    back = time.monotonic()
    rig.tell(well)
    rig.until_called(back)
    return rig.row(fault, begin, time.monotonic(), back)


def _through(rig: Rig, fault: str, seconds: float) -> Row:
    """A fault through which the game must be driven on."""
    process = rig.process()
    begin, cpu, memory = time.monotonic(), sum(process.cpu_times()[:2]), process.memory_info().rss
    time.sleep(seconds)
    end = time.monotonic()
    cpu, memory = sum(process.cpu_times()[:2]) - cpu, process.memory_info().rss - memory
    row = rig.row(fault, begin, end, None)
    calls = rig.tap.calls(int(begin * 1e9), int(end * 1e9))
    fresh = sum(m.status == "fresh" for _, m in calls)
    row.notes.append(
        f"{fresh} of {len(calls)} ticks on time, game {cpu / seconds:.0%} of a core, {memory / 1e6:+.1f} MB"
    )
    return row


FAULTS: list[Callable[[Rig], Row]] = [
    server_stopped,
    decoder_killed,
    game_killed,
    game_stopped,
    game_stopped_often,
    frame_stalled,
    observations_storm,
    strangers_storm,
    calls_storm,
    observations_silent,
    observations_nan,
    link_stalled,
    server_killed,
]


def run(folder: Path, model: str, host: str, only: str | None = None) -> list[Row]:
    """The rows of the faults whose description has the word."""
    chosen = [f for f in FAULTS if only is None or only in f"{getattr(f, '__name__', '')} {f.__doc__}"]
    rig, rows = Rig(folder, model, host), []
    try:
        for fault in chosen:
            if fault is decoder_killed and host != "ray":
                continue
            rig.fly()
            rows.append(fault(rig))
            print(rows[-1].cells(), file=sys.stderr, flush=True)
            rig.land()
    finally:
        rig.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="faults whose name or description has this word")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", default="", help="of the server (default: the bundled one)")
    parser.add_argument("--host", default="ray", choices=["ray", "inprocess"])
    given = parser.parse_args()
    if MISSING:
        print(REASON, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        rows = run(Path(folder), given.model, given.host, given.only)
    return finish(rows, given.json, model=given.model or "bundled", host=given.host)


if __name__ == "__main__":
    sys.exit(main())
