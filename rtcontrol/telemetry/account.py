"""The one account of a run: events in, counts out, live and from a record alike."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.telemetry.channels import topic_of
from rtcontrol.telemetry.histogram import Series


class MissRuns:
    """Indices of missed releases. They come nearly in order: each `add` is at, or a little before, the end."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []  # each one past the last

    def add(self, begin: int, end: int | None = None) -> None:
        """Those from `begin` up to `end` (without it; `begin` alone by default). ValueError when one is there."""
        end = begin + 1 if end is None else end
        i = bisect_right(self._begins, begin)
        if (i and self._ends[i - 1] > begin) or (i < len(self._begins) and self._begins[i] < end):
            raise ValueError(f"release {begin} was missed already")
        joins_left, joins_right = i > 0 and self._ends[i - 1] == begin, i < len(self._begins) and self._begins[i] == end
        if joins_left and joins_right:
            self._ends[i - 1] = self._ends.pop(i)
            del self._begins[i]
        elif joins_left:
            self._ends[i - 1] = end
        elif joins_right:
            self._begins[i] = begin
        else:
            self._begins.insert(i, begin)
            self._ends.insert(i, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._begins, self._ends, strict=True)

    @property
    def longest(self) -> int:
        """Of the runs of misses."""
        return max((end - begin for begin, end in self), default=0)

    def worst(self, k: int) -> int:
        """Most misses among any `k` releases in a row: (m,k)."""
        most, first, held = 0, 0, 0
        begins, ends = self._begins, self._ends
        for i, end in enumerate(ends):
            # The best window that ends with a run's end reaches into the runs before it.
            held += end - begins[i]
            while ends[first] <= end - k:
                held -= ends[first] - begins[first]
                first += 1
            most = max(most, held - max(0, end - k - begins[first]))
        return min(most, k)


# The report's name of a time, and the event's.
TIMES = {
    "latency_ms": "latency_ms",
    "decide_ms": "decide_ms",
    "wake_ms": "wake_ms",
    "observation_age_ms": "age_ms",
    "execute_ms": "execute_ms",
    "jitter_ms": "jitter_ms",
    "answer_ms": "answer_ms",
}
# Of decisions and plans: these are no times of ticks.
OTHER_SERIES = ("passes", "tokens", "plan_ms")
# What became of an answer of the first decider, where there is a backup.
ERRED = ("no_observation.unreadable", "decide.error", "execute.raised")
ANSWERS = ("in_time", "late", "unsure", "failed", "lost")
# A tick of these kinds is on time, and counted apart.
KINDS = ("null", "held", "overtaken", "epoch_over")
# Counts by name, in `by`. `held_by`: confidence (unsure, or not understood), confirm, paused, stopped.
BY = (
    *("misses_by_cause", "misses_by_subcause", "skipped_by_cause", "acknowledged", "held_by"),
    *("first_losses", "plans", "plan_losses", "plan_steps"),
)
# Topics of which the events themselves are listed.
LISTED = ("/instruction", "/understood", "/people", "/episode", "/host")
# So many different errors, and so many events of one kind, are listed.
MAX_ERRORS, MAX_LISTED = 64, 10_000
# So many members of a crowd are counted each by itself; later ones together, under OTHERS.
MOST_MEMBERS, OTHERS = 10_000, "(others)"
CAUSE = "misses."  # before a cause's name, in a member's counts
# A client may acknowledge a call so many calls later.
REMEMBERED = 2048


@dataclass(slots=True)
class Extent:
    """The ticks that were counted: the first one (not the run's, where the record was full), the last one and its time,
    and the last call with its epoch."""

    first_k: int = 0
    last_k: int = -1
    last_t_s: float = 0.0
    call: tuple[int, str] = (-1, "")


