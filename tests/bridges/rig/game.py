"""Rigs of games: what a game carries out it tells as JSON lines.

Acts are timed by the game's own clock, in the frame that carried them out; calls and observations as they pass the tap.
"""

from __future__ import annotations

import json
import queue
import random
import time
from abc import abstractmethod
from typing import Any

import psutil

from rtcontrol_client.wire.messages import Observe
from tests.bridges.program import Program
from tests.bridges.rig import base
from tests.bridges.rig import faults as general
from tests.bridges.rig.base import Row


class GameRig(base.Rig):
    """The game's events are in `events`; times in them are of its own clock, in ms."""

    what = "game"

    def open(self) -> None:
        super().open()
        self.game: Program | None = None
        self.events: list[dict[str, Any]] = []

    @abstractmethod
    def begun(self) -> Program:
        """A new game."""

    def plain(self, event: dict[str, Any]) -> dict[str, Any]:
        """What it tells, as `call`, `safe` (both with name, age_ms and at_ms), `lost` or `unsent`."""
        return event

    def start(self) -> None:
        # Another process has another clock: what was said before counts no more.
        self.events, self.tap.said = [], []
        self.game = self.begun()

    def tell(self, line: str) -> None:
        assert self.game is not None
        self.game.say(line)

    def process(self) -> psutil.Process:
        assert self.game is not None
        return psutil.Process(self.game.process.pid)

    def heard(self) -> list[dict[str, Any]]:
        """All events so far."""
        assert self.game is not None
        try:
            while True:
                self.events.append(self.plain(json.loads(self.game._lines.get_nowait())))
        except queue.Empty:
            return self.events

    def game_ms(self, instant: float) -> float:
        """An instant of our clock, in s, on the game's: the observation that came fastest tells the difference."""
        ways = [s.t_ns - s.message.t_ns for s in list(self.tap.said) if isinstance(s.message, Observe)]
        return instant * 1e3 - min(ways) / 1e6

    def driven(self, since: float) -> float | None:
        if not any(isinstance(s.message, Observe) for s in list(self.tap.said)):
            return None
        mark = self.game_ms(since)
        calls = [e for e in self.heard() if e["event"] == "call" and e["at_ms"] - e["age_ms"] >= mark]
        return since + (calls[0]["at_ms"] - mark) / 1e3 if calls else None

    # Reading off.

    def row(self, fault: str, begin: float, end: float, mended: float | None) -> Row:
        mark, until_ms = self.game_ms(begin), self.game_ms(end)
        acts = [e for e in self.heard() if e["event"] in ("call", "safe") and e["at_ms"] < until_ms]
        row = Row(fault, self.ttl_ms)
        row.too_old = sum(e["age_ms"] > self.ttl_ms for e in acts if e["event"] == "call")
        row.expired = self.expired(begin)
        safe = next((e for e in acts if e["event"] == "safe" and e["at_ms"] >= mark), None)
        # One that is safe already, on a machine that starved the server, does not become so by the fault.
        if [e["event"] for e in acts if e["at_ms"] < mark][-1:] == ["safe"]:
            row.notes.append("the safe call was in force before")
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
        signs = [(1e3 * (t - begin), told) for t, told in self.missed(begin, end)]
        for event in self.events:
            if event["event"] in ("unsent", "safe", "lost") and event["at_ms"] >= mark:
                told = {"lost": "connection lost", "safe": f"safe ({event.get('cause')})"}
                signs.append((event["at_ms"] - mark, told.get(event["event"]) or event["why"]))
        if signs:
            row.found_ms, row.found = min(signs)


# The faults of games.


def game_killed(rig: GameRig) -> Row:
    """SIGKILL; started again after 2 s."""
    assert rig.game is not None
    begin = time.monotonic()
    rig.game.end()
    time.sleep(0.1)
    row = rig.row("game killed -9, started again after 2 s", begin, time.monotonic(), None)
    time.sleep(1.9)
    back = time.monotonic()
    rig.start()
    row.recovered_ms = 1e3 * (rig.until_driven(back) - back)
    row.did = "ends with its process"
    row.notes.append("a new session")
    return row


def game_stopped(rig: GameRig) -> Row:
    """SIGSTOP for 2 s to the game."""
    row = general.stopped(rig)
    row.notes.append("nothing of it goes on meanwhile")
    return row


def frame_stalled(rig: GameRig) -> Row:
    """A frame of 300 ms, ten times, with a time-to-live of 250 ms."""
    rig.fly(250.0)
    begin = time.monotonic()
    for _ in range(10):
        rig.tell("stall 300")
        time.sleep(random.uniform(0.5, 0.7))
    rig.until_driven(time.monotonic())
    return rig.row("a frame takes 300 ms, ten times", begin, time.monotonic(), begin + 0.3)
