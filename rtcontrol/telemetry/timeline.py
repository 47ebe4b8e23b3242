"""Every tick of a run in columns, as a source for the trace, the HTML page and what-if."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from rtcontrol.telemetry.account import REMEMBERED, Account
from rtcontrol.telemetry.events import topic_of
from rtcontrol.telemetry.report import decoder

SPANS = (
    *("captured", "woke", "text", "submitted", "received"),
    *("begun", "decided", "replied", "executing", "executed"),
)
TIMES_MS = ("wake_ms", "latency_ms", "decide_ms", "age_ms", "execute_ms", "jitter_ms")
NUMBERS = ("t_s", *TIMES_MS, "confidence", "skipped")
WORDS = ("kind", "cause", "subcause", "why", "action", "call", "skip_cause", "skip_subcause", "decided_by")
# Fields of a miss, or of skipped releases, that no column has.
DETAILS = ("evidence", "error", "where", "result", "skip_evidence")
# Times between two stamps: the steps of a tick in order, with the names in the evidence. `received` bounds no step,
# since a busy decoder receives a request only later.
STAGES = {
    "wake": (None, "woke"),
    "observe": ("woke", "text"),
    "send": ("text", "submitted"),
    "queue": ("submitted", "begun"),
    "decide": ("begun", "decided"),
    "deliver": ("decided", "replied"),
    "wait": ("replied", "executing"),
    "execute": ("executing", "executed"),
}
MISSING = math.nan


class Timeline:
    """A table in columns, with an entry for each tick, in the order of releases after `finish`.

    Unknown `numbers` are NaN, unknown `words` empty. `saw` and `details` describe misses, by release. `marks` are
    (seconds, text) of all other events of the run. The `account` counts the outcomes of ticks.
    """

    def __init__(self) -> None:
        self.account = Account()
        self.k = array("q")
        self.numbers = {name: array("d") for name in (*NUMBERS, *SPANS)}
        self.words: dict[str, list[str]] = {name: [] for name in WORDS}
        self.saw: dict[int, dict[str, Any]] = {}
        self.details: dict[int, dict[str, Any]] = {}
        self.marks: list[tuple[float, str]] = []
        self._rows: dict[int, int] = {}
        self._observed: dict[int, dict[str, Any]] = {}  # observations of recent ticks

    @property
    def header(self) -> dict[str, Any]:
        """Return the header of the run."""
        return self.account.header

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the next event of the record."""
        misses = self.account.counts["misses"]
        self.account.add(event)
        t_s = event.get("t_s", self.account.extent.last_t_s)
        match topic_of(event):
            case "/observation":
                self._observation(event)
            case "/tick":
                self._tick(event)
            case "/late":
                self._after(event)
            case "/result" if self.account.counts["misses"] > misses:
                self._failed(event)
            case topic if (mark := _mark(topic, event)) is not None:
                self.marks.append((event["host_event"]["t_s"] if topic == "/host" else t_s, mark))

    def finish(self) -> Timeline:
        """Sort the ticks after the last event. May be called twice."""
        rows = sorted(range(len(self.k)), key=self.k.__getitem__)
        if rows != [*range(len(rows))]:
            self.k = array("q", (self.k[row] for row in rows))
            self.numbers = {name: array("d", (c[row] for row in rows)) for name, c in self.numbers.items()}
            self.words = {name: [c[row] for row in rows] for name, c in self.words.items()}
            self._rows = {k: row for row, k in enumerate(self.k)}
        self.marks.sort()
        return self

    def stage_ms(self, row: int, stage: str) -> float:
        """Return how long a stage took: NaN if a stamp is missing, 0 if a quick decoder started before the loop's
        hand-over returned."""
        start, end = STAGES[stage]
        ms = self.numbers[end][row] - (self.numbers[start][row] if start is not None else 0.0)
        return 0.0 if ms < 0 else ms

    def _tick(self, event: Mapping[str, Any]) -> None:
        k = event["k"]
        row = self._rows[k] = len(self.k)
        self.k.append(k)
        for column in self.numbers.values():
            column.append(MISSING)
        for name, words in self.words.items():
            words.append(sys.intern(event.get(name) or ""))
        self._write(row, event, NUMBERS)
        if "cause" in event and k in self._observed:
            self.saw[k] = self._observed.pop(k)
        self._detail(k, event)

    def _missed(self, k: int) -> bool:
        return k in self._rows and bool(self.words["cause"][self._rows[k]])

    def _failed(self, event: Mapping[str, Any]) -> None:
        """Mark the tick of a call that the client did not execute as missed."""
        k = event["ack"]
        self.words["cause"][self._rows[k]] = "execute"
        self.words["subcause"][self._rows[k]] = event["status"]
        if k in self._observed:
            self.saw[k] = self._observed.pop(k)
        self._detail(k, event)

    def _after(self, event: Mapping[str, Any]) -> None:
        """Add a late decision, or the end of a call that overran its deadline. A confirmed call was in time."""
        k = event.get("late", event.get("overran", -1))
        if self._missed(k):
            self._write(self._rows[k], event, ("latency_ms", "decide_ms", "execute_ms"))
            self._detail(k, event)

    def _write(self, row: int, event: Mapping[str, Any], names: tuple[str, ...]) -> None:
        for values, known in ((event, names), (event.get("spans_ms", {}), SPANS)):
            for name in known:
                if (value := values.get(name)) is not None:
                    self.numbers[name][row] = value

    def _detail(self, k: int, event: Mapping[str, Any]) -> None:
        details = {name: event[name] for name in DETAILS if name in event}
        if details and k in self._rows and (self._missed(k) or "skip_evidence" in details):
            self.details.setdefault(k, {}).update(details)

    def _observation(self, event: Mapping[str, Any]) -> None:
        """Keep an observation if its tick misses, which may become known before or after the observation."""
        k, seen = event["k"], {name: event[name] for name in ("observation", "instruction", "history") if name in event}
        if self._missed(k):
            self.saw[k] = seen
            return
        self._observed[k] = seen
        if len(self._observed) > REMEMBERED:
            del self._observed[next(iter(self._observed))]


# Fields that describe other events of a run, by topic.
MARKS = {
    "/people": ("people", "by", "call"),
    "/instruction": ("refused", "instruction"),
    "/understood": ("said", "understood", "not_understood"),
    "/fault": ("fault", "error"),
    "/log": ("log",),
}


def _mark(topic: str, event: Mapping[str, Any]) -> str | None:
    """Return the text of an event other than ticks and calls, or None if there is nothing to show."""
    if topic == "/host":
        return f"{decoder(event['host_event'])} {event['host_event']['event']}"
    if topic == "/episode":
        return "an episode ended"
    if topic == "/safe":
        return f"safe call, because of {event['why']}" if event.get("attempt", 1) == 1 else None
    values = [str(event[name]) for name in MARKS.get(topic, ()) if event.get(name)]
    return f"{topic[1:]}: {', '.join(values)}" if values else None