class Account:
    """Counts of a run, by name. After each event:

    releases == ticks + skipped_releases, ticks == on_time + misses, misses == sum of misses_by_cause,
    skipped_releases == sum of skipped_by_cause, miss_rate == (misses + skipped_releases) / releases.

    One thread adds; any may look. An event is one entry of a record (`telemetry/channels.py`). `counts` are numbers,
    `by` counts by name, `times` and `listed` what their names say, `members` the counts of a crowd's members; `run` has
    what the run's own events say (`start`, `end`, and `origin_ns` of all t_s, CLOCK_MONOTONIC).
    """

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.run: dict[str, Any] = {"start": {}, "end": {}, "origin_ns": 0}
        self.counts: Counter[str] = Counter()
        self.by: dict[str, Counter[Any]] = {name: Counter() for name in BY}
        self.times = {name: Series() for name in (*TIMES, *OTHER_SERIES)}
        self.listed: dict[str, list[dict[str, Any]]] = {topic: [] for topic in LISTED}
        self.errors: dict[tuple[str | None, str], dict[str, Any]] = {}
        self.members: dict[str, dict[str, float]] = {}
        self.miss_runs = MissRuns()
        self.extent = Extent()
        self._acted: dict[int, None] = {}  # recent ticks whose call acted in time

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
        return self.by["misses_by_cause"]

    @property
    def miss_rate(self) -> float:
        return (self.counts["misses"] + self.counts["skipped_releases"]) / self.releases if self.releases else 0.0

    @property
    def off_time(self) -> Counter[str]:
        """Misses and skipped releases by cause. Of copies: another thread may count meanwhile."""
        return Counter(dict(self.misses_by_cause)) + Counter(dict(self.by["skipped_by_cause"]))

    @property
    def erred(self) -> int:
        """Misses by an error of code: the agent's, the decider's, the tools'; or by a call that is illegal."""
        return sum(self.by["misses_by_subcause"][name] for name in ERRED) + self.misses_by_cause["invalid"]

    def add(self, event: Mapping[str, Any]) -> None:
        topic, counts = topic_of(event), self.counts
        if "error" in event and topic != "/plan":  # the ticks of a plan have errors of their own
            self._error(event)
        if topic in LISTED:
            self._list(topic, event)
        match topic:
            case "/tick":
                self._tick(event)
            case "/further":
                self._further(event)
            case "/first":
                counts[f"first_{event['outcome']}"] += 1
                self._lost("first_losses", event)
                self._times(event)
            case "/plan":
                self.by["plans"][event["outcome"]] += 1
                self._lost("plan_losses", event)
                self.times["plan_ms"].add(event["plan_ms"])
            case "/late":
                if "late" in event and "waited_ms" not in event:  # one that waited for a yes was no late decision
                    counts["late_used" if event["used"] else "late_dropped"] += 1
                self._times(event)
            case "/result":
                self._acknowledge(event)
            case "/safe":
                counts["safe_calls"] += event["why"] != "exit" and event.get("in_force", True)
                counts["fallback_errors"] += "error" in event
            case "/run":
                self._run(event)

    def check(self) -> None:
        """Raises AssertionError with the relation that does not hold."""
        n, by = self.counts, self.by
        assert n["releases"] == n["ticks"] + n["skipped_releases"], "releases == ticks + skipped_releases"
        assert n["ticks"] == n["on_time"] + n["misses"], "ticks == on_time + misses"
        assert n["misses"] == sum(by["misses_by_cause"].values()), "misses == sum(misses_by_cause)"
        assert n["skipped_releases"] == sum(by["skipped_by_cause"].values()), "skipped == sum(skipped_by_cause)"
        assert n["decided_by_first"] + n["decided_by_backup"] <= n["ticks"], "at most one decides a tick"
        assert sum(n[kind] for kind in KINDS) <= n["on_time"], "null, held are on time"

    # -- events -------------------------------------------------------------------------------------------------------

    def _run(self, event: Mapping[str, Any]) -> None:
        if "header" in event:
            self.header = event["header"]
        elif "end" in event:
            self.run["end"] = dict(event)
            self._skipped(event, self.extent.last_k + 1 + event.get("skipped", 0))
        else:
            self.run |= {name: event[name] for name in ("start", "origin_ns") if name in event}

    def _tick(self, event: Mapping[str, Any]) -> None:
        k, kind, counts, extent = event["k"], event["kind"], self.counts, self.extent
        if not counts["ticks"]:
            extent.first_k = k - event.get("skipped", 0)
        extent.last_k = max(extent.last_k, k)
        extent.last_t_s = max(extent.last_t_s, event["t_s"])
        counts["ticks"] += 1
        counts["releases"] += 1
        counts["superseded"] += event["superseded"]
        counts["kept"] += "kept" in event
        if "member" in event:
            self._member(event)
        self._skipped(event, k)
        if "cause" in event:
            self._miss(k, event["cause"], event.get("subcause"))
        else:
            self._on_time(k, event)
        if "decided_by" in event:
            counts[f"decided_by_{event['decided_by']}"] += 1
        if "step" in event:
            self.by["plan_steps"][event["step"]] += 1
        if kind == "call":
            call = (event.get("epoch", 0), event["call"])
            counts["call_ticks"] += 1
            counts["repeated"] += call == extent.call and "member" not in event
            extent.call = call
            self._acts(1)
        self._decided(event)
        self._times(event)

    def _on_time(self, k: int, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        self.counts["on_time"] += 1
        if kind in KINDS:
            self.counts[kind] += 1
            if kind == "held" and "why" in event:
                self.by["held_by"][event["why"]] += 1
        elif kind == "call":
            self._acted[k] = None
            if len(self._acted) > REMEMBERED:
                del self._acted[next(iter(self._acted))]

    def _skipped(self, event: Mapping[str, Any], k: int) -> None:
        """Count the releases before `k` that did not begin."""
        if skipped := event.get("skipped", 0):
            self.counts["skipped_releases"] += skipped
            self.counts["releases"] += skipped
            self.by["skipped_by_cause"][event["skip_cause"]] += skipped
            self.miss_runs.add(k - skipped, k)

    def _further(self, event: Mapping[str, Any]) -> None:
        """A further call of a tick: neither on time nor a miss, and in none of the times, which are of ticks."""
        if acted := event["outcome"] == "acted":
            self._acts(event["n"] + 1)
        self.counts["calls_cut"] += event["outcome"] == "cut" or (acted and "over" in event)
        self._decided(event)

    def _acts(self, number: int) -> None:
        """Count a call that acted, the tick's `number`th."""
        self.counts["calls_acted"] += 1
        self.counts["calls_most"] = max(self.counts["calls_most"], number)

    def _decided(self, event: Mapping[str, Any]) -> None:
        if "passes" in event:
            self.times["passes"].add(event["passes"])
            self.times["tokens"].add(event["tokens"])

    def _miss(self, k: int, cause: str, subcause: str | None) -> None:
        self.counts["misses"] += 1
        self.misses_by_cause[cause] += 1
        if subcause is not None:
            self.by["misses_by_subcause"][f"{cause}.{subcause}"] += 1
        self.miss_runs.add(k)

    def _acknowledge(self, event: Mapping[str, Any]) -> None:
        """A call that its client did not carry out was not on time, whenever it was sent."""
        k, status = event["ack"], event["status"]
        self.by["acknowledged"][status] += 1
        if k in self._acted and event.get("why") != "safe" and not event.get("n"):
            del self._acted[k]
            if status != "executed":
                self.counts["on_time"] -= 1
                self._miss(k, "execute", status)

    def _list(self, topic: str, event: Mapping[str, Any]) -> None:
        entry = event.get("episode") or event.get("host_event") or event
        if topic == "/episode":
            self.counts["episodes"] += 1
            self.counts["judged"] += entry["success"] is not None
            self.counts["successes"] += bool(entry["success"])
        if len(self.listed[topic]) < MAX_LISTED:
            self.listed[topic].append(dict(entry))

    def _lost(self, losses: str, event: Mapping[str, Any]) -> None:
        if "loss" in event:
            self.by[losses][event["loss"]] += 1

    def _error(self, event: Mapping[str, Any]) -> None:
        """One entry for each place and type of error (or text, where it came from elsewhere)."""
        where, error = event.get("where"), str(event["error"])
        entry = self.errors.get(key := (where, error.split(":")[0] if where else error))
        if entry is None and len(self.errors) < MAX_ERRORS:
            kinds = (name for name in ("safe", "late", "overran", "ack", "further", "first") if name in event)
            cause = event.get("cause") or event.get("fault") or next(kinds, "")
            entry = {"where": where, "error": error, "cause": cause, "count": 0, "first_t_s": event.get("t_s")}
            self.errors[key] = entry
        if entry is not None:
            entry["count"] += 1

    def _times(self, event: Mapping[str, Any]) -> None:
        for name, key in TIMES.items():
            if (value := event.get(key)) is not None:
                self.times[name].add(value)

    def _member(self, event: Mapping[str, Any]) -> None:
        """One tick of a crowd's member. After each: releases == ticks + skipped_releases, ticks == on_time + misses."""
        name = event["member"]
        if name not in self.members and len(self.members) >= MOST_MEMBERS:
            name = OTHERS
        counted, cause = self.members.setdefault(name, defaultdict(int)), event.get("cause")
        for what in ("ticks", event["kind"] if cause is None else CAUSE + cause, "misses" if cause else "on_time"):
            counted[what] += 1
        for what in ("skipped", "rested", "latency_ms"):
            counted[what] += event.get(what) or 0
        counted["latency_ms_max"] = max(counted["latency_ms_max"], event.get("latency_ms") or 0.0)
