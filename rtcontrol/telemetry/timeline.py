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
from rtcontrol.telemetry.channels import topic_of
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
# bounds none: a decoder that is busy hears of a request when it is not.
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
    """`k`, `numbers` and `words` have an entry for each tick, in the order of releases after `finish`; a number that
    is not known is NaN, such a word is empty. `saw` and `details` are of misses, by release. `acts` are (seconds, call,
    why, release) of all that acted, and of each decision that left it in force (why: null); `marks` (seconds, text) of
    all else that befell the run; both in order after `finish`. What became of a tick is the `account`'s to say.
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
        """Of the run."""
        return self.account.header

    def add(self, event: Mapping[str, Any]) -> None:
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
        if (what := _befell(event)) is not None:
            self.marks.append((event["host_event"]["t_s"] if "host_event" in event else t_s, what))

    def finish(self) -> Timeline:
        """After the last event: everything in order. Twice does no harm."""
        rows = sorted(range(len(self.k)), key=self.k.__getitem__)
        if rows != [*range(len(rows))]:
            self.k = array("q", (self.k[row] for row in rows))
            self.numbers = {name: array("d", (c[row] for row in rows)) for name, c in self.numbers.items()}
            self.words = {name: [c[row] for row in rows] for name, c in self.words.items()}
            self._rows = {k: row for row, k in enumerate(self.k)}
        in_force, acts = "", sorted(act for act in self.acts if (act[3], _word_of(act[2])) not in self._undone)
        self.acts = [(t_s, in_force := call or in_force, why, k) for t_s, call, why, k in acts]
        self.marks.sort()
        return self

    def stage_ms(self, row: int, stage: str) -> float:
        """How long a stage took, NaN where a stamp is missing; nothing where a quick decoder had begun before the loop
        was back from handing over."""
        begin, end = STAGES[stage]
        ms = self.numbers[end][row] - (self.numbers[begin][row] if begin is not None else 0.0)
        return 0.0 if ms < 0 else ms

    def instead(self, row: int) -> Iterator[tuple[str, str, float]]:
        """What acted instead of a missed tick's call: (call, why, ms), from its deadline to the next fresh or late
        call, or decision to leave in force what is; why is `held` for what was in force then. The last one's ms is NaN
        where the run ended in it."""
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

    # -- events -------------------------------------------------------------------------------------------------------

    def _tick(self, event: Mapping[str, Any]) -> None:
        k = event["k"]
        row = self._rows[k] = len(self.k)
        self.k.append(k)
        for column in self.numbers.values():
            column.append(MISSING)
        for name, words in self.words.items():
            words.append(sys.intern(event.get(name) or ""))
        self._write(row, event, NUMBERS)
        latency_ms, begin_ms = event.get("latency_ms"), 1e3 * event["t_s"]
        if event["kind"] == "null":
            self.acts.append(((begin_ms + (latency_ms or 0.0)) / 1e3, "", "null", k))
        if "cause" in event and k in self._observed:
            self.saw[k] = self._observed.pop(k)
        self._detail(k, event)

    def _missed(self, k: int) -> bool:
        return k in self._rows and bool(self.words["cause"][self._rows[k]])

    def _acknowledge(self, event: Mapping[str, Any], missed: bool) -> None:
        """A client's word of a call; `missed`: so its tick is a miss."""
        k, why = event["ack"], "further" if event.get("n") else _word_of(event.get("why", "fresh"))
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
        """A late decision, or the end of a call that overran its deadline; a call that was held, and let act, was
        decided in time."""
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
        """Kept where its tick misses, which may be known before or after it."""
        k, seen = event["k"], {name: event[name] for name in ("observation", "instruction", "history") if name in event}
        if self._missed(k):
            self.saw[k] = seen
            return
        self._observed[k] = seen
        if len(self._observed) > REMEMBERED:
            del self._observed[next(iter(self._observed))]


def _word_of(why: str) -> str:
    """Which of a tick's calls a client's word is about, by why it acted."""
    return why if why in ("safe", "further") else "fresh"


def _befell(event: Mapping[str, Any]) -> str | None:
    """What an event says befell the run, but of ticks and of what acted."""
    if "observation" in event:  # it has an instruction, and is no change of it
        return None
    if "host_event" in event:
        return f"{decoder(event['host_event'])} {event['host_event']['event']}"
    if "understood" in event:
        as_what = event["understood"] or f"nothing ({event['not_understood']})"
        return f"understood: {event['said']} as {as_what}"
    if "people" in event:
        by, call = (f" {word} {event[key]}" if key in event else "" for word, key in (("by", "by"), ("of", "call")))
        return f"{event['people']}{by}{call}{', too late' if event.get('void') else ''}"
    if "instruction" in event:
        return f"refused: {event['refused']}" if "refused" in event else f"told: {event['instruction']}"
    if "episode" in event:
        return "an episode ended"
    if "fault" in event:
        return f"the world raised: {event['fault']}: {event.get('error', '')}"
    if "safe" in event and event.get("attempt", 1) == 1:
        return f"safe call, because of {event['why']}"
    return event.get("log")
