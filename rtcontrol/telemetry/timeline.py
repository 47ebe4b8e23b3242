"""Every tick of a run, in columns: what the trace, the page and the what-ifs are made of."""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any

from rtcontrol.models.call import Call
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
# Of a miss, or of releases skipped before a tick, what no column holds.
DETAILS = ("evidence", "error", "where", "result", "skip_evidence")
# Times between two stamps: the steps of a tick, in order, by the names that the evidence has for them. `received`
# bounds none: a decoder that is busy receives a request when it is not.
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
    """Columns with an entry for each tick, in the order of releases after `finish`.

    `numbers` that are not known are NaN, such `words` empty. `saw` and `details` are of misses, by release. `acts` are
    (seconds, call, why, release) of all that acted, and of each decision that left the active call (why: null); `marks`
    (seconds, text) of all else that happened to the run. What became of a tick is the `account`'s to say.
    """

    def __init__(self) -> None:
        self.account = Account()
        self.k = array("q")
        self.numbers = {name: array("d") for name in (*NUMBERS, *SPANS)}
        self.words: dict[str, list[str]] = {name: [] for name in WORDS}
        self.saw: dict[int, dict[str, Any]] = {}
        self.details: dict[int, dict[str, Any]] = {}
        self.acts: list[tuple[float, str, str, int]] = []
        self.marks: list[tuple[float, str]] = []
        self._undone: set[tuple[int, str]] = set()  # by tick and why: what a client did not carry out
        self._rows: dict[int, int] = {}
        self._observed: dict[int, dict[str, Any]] = {}  # by recent ticks

    @property
    def header(self) -> dict[str, Any]:
        """Return the run's header."""
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
            case "/call":
                self.acts.append((t_s, Call(event["called"], event["arguments"]).text(), event["why"], event["k"]))
            case "/late":
                self._after(event)
            case "/result":
                self._acknowledge(event, self.account.counts["misses"] > misses)
            case topic if (mark := _mark(topic, event)) is not None:
                self.marks.append((event["host_event"]["t_s"] if topic == "/host" else t_s, mark))

    def finish(self) -> Timeline:
        """Put everything in order, after the last event. Twice does no harm."""
        rows = sorted(range(len(self.k)), key=self.k.__getitem__)
        if rows != [*range(len(rows))]:
            self.k = array("q", (self.k[row] for row in rows))
            self.numbers = {name: array("d", (c[row] for row in rows)) for name, c in self.numbers.items()}
            self.words = {name: [c[row] for row in rows] for name, c in self.words.items()}
            self._rows = {k: row for row, k in enumerate(self.k)}
        active, acts = "", sorted(act for act in self.acts if (act[3], _of_tick(act[2])) not in self._undone)
        self.acts = [(t_s, active := call or active, why, k) for t_s, call, why, k in acts]
        self.marks.sort()
        return self

    def stage_ms(self, row: int, stage: str) -> float:
        """Return how long a stage took, NaN where a stamp is missing; 0 where a quick decoder started before the loop
        was back from handing over."""
        start, end = STAGES[stage]
        ms = self.numbers[end][row] - (self.numbers[start][row] if start is not None else 0.0)
        return 0.0 if ms < 0 else ms

    def instead(self, row: int) -> Iterator[tuple[str, str, float]]:
        """Yield what acted instead of a missed tick's call: (call, why, ms), from its deadline to the next fresh or
        late call, or null decision; why is `held` for what was active then. The last one's ms is NaN where the run
        ended in it."""
        end_s = self.numbers["t_s"][row] + self.header.get("deadline_ms", 0.0) / 1e3
        i = bisect_right(self.acts, end_s, key=itemgetter(0))
        before = "not in the record" if self.account.extent.first_k else "nothing yet"
        now = (end_s, self.acts[i - 1][1], "held") if i else (end_s, "", before)
        for t_s, call, why, _ in islice(self.acts, i, None):
            yield now[1], now[2], 1e3 * (t_s - now[0])
            if why != "safe":
                return
            now = t_s, call, why
        yield now[1], now[2], MISSING

    def _tick(self, event: Mapping[str, Any]) -> None:
        k = event["k"]
        row = self._rows[k] = len(self.k)
        self.k.append(k)
        for column in self.numbers.values():
            column.append(MISSING)
        for name, words in self.words.items():
            words.append(sys.intern(event.get(name) or ""))
        self._write(row, event, NUMBERS)
        if event["kind"] == "null":
            self.acts.append((event["t_s"] + (event.get("latency_ms") or 0.0) / 1e3, "", "null", k))
        if "cause" in event and k in self._observed:
            self.saw[k] = self._observed.pop(k)
        self._detail(k, event)

    def _missed(self, k: int) -> bool:
        return k in self._rows and bool(self.words["cause"][self._rows[k]])

    def _acknowledge(self, event: Mapping[str, Any], missed: bool) -> None:
        """Take a client's result of a call, by which its tick `missed`, or did not."""
        k, why = event["ack"], "further" if event.get("n") else _of_tick(event.get("why", "fresh"))
        if event["status"] != "executed":
            self._undone.add((k, why))
        if missed:
            self.words["cause"][self._rows[k]] = "execute"
            self.words["subcause"][self._rows[k]] = event["status"]
            if k in self._observed:
                self.saw[k] = self._observed.pop(k)
        if why == "fresh":
            self._detail(k, event)

    def _after(self, event: Mapping[str, Any]) -> None:
        """Take a late decision, or the end of a call that overran; a call that waited for a yes was in time."""
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
        """Keep it where its tick misses, which may be known before or after it."""
        k, seen = event["k"], {name: event[name] for name in ("observation", "instruction", "history") if name in event}
        if self._missed(k):
            self.saw[k] = seen
            return
        self._observed[k] = seen
        if len(self._observed) > REMEMBERED:
            del self._observed[next(iter(self._observed))]


def _of_tick(why: str) -> str:
    """Return which of a tick's calls a client's result is about, by why it acted."""
    return why if why in ("safe", "further") else "fresh"


# Of what else happens to a run, by topic: the fields that say it.
MARKS = {
    "/people": ("people", "by", "call"),
    "/instruction": ("refused", "instruction"),
    "/understood": ("said", "understood", "not_understood"),
    "/fault": ("fault", "error"),
    "/log": ("log",),
}


def _mark(topic: str, event: Mapping[str, Any]) -> str | None:
    """Return what an event says happened to the run, apart from ticks and calls; None for nothing."""
    if topic == "/host":
        return f"{decoder(event['host_event'])} {event['host_event']['event']}"
    if topic == "/episode":
        return "an episode ended"
    if topic == "/safe":
        return f"safe call, because of {event['why']}" if event.get("attempt", 1) == 1 else None
    values = [str(event[name]) for name in MARKS.get(topic, ()) if event.get(name)]
    return f"{topic[1:]}: {', '.join(values)}" if values else None
