"""The rig of the fault run: server, tap and the C# client as a game without an engine, and what is read off them."""

from __future__ import annotations

import json
import queue
import time
from pathlib import Path
from typing import Any

import psutil

from rtcontrol.bridges.wire.messages import Observe
from tests.bridges.client.worlds import free_port, until
from tests.bridges.faults import served
from tests.bridges.faults.table import Row
from tests.bridges.faults.tap import Tap
from tests.bridges.unity.mono import HERE, Driver, compile_cs, core_sources

TTL_MS = 500.0


class Rig:
    """One server for all faults (it takes long to start), a new game for each. Its events are in `events`; times in
    them are of the game's own clock, in ms."""

    what = "game"

    def __init__(self, folder: Path, model: str, host: str) -> None:
        self._exe = folder / "driver.exe"
        said = compile_cs(self._exe, core_sources() + list((HERE / "driver").glob("*.cs")))
        assert self._exe.exists(), said
        port = free_port()
        self.server = served.server(folder, port, model, host)
        self.server.start()
        self.tap = Tap(port)
        self.game: Driver | None = None
        self.events: list[dict[str, Any]] = []
        self.ttl_ms = TTL_MS

    def fly(self, ttl_ms: float = TTL_MS, waits: bool = True) -> None:
        """A new game, and two seconds of play."""
        self.land()
        self.ttl_ms = ttl_ms
        self.start_game()
        if waits:
            self.until_driven(time.monotonic(), 30)
            time.sleep(2)

    def start_game(self) -> None:
        # Another process has another clock: what was said before counts no more.
        self.events, self.tap.said = [], []
        given = ["--endpoint", self.tap.endpoint, "--ttl-ms", f"{self.ttl_ms:g}", "--wheels", "1", "--persist", "1"]
        self.game = Driver(self._exe, "run", *given)

    def land(self) -> None:
        if self.game is not None:
            if self.game.process.poll() is None:
                self.game.say("close")
                self.game.process.wait(20)
            self.game.end()

    def tell(self, line: str) -> None:
        assert self.game is not None
        self.game.say(line)

    def process(self) -> psutil.Process:
        assert self.game is not None
        return psutil.Process(self.game.process.pid)

    def close(self) -> None:
        if self.game is not None:
            self.game.end()
        self.tap.close()
        self.server.stop()

    def stats(self) -> dict[str, Any]:
        told = sum(e["event"] == "stats" for e in self.heard())
        self.tell("stats")
        until(lambda: sum(e["event"] == "stats" for e in self.heard()) > told, "the game says nothing", 10)
        stats: dict[str, Any] = next(e["stats"] for e in reversed(self.events) if e["event"] == "stats")
        return stats

    def heard(self) -> list[dict[str, Any]]:
        """All events so far."""
        assert self.game is not None
        try:
            while True:
                self.events.append(json.loads(self.game._lines.get_nowait()))
        except queue.Empty:
            return self.events

    def game_ms(self, instant: float) -> float:
        """An instant of our clock, in s, on the game's: the observation that came fastest tells the difference."""
        ways = [s.t_ns - s.message.t_ns for s in list(self.tap.said) if isinstance(s.message, Observe)]
        return instant * 1e3 - min(ways) / 1e6

    def until_driven(self, since: float, seconds: float = 90.0) -> float:
        """When (our clock) the game carried out a call upon an observation made since."""
        found: list[float] = []

        def called() -> bool:
            time.sleep(0.05)
            if any(isinstance(s.message, Observe) for s in list(self.tap.said)):
                mark = self.game_ms(since)
                calls = [e for e in self.heard() if e["event"] == "call" and e["at_ms"] - e["age_ms"] >= mark]
                found.extend(since + (e["at_ms"] - mark) / 1e3 for e in calls)
            return bool(found)

        until(called, "the game is not driven on", seconds)
        return found[0]

    # Reading off.

    def row(self, fault: str, begin: float, end: float, mended: float | None) -> Row:
        """The row of a fault between two instants; `mended`: what recovery is counted from (None: nothing recovers)."""
        mark, until_ms = self.game_ms(begin), self.game_ms(end)
        acts = [e for e in self.heard() if e["event"] in ("call", "safe") and e["at_ms"] < until_ms]
        row = Row(fault, self.ttl_ms)
        row.too_old = sum(e["age_ms"] > self.ttl_ms for e in acts if e["event"] == "call")
        row.expired = sum(o.outcome == "expired" for o in self.tap.outcomes(int(begin * 1e9)))
        safe = next((e for e in acts if e["event"] == "safe" and e["at_ms"] >= mark), None)
        calls = [e for e in acts if e["event"] == "call" and (safe is None or e["at_ms"] <= safe["at_ms"])]
        if calls:
            row.last, row.last_ms = calls[-1]["name"], calls[-1]["at_ms"] - mark
        if safe is not None:
            row.safe_ms = safe["at_ms"] - mark
            at = begin + (safe["at_ms"] - mark) / 1e3
            came = [m for _, m in self.tap.calls(0, int(at * 1e9)) if m.status == "fresh"]
            row.age_ms = safe["at_ms"] - max(m.t_obs_ns or 0 for m in came) / 1e6
            row.notes.append(f"safe: {safe['cause']}")
        self._found(row, begin, end, mark)
        if mended is not None:
            row.recovered_ms = 1e3 * (self.until_driven(mended) - mended)
        return row

    def _found(self, row: Row, begin: float, end: float, mark: float) -> None:
        signs = [
            (1e3 * (t / 1e9 - begin), f"the server: {m.status} ({m.cause})")
            for t, m in self.tap.calls(int(begin * 1e9), int(end * 1e9))
            if m.status != "fresh"
        ][:1]
        for event in self.events:
            if event["event"] in ("unsent", "safe", "lost") and event["at_ms"] >= mark:
                told = {"lost": "connection lost", "safe": f"safe ({event.get('cause')})"}
                signs.append((event["at_ms"] - mark, told.get(event["event"]) or event["why"]))
        if signs:
            row.found_ms, row.found = min(signs)
