"""Store the ticks of a run in columns, for the Perfetto trace, the HTML page and what-if estimates."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from rtcontrol.telemetry.account import ACK_WINDOW, Account
from rtcontrol.telemetry.events import topic_of
from rtcontrol.telemetry.report import decoder_name

SPANS = (
    *("captured", "woke", "text", "submitted", "received"),
    *("begun", "decided", "replied", "executing", "executed"),
)
TIMES_MS = ("wake_ms", "latency_ms", "decide_ms", "age_ms", "execute_ms", "jitter_ms")
NUMBERS = ("t_s", *TIMES_MS, "confidence", "skipped")
WORDS = ("kind", "cause", "subcause", "why", "action", "call", "skip_cause", "skip_subcause", "decided_by")
# `Timeline.details` stores these fields of missed ticks and skipped releases, which have no columns.
DETAILS = ("evidence", "error", "where", "result", "skip_evidence")
# By stage of a tick, in order: (timestamp at its start, or None for the release; timestamp at its end).
# Evidence has the same names. The timestamp `received` is not used, because a busy decoder receives a request late.
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
    """A table with a row per tick, stored in columns. `finish` sorts the rows by release.

    A missing value is NaN in `numbers`, and empty in `words`. By number of a missed tick: `observations` has its
    observation, `details` its evidence. `marks` has (seconds, text) of other events. `account` counts all events.
    """

    def __init__(self) -> None:
        self.account = Account()
        self.k = array("q")
        self.numbers = {name: array("d") for name in (*NUMBERS, *SPANS)}
        self.words: dict[str, list[str]] = {name: [] for name in WORDS}
        self.observations: dict[int, dict[str, Any]] = {}
        self.details: dict[int, dict[str, Any]] = {}
        self.marks: list[tuple[float, str]] = []
        self._rows: dict[int, int] = {}
        self._observed: dict[int, dict[str, Any]] = {}  # by recent tick, which may still miss: its observation

    @property
    def header(self) -> dict[str, Any]:
        """Return the header, which is the first event of the record."""
        return self.account.header

    def add(self, event: Mapping[str, Any]) -> None:
        """Count the next event of the record, and store its tick."""
        misses = self.account.counts["misses"]
        self.account.add(event)
        t_s = event.get("t_s", self.account.tick_range.last_t_s)
        match topic_of(event):
            case "/observation":
                self._add_observation(event)
            case "/tick":
                self._add_tick(event)
            case "/late":
                self._add_late_result(event)
            case "/result" if self.account.counts["misses"] > misses:
                self._add_client_failure(event)
            case topic if (mark := _mark_text(topic, event)) is not None:
                self.marks.append((event["host_event"]["t_s"] if topic == "/host" else t_s, mark))

    def finish(self) -> Timeline:
        """Sort the rows by release, after the last event was added. May be called twice."""
        rows = sorted(range(len(self.k)), key=self.k.__getitem__)
        if rows != [*range(len(rows))]:
            self.k = array("q", (self.k[row] for row in rows))
            self.numbers = {name: array("d", (c[row] for row in rows)) for name, c in self.numbers.items()}
            self.words = {name: [c[row] for row in rows] for name, c in self.words.items()}
            self._rows = {k: row for row, k in enumerate(self.k)}
        self.marks.sort()
        return self

    def stage_ms(self, row: int, stage: str) -> float:
        """Return the duration of a stage in ms, or NaN if a time stamp is missing. It is 0 if the stamps are in reverse
        order, because the decoder may start before the loop takes the stamp `submitted`."""
        start, end = STAGES[stage]
        ms = self.numbers[end][row] - (self.numbers[start][row] if start is not None else 0.0)
        return 0.0 if ms < 0 else ms

    def _add_tick(self, event: Mapping[str, Any]) -> None:
        k = event["k"]
        row = self._rows[k] = len(self.k)
        self.k.append(k)
        for column in self.numbers.values():
            column.append(MISSING)
        for name, words in self.words.items():
            words.append(sys.intern(event.get(name) or ""))
        self._set_numbers(row, event, NUMBERS)
        if "cause" in event and k in self._observed:
            self.observations[k] = self._observed.pop(k)
        self._add_details(k, event)

    def _is_missed(self, k: int) -> bool:
        return k in self._rows and bool(self.words["cause"][self._rows[k]])

    def _add_client_failure(self, event: Mapping[str, Any]) -> None:
        """Mark a tick as missed, because the client did not execute its call."""
        k = event["ack"]
        self.words["cause"][self._rows[k]] = "execute"
        self.words["subcause"][self._rows[k]] = event["status"]
        if k in self._observed:
            self.observations[k] = self._observed.pop(k)
        self._add_details(k, event)

    def _add_late_result(self, event: Mapping[str, Any]) -> None:
        """Add the times of a decision or an execution that ended after the deadline of its missed tick."""
        k = event.get("late", event.get("overran", -1))
        if self._is_missed(k):
            self._set_numbers(self._rows[k], event, ("latency_ms", "decide_ms", "execute_ms"))
            self._add_details(k, event)

    def _set_numbers(self, row: int, event: Mapping[str, Any], names: tuple[str, ...]) -> None:
        for values, known in ((event, names), (event.get("spans_ms", {}), SPANS)):
            for name in known:
                if (value := values.get(name)) is not None:
                    self.numbers[name][row] = value

    def _add_details(self, k: int, event: Mapping[str, Any]) -> None:
        details = {name: event[name] for name in DETAILS if name in event}
        if details and k in self._rows and (self._is_missed(k) or "skip_evidence" in details):
            self.details.setdefault(k, {}).update(details)

    def _add_observation(self, event: Mapping[str, Any]) -> None:
        """Store the observation of a missed tick. The miss may be recorded before or after the observation."""
        k, names = event["k"], ("observation", "instruction", "history")
        observation = {name: event[name] for name in names if name in event}
        if self._is_missed(k):
            self.observations[k] = observation
            return
        self._observed[k] = observation
        if len(self._observed) > ACK_WINDOW:
            del self._observed[next(iter(self._observed))]


# By topic of an event: the fields that its mark shows.
MARKS = {
    "/people": ("people", "by", "call"),
    "/instruction": ("instruction",),
    "/understood": ("said", "understood", "not_understood"),
    "/fault": ("fault", "error"),
    "/log": ("log",),
}


def _mark_text(topic: str, event: Mapping[str, Any]) -> str | None:
    """Return the text of an event for a mark in the timeline, or None if the event has no mark."""
    if topic == "/host":
        return f"{decoder_name(event['host_event'])} {event['host_event']['event']}"
    if topic == "/episode":
        return "an episode ended"
    if topic == "/safe":
        return f"safe call, because of {event['why']}" if event.get("attempt", 1) == 1 else None
    if "refused" in event and topic == "/instruction":
        return f"instruction refused: {event['refused']}; active again: {event['instruction']}"
    values = [str(event[name]) for name in MARKS.get(topic, ()) if event.get(name)]
    return f"{topic[1:]}: {', '.join(values)}" if values else None
