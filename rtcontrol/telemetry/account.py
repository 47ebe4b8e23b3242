"""Count the events of a run, while it runs or from its record, and store the data of live views."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.telemetry.events import topic_of
from rtcontrol.telemetry.histogram import Histogram

# Durations of ticks. By field of report.json: (field of an event, title in tables).
TIMES = {
    "latency_ms": ("latency_ms", "latency (release to effect)"),
    "decide_ms": ("decide_ms", "decide"),
    "wake_ms": ("wake_ms", "wake-up lateness"),
    "observation_age_ms": ("age_ms", "observation age at effect"),
    "execute_ms": ("execute_ms", "execute"),
    "jitter_ms": ("jitter_ms", "jitter"),
    "answer_ms": ("answer_ms", "first decider's answer"),
}
OTHER_SERIES = ("passes", "tokens", "plan_ms")  # further histograms: passes and tokens per decision, ms per plan
ERROR_SUBCAUSES = ("no_observation.unreadable", "decide.error", "execute.raised")  # misses by an exception
ANSWERS = ("in_time", "late", "unsure", "failed", "lost")  # outcomes of a request to the first of two deciders
OTHER_KINDS = {  # by kind of a tick on time without a new call: its description
    "null": "without a call, as the model chose",
    "held": "held back",
    "overtaken": "overtaken by a newer tick",
    "epoch_over": "whose episode had ended",
}
# Keys of `Account.breakdowns`. `held_by` counts withheld calls by reason (confidence, unfamiliar, confirm, paused,
# stopped). `unfamiliar` counts parts of observations that differ from those in training.
BREAKDOWNS = (
    *("misses_by_cause", "misses_by_subcause", "skipped_by_cause", "skipped_by_subcause", "acknowledged", "held_by"),
    "unfamiliar",
    *("first_losses", "plans", "plan_losses", "plan_steps"),
)
LISTED = ("/instruction", "/understood", "/people", "/episode", "/host")  # `Account.listed` stores their events
MAX_EXAMPLES = 20  # maximum number of keys in the breakdown `unfamiliar`
MAX_ERRORS, MAX_LISTED = 64, 10_000  # maximum different errors, and stored events per topic
# At most this number of members and instructions are counted separately. Others are counted under the name OTHERS.
MAX_MEMBERS, MAX_INSTRUCTIONS, OTHERS = 10_000, 1000, "(others)"
ACK_WINDOW = 2048  # an acknowledgement counts only until 2,048 later calls were executed


class MissRuns:
    """Sorted intervals of consecutive missed releases (scheduled ticks), which may be added in any order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # ends of the intervals: the last missed release plus 1

    def add(self, start: int, end: int | None = None) -> None:
        """Add the missed releases `start` to `end - 1` (default: only `start`). Raises ValueError for a repeat."""
        end = start + 1 if end is None else end
        i = bisect_right(self._starts, start)
        if (i and self._ends[i - 1] > start) or (i < len(self._starts) and self._starts[i] < end):
            raise ValueError(f"release {start} was counted as missed already")
        self._starts.insert(i, start)
        self._ends.insert(i, end)
        for right in (i + 1, i):
            if 0 < right < len(self._starts) and self._ends[right - 1] == self._starts[right]:
                del self._starts[right], self._ends[right - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    @property
    def longest(self) -> int:
        """Return the largest number of consecutive misses."""
        return max((end - start for start, end in self), default=0)

    def worst_window(self, k: int) -> int:
        """Return the maximum number of misses in `k` consecutive releases, which is m of an (m,k)-firm deadline."""
        worst, first, inside = 0, 0, 0
        for start, end in self:
            # The worst window ends at the end of an interval of misses. Subtract the intervals before the window.
            inside += end - start
            while self._ends[first] <= end - k:
                inside -= self._ends[first] - self._starts[first]
                first += 1
            worst = max(worst, inside - max(0, end - k - self._starts[first]))
        return min(worst, k)


@dataclass(slots=True)
class TickRange:
    """The first and last counted tick, the time of the last tick, and the last call with its epoch.

    `first_k` is above 0 if the oldest ticks of the record were deleted."""

    first_k: int = 0
    last_k: int = -1
    last_t_s: float = 0.0
    last_call: tuple[int, str] = (-1, "")


class Account:
    """The counts of a run. After each event these equations hold:

    releases == ticks + skipped_releases, ticks == on_time + misses, misses == sum of misses_by_cause,
    skipped_releases == sum of skipped_by_cause, miss_rate == (misses + skipped_releases) / releases.

    One thread calls `add`; any thread may read. `breakdowns`: counts by cause or reason. `times`: histograms of
    durations. `listed`: whole events by topic. `members`: counts by crowd member. `instructions`: counts by
    instruction, where the key `called NAME` counts the calls of a function. `run`: the start and end events, the active
    `instruction`, and `origin_ns`, the CLOCK_MONOTONIC time at which t_s is 0.
    """

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.run: dict[str, Any] = {"start": {}, "end": {}, "origin_ns": 0, "instruction": ""}
        self.counts: Counter[str] = Counter()
        self.breakdowns: dict[str, Counter[Any]] = {name: Counter() for name in BREAKDOWNS}
        self.times = {name: Histogram() for name in (*TIMES, *OTHER_SERIES)}
        self.listed: dict[str, list[dict[str, Any]]] = {topic: [] for topic in LISTED}
        self.errors: dict[tuple[str | None, str], dict[str, Any]] = {}
        self.members: dict[str, Counter[str]] = {}
        self.instructions: dict[str, Counter[str]] = {}
        self.miss_runs = MissRuns()
        self.tick_range = TickRange()
        self._on_time_calls: dict[int, str] = {}  # by recent tick: the instruction of its call on time

    @property
    def releases(self) -> int:
        return self.counts["releases"]

    @property
    def ticks(self) -> int:
        return self.counts["ticks"]

    @property
    def on_time(self) -> int:
        return self.counts["on_time"]

    @property
    def misses_by_cause(self) -> Counter[str]:
        return self.breakdowns["misses_by_cause"]

    @property
    def miss_rate(self) -> float:
        return (self.counts["misses"] + self.counts["skipped_releases"]) / self.releases if self.releases else 0.0

    @property
    def error_misses(self) -> int:
        """Return the number of misses caused by an exception (in agent, decider or tools) or by an illegal call."""
        subcauses = self.breakdowns["misses_by_subcause"]
        return sum(subcauses[name] for name in ERROR_SUBCAUSES) + self.misses_by_cause["invalid"]

    def assert_consistent(self) -> None:
        """Raise AssertionError with the violated equation if the counts are inconsistent."""
        n, by = self.counts, self.breakdowns
        equations = {
            "releases == ticks + skipped_releases": n["releases"] == n["ticks"] + n["skipped_releases"],
            "ticks == on_time + misses": n["ticks"] == n["on_time"] + n["misses"],
            "misses == sum(misses_by_cause)": n["misses"] == sum(by["misses_by_cause"].values()),
            "skipped == sum(skipped_by_cause)": n["skipped_releases"] == sum(by["skipped_by_cause"].values()),
            "at most one decider per tick": n["decided_by_first"] + n["decided_by_backup"] <= n["ticks"],
            "ticks without a new call are on time": sum(n[kind] for kind in OTHER_KINDS) <= n["on_time"],
        }
        for equation, holds in equations.items():
            if not holds:
                raise AssertionError(equation)

    def add(self, event: Mapping[str, Any]) -> None:
        """Count an event of the record. `telemetry/events.py` lists the kinds of events and their fields."""
        topic, counts = topic_of(event), self.counts
        if "error" in event and topic != "/plan":  # ticks that fail because of a plan count its error
            self._count_error(event)
        if topic in LISTED:
            self._store_event(topic, event)
        match topic:
            case "/tick":
                self._count_tick(event)
            case "/further":
                self._count_further_call(event)
            case "/first":
                counts[f"first_{event['outcome']}"] += 1
                self.breakdowns["first_losses"].update([event["loss"]] if "loss" in event else [])
                self._add_times(event)
            case "/plan":
                self.breakdowns["plans"][event["outcome"]] += 1
                self.breakdowns["plan_losses"].update([event["loss"]] if "loss" in event else [])
                self.times["plan_ms"].add(event["plan_ms"])
            case "/late":
                if "late" in event and "waited_ms" not in event:  # calls that an operator approved do not count as late
                    counts["late_used" if event["used"] else "late_dropped"] += 1
                self._add_times(event)
            case "/result":
                self._count_acknowledgement(event)
            case "/instruction":
                self.run["instruction"] = event["instruction"]
            case "/call" if event["why"] != "safe":
                self._instruction_counter()[f"called {event['called']}"] += 1
            case "/safe":
                counts["safe_calls"] += event["why"] != "exit" and event.get("in_force", True)
                counts["fallback_errors"] += "error" in event
            case "/run":
                self._add_run_event(event)

    def _add_run_event(self, event: Mapping[str, Any]) -> None:
        if "header" in event:
            self.header = event["header"]
            self.run["instruction"] = str(self.header.get("instruction"))
        elif "end" in event:
            self.run["end"] = dict(event)
            self._count_skipped(event, self.tick_range.last_k + 1 + event.get("skipped", 0))
        else:
            self.run |= {name: event[name] for name in ("start", "origin_ns") if name in event}

    def _count_tick(self, event: Mapping[str, Any]) -> None:
        k, counts, tick_range = event["k"], self.counts, self.tick_range
        if not counts["ticks"]:
            tick_range.first_k = k - event.get("skipped", 0)
        tick_range.last_k = max(tick_range.last_k, k)
        tick_range.last_t_s = max(tick_range.last_t_s, event["t_s"])
        counts["ticks"] += 1
        counts["releases"] += 1
        counts["superseded"] += event["superseded"]
        counts["kept"] += "kept" in event
        if "member" in event:
            self._count_member(event)
        self._count_skipped(event, k)
        if "member" not in event:
            counted = {"ticks": 1, "misses": "cause" in event, "skipped": event.get("skipped", 0)}
            self._instruction_counter().update(counted, held=event["kind"] == "held")
        if "cause" in event:
            self._count_miss(k, event["cause"], event.get("subcause"))
        else:
            self._count_on_time(k, event)
        if "decided_by" in event:
            counts[f"decided_by_{event['decided_by']}"] += 1
        if "step" in event:
            self.breakdowns["plan_steps"][event["step"]] += 1
        if event["kind"] == "call":
            call = (event.get("epoch", 0), event["call"])
            counts["call_ticks"] += 1
            counts["repeated"] += call == tick_range.last_call and "member" not in event
            tick_range.last_call = call
            self._count_executed(1)
        self._count_passes(event)
        self._add_times(event)

    def _instruction_counter(self) -> Counter[str]:
        """Return the counter for ticks of the active instruction."""
        text = self.run["instruction"]
        if text not in self.instructions and len(self.instructions) >= MAX_INSTRUCTIONS:
            text = OTHERS
        return self.instructions.setdefault(text, Counter())

    def _count_on_time(self, k: int, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        self.counts["on_time"] += 1
        if kind in OTHER_KINDS:
            self.counts[kind] += 1
            if kind == "held" and "why" in event:
                self.breakdowns["held_by"][event["why"]] += 1
                parts = self.breakdowns["unfamiliar"]
                parts.update(p for p in event.get("unfamiliar", ())[:1] if p in parts or len(parts) < MAX_EXAMPLES)
        elif kind == "call":
            self._on_time_calls[k] = self.run["instruction"]
            if len(self._on_time_calls) > ACK_WINDOW:
                del self._on_time_calls[next(iter(self._on_time_calls))]

    def _count_skipped(self, event: Mapping[str, Any], k: int) -> None:
        """Count the skipped releases before tick `k`."""
        if skipped := event.get("skipped", 0):
            self.counts["skipped_releases"] += skipped
            self.counts["releases"] += skipped
            self.breakdowns["skipped_by_cause"][event["skip_cause"]] += skipped
            if "skip_subcause" in event:
                self.breakdowns["skipped_by_subcause"][f"{event['skip_cause']}.{event['skip_subcause']}"] += skipped
            self.miss_runs.add(k - skipped, k)

    def _count_further_call(self, event: Mapping[str, Any]) -> None:
        """Count a tick's second or later call, which is neither on time nor a miss. Its durations are not counted."""
        if acted := event["outcome"] == "acted":
            self._count_executed(event["n"] + 1)
        self.counts["calls_cut"] += event["outcome"] == "cut" or (acted and "over" in event)
        self._count_passes(event)

    def _count_executed(self, number: int) -> None:
        """Count an executed call. `number`: its number within its tick, from 1."""
        self.counts["calls_acted"] += 1
        self.counts["calls_most"] = max(self.counts["calls_most"], number)

    def _count_passes(self, event: Mapping[str, Any]) -> None:
        if "passes" in event:
            self.times["passes"].add(event["passes"])
            self.times["tokens"].add(event["tokens"])

    def _count_miss(self, k: int, cause: str, subcause: str | None) -> None:
        self.counts["misses"] += 1
        self.misses_by_cause[cause] += 1
        if subcause is not None:
            self.breakdowns["misses_by_subcause"][f"{cause}.{subcause}"] += 1
        self.miss_runs.add(k)

    def _count_acknowledgement(self, event: Mapping[str, Any]) -> None:
        """Count a client's acknowledgement. If the client did not execute the call, change its tick to a miss."""
        k, status = event["ack"], event["status"]
        self.breakdowns["acknowledged"][status] += 1
        if k in self._on_time_calls and event.get("why") != "safe" and not event.get("n"):
            instruction = self._on_time_calls.pop(k)
            if status != "executed":
                self.counts["on_time"] -= 1
                self.instructions[instruction if instruction in self.instructions else OTHERS]["misses"] += 1
                self._count_miss(k, "execute", status)

    def _store_event(self, topic: str, event: Mapping[str, Any]) -> None:
        entry = event.get("episode") or event.get("host_event") or event
        if topic == "/episode":
            self.counts["episodes"] += 1
            self.counts["judged"] += entry["success"] is not None
            self.counts["successes"] += bool(entry["success"])
        if len(self.listed[topic]) < MAX_LISTED:
            self.listed[topic].append(dict(entry))

    def _count_error(self, event: Mapping[str, Any]) -> None:
        """Count an error. Errors with the same code location and exception type (or the same text) are one entry."""
        where, error = event.get("where"), str(event["error"])
        key = where, error.split(":")[0] if where else error
        if key not in self.errors and len(self.errors) < MAX_ERRORS:
            kinds = (name for name in ("safe", "late", "overran", "ack", "further", "first") if name in event)
            cause = event.get("cause") or event.get("fault") or next(kinds, "")
            first = {"where": where, "error": error, "cause": cause, "count": 0, "first_t_s": event.get("t_s")}
            self.errors[key] = first
        if key in self.errors:
            self.errors[key]["count"] += 1

    def _add_times(self, event: Mapping[str, Any]) -> None:
        for name, (key, _) in TIMES.items():
            if (value := event.get(key)) is not None:
                self.times[name].add(value)

    def _count_member(self, event: Mapping[str, Any]) -> None:
        """Count a tick of a crowd member in `members`."""
        name = event["member"]
        if name not in self.members and len(self.members) >= MAX_MEMBERS:
            name = OTHERS
        counts = self.members.setdefault(name, Counter())
        skipped, missed = event.get("skipped", 0), "cause" in event
        counts.update(releases=1 + skipped, misses=missed + skipped, rested=event.get("rested", 0))
        if missed:
            counts[event["cause"]] += 1


# -- the live view ----------------------------------------------------------------------------------------------------

LIVE_TICKS, LIVE_LINES = 256, 20  # number of ticks and of log lines in the live view
LIVE_FIELDS = (  # fields of a tick event that the live view shows
    *("k", "kind", "why", "cause", "subcause", "evidence", "latency_ms", "decide_ms"),
    *("skipped", "skip_cause", "skip_subcause", "skip_evidence"),
)
LIVE_COUNTS = ("releases", "ticks", "on_time", "misses", "skipped_releases", "null", "held", "safe_calls", "late_used")


class LiveState:
    """The data of live views: the newest ticks, call, observation and log lines of a run, and its `account`.

    Only the recorder's thread calls `add`; any thread may call `snapshot`. `fault` is the text of the first exception
    in `Account.add`, after which the counts may be wrong, or None.
    """

    def __init__(self) -> None:
        self.account = Account()
        self.fault: str | None = None
        self._ticks: deque[tuple[int, dict[str, Any]]] = deque(maxlen=LIVE_TICKS)
        self._lines: deque[str] = deque(maxlen=LIVE_LINES)
        self._ms: deque[float] = deque(maxlen=LIVE_TICKS)  # latencies of the newest ticks
        self._observation: Mapping[str, Any] = {}
        self._call: Mapping[str, Any] = {}
        self._approval: dict[str, Any] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Count an event, and store it for live views. Store an exception in `fault` instead of raising it."""
        try:
            self.account.add(event)
        except Exception as error:
            self.fault = self.fault or f"{type(error).__name__}: {error}"
        if "latency_ms" in event:
            self._ms.append(event["latency_ms"])
        if "kind" in event:
            number = self._ticks[-1][0] + 1 if self._ticks else 1
            self._ticks.append((number, {name: event[name] for name in LIVE_FIELDS if name in event}))
        elif "observation" in event:
            self._observation = event
        elif "people" in event and (event["people"] == "ask" or "call" in event):
            self._approval = dict(event) if event["people"] == "ask" else None
        elif "log" in event:
            self._lines.append(event["log"])
        if "call" in event and ("kind" in event or event.get("outcome") == "acted"):
            self._call = event

    def snapshot(self, since: int = 0) -> dict[str, Any]:
        """Return the current state as JSON data. `ticks`: the ticks with a number (from 1) above `since`. `number`: the
        number of the newest tick, which the caller passes as `since` in the next call."""
        account, call, observed, ticks = self.account, self._call, self._observation, _copy_of(self._ticks)
        number = ticks[-1][0] if ticks else 0
        since = since if since <= number else 0  # a larger number belongs to an earlier run
        latency = Histogram(_copy_of(self._ms)).summary()
        return {
            "number": number,
            "ticks": [tick for place, tick in ticks if place > since],
            "counts": {name: account.counts[name] for name in LIVE_COUNTS},
            # Copy the counters before adding them, because the recorder's thread may change them at any time.
            "causes": Counter(dict(account.misses_by_cause)) + Counter(dict(account.breakdowns["skipped_by_cause"])),
            "subcauses": dict(account.breakdowns["misses_by_subcause"]),
            "latency_ms": {name: latency[name] for name in ("p50", "p99", "max")},
            "call": call.get("call"),
            "confidence": call.get("confidence"),
            "text": observed.get("observation"),
            "history": list(observed.get("history", ())),
            "asking": self._approval,
            "log": _copy_of(self._lines),
            **{name: account.counts[name] for name in ("episodes", "successes", "judged")},
        }


def _copy_of(values: deque[Any]) -> list[Any]:
    """Return a copy of a deque; try again if another thread appends to it during the copy."""
    while True:
        try:
            return list(values)
        except RuntimeError:
            continue
