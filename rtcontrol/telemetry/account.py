"""Count the events of a run, live or from a record, and keep the data that a live view shows."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.telemetry.events import topic_of
from rtcontrol.telemetry.histogram import Series

# Times by their name in the report: the event's field, and the title for people.
TIMES = {
    "latency_ms": ("latency_ms", "latency (release to effect)"),
    "decide_ms": ("decide_ms", "decide"),
    "wake_ms": ("wake_ms", "wake-up lateness"),
    "observation_age_ms": ("age_ms", "observation age at effect"),
    "execute_ms": ("execute_ms", "execute"),
    "jitter_ms": ("jitter_ms", "jitter"),
    "answer_ms": ("answer_ms", "first decider's answer"),
}
OTHER_SERIES = ("passes", "tokens", "plan_ms")  # times of decisions and plans, which are not times of ticks
ERRED = ("no_observation.unreadable", "decide.error", "execute.raised")
ANSWERS = ("in_time", "late", "unsure", "failed", "lost")  # outcomes of the first decider's answers
KINDS = ("null", "held", "overtaken", "epoch_over")  # ticks of these kinds are on time, and are counted separately
# Counts by name, in `by`. The reasons in `held_by`: confidence (unsure, or not understood), confirm, paused, stopped.
BY = (
    *("misses_by_cause", "misses_by_subcause", "skipped_by_cause", "acknowledged", "held_by"),
    *("first_losses", "plans", "plan_losses", "plan_steps"),
)
LISTED = ("/instruction", "/understood", "/people", "/episode", "/host")  # topics whose events are listed
MAX_ERRORS, MAX_LISTED = 64, 10_000  # different errors, and events of one topic, that are listed
MOST_MEMBERS, OTHERS = 10_000, "(others)"  # members of a crowd with separate counts, and the name of the rest
REMEMBERED = 2048  # how many calls later a client may acknowledge a call


class MissRuns:
    """A list of runs of consecutive missed releases. Releases must be added nearly in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # each end is one past the last release

    def add(self, start: int, end: int | None = None) -> None:
        """Add the releases from `start` up to `end` (excluded; only `start` by default). Raises ValueError for a
        repeat."""
        end = start + 1 if end is None else end
        i = bisect_right(self._starts, start)
        if (i and self._ends[i - 1] > start) or (i < len(self._starts) and self._starts[i] < end):
            raise ValueError(f"release {start} was missed already")
        self._starts.insert(i, start)
        self._ends.insert(i, end)
        for right in (i + 1, i):
            if 0 < right < len(self._starts) and self._ends[right - 1] == self._starts[right]:
                del self._starts[right], self._ends[right - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    @property
    def longest(self) -> int:
        """Return the length of the longest run."""
        return max((end - start for start, end in self), default=0)

    def worst(self, k: int) -> int:
        """Return the most misses among any `k` consecutive releases, the m of (m,k)."""
        most, first, inside = 0, 0, 0
        for start, end in self:
            # The window with the most misses ends with a run, and reaches into earlier runs.
            inside += end - start
            while self._ends[first] <= end - k:
                inside -= self._ends[first] - self._starts[first]
                first += 1
            most = max(most, inside - max(0, end - k - self._starts[first]))
        return min(most, k)


@dataclass(slots=True)
class Extent:
    """The extent of the counted ticks: the first one (not the run's first if the record was full), the last one with
    its time, and the last call with its epoch."""

    first_k: int = 0
    last_k: int = -1
    last_t_s: float = 0.0
    call: tuple[int, str] = (-1, "")


class Account:
    """The counts of a run by name. After each event:

    releases == ticks + skipped_releases, ticks == on_time + misses, misses == sum of misses_by_cause,
    skipped_releases == sum of skipped_by_cause, miss_rate == (misses + skipped_releases) / releases.

    One thread adds events; any thread may read. `counts` has numbers, `by` has counts by name, `times` and `listed`
    have times and listed events, `members` has counts of a crowd's members; `run` has data from the run's own events
    (`start`, `end`, and `origin_ns` of all t_s, CLOCK_MONOTONIC).
    """

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.run: dict[str, Any] = {"start": {}, "end": {}, "origin_ns": 0}
        self.counts: Counter[str] = Counter()
        self.by: dict[str, Counter[Any]] = {name: Counter() for name in BY}
        self.times = {name: Series() for name in (*TIMES, *OTHER_SERIES)}
        self.listed: dict[str, list[dict[str, Any]]] = {topic: [] for topic in LISTED}
        self.errors: dict[tuple[str | None, str], dict[str, Any]] = {}
        self.members: dict[str, Counter[str]] = {}
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
    def erred(self) -> int:
        """Return the misses that an error in code (of the agent, the decider or the tools) or an illegal call
        caused."""
        return sum(self.by["misses_by_subcause"][name] for name in ERRED) + self.misses_by_cause["invalid"]

    def check(self) -> None:
        """Raise AssertionError with the violated relation if the counts are inconsistent."""
        n, by = self.counts, self.by
        assert n["releases"] == n["ticks"] + n["skipped_releases"], "releases == ticks + skipped_releases"
        assert n["ticks"] == n["on_time"] + n["misses"], "ticks == on_time + misses"
        assert n["misses"] == sum(by["misses_by_cause"].values()), "misses == sum(misses_by_cause)"
        assert n["skipped_releases"] == sum(by["skipped_by_cause"].values()), "skipped == sum(skipped_by_cause)"
        assert n["decided_by_first"] + n["decided_by_backup"] <= n["ticks"], "at most one decider per tick"
        assert sum(n[kind] for kind in KINDS) <= n["on_time"], "null, held are on time"

    def add(self, event: Mapping[str, Any]) -> None:
        """Count an event (`telemetry/events.py`)."""
        topic, counts = topic_of(event), self.counts
        if "error" in event and topic != "/plan":  # the ticks of a plan have separate errors
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
                self.by["first_losses"].update([event["loss"]] if "loss" in event else [])
                self._times(event)
            case "/plan":
                self.by["plans"][event["outcome"]] += 1
                self.by["plan_losses"].update([event["loss"]] if "loss" in event else [])
                self.times["plan_ms"].add(event["plan_ms"])
            case "/late":
                if "late" in event and "waited_ms" not in event:  # a call that waited for a yes was not a late decision
                    counts["late_used" if event["used"] else "late_dropped"] += 1
                self._times(event)
            case "/result":
                self._acknowledge(event)
            case "/safe":
                counts["safe_calls"] += event["why"] != "exit" and event.get("in_force", True)
                counts["fallback_errors"] += "error" in event
            case "/run":
                self._run(event)

    def _run(self, event: Mapping[str, Any]) -> None:
        if "header" in event:
            self.header = event["header"]
        elif "end" in event:
            self.run["end"] = dict(event)
            self._skipped(event, self.extent.last_k + 1 + event.get("skipped", 0))
        else:
            self.run |= {name: event[name] for name in ("start", "origin_ns") if name in event}

    def _tick(self, event: Mapping[str, Any]) -> None:
        k, counts, extent = event["k"], self.counts, self.extent
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
        if event["kind"] == "call":
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
        """Count the skipped releases before tick `k`."""
        if skipped := event.get("skipped", 0):
            self.counts["skipped_releases"] += skipped
            self.counts["releases"] += skipped
            self.by["skipped_by_cause"][event["skip_cause"]] += skipped
            self.miss_runs.add(k - skipped, k)

    def _further(self, event: Mapping[str, Any]) -> None:
        """Count a further call of a tick, which is neither on time nor a miss. Only ticks have times."""
        if acted := event["outcome"] == "acted":
            self._acts(event["n"] + 1)
        self.counts["calls_cut"] += event["outcome"] == "cut" or (acted and "over" in event)
        self._decided(event)

    def _acts(self, number: int) -> None:
        """Count a call that acted as number `number` of its tick."""
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
        """Count a client's result. A call that the client did not execute was not on time."""
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

    def _error(self, event: Mapping[str, Any]) -> None:
        """Count an error by place and type, or by text if the place is not known."""
        where, error = event.get("where"), str(event["error"])
        key = where, error.split(":")[0] if where else error
        if key not in self.errors and len(self.errors) < MAX_ERRORS:
            kinds = (name for name in ("safe", "late", "overran", "ack", "further", "first") if name in event)
            cause = event.get("cause") or event.get("fault") or next(kinds, "")
            first = {"where": where, "error": error, "cause": cause, "count": 0, "first_t_s": event.get("t_s")}
            self.errors[key] = first
        if key in self.errors:
            self.errors[key]["count"] += 1

    def _times(self, event: Mapping[str, Any]) -> None:
        for name, (key, _) in TIMES.items():
            if (value := event.get(key)) is not None:
                self.times[name].add(value)

    def _member(self, event: Mapping[str, Any]) -> None:
        """Count a tick of a crowd's member."""
        name = event["member"]
        if name not in self.members and len(self.members) >= MOST_MEMBERS:
            name = OTHERS
        counts = self.members.setdefault(name, Counter())
        skipped, missed = event.get("skipped", 0), "cause" in event
        counts.update(releases=1 + skipped, misses=missed + skipped, rested=event.get("rested", 0))
        if missed:
            counts[event["cause"]] += 1


# -- the live view ----------------------------------------------------------------------------------------------------

TICKS, LINES = 256, 20  # recent ticks, and lines for people
SHOWN = (  # fields of a tick
    *("k", "kind", "why", "cause", "subcause", "evidence", "latency_ms", "decide_ms"),
    *("skipped", "skip_cause", "skip_subcause", "skip_evidence"),
)
COUNTS = ("releases", "ticks", "on_time", "misses", "skipped_releases", "null", "held", "safe_calls", "late_used")


class Recent:
    """A buffer of the last ticks of a run, with the observations that decided them, which also feeds the `account`.

    The recorder's thread adds events; any thread may take a `snapshot`, which is computed on that thread. `fault` is
    the first internal error in handling an event; after it the counts may be wrong.
    """

    def __init__(self) -> None:
        self.account = Account()
        self.fault: str | None = None
        self._ticks: deque[tuple[int, dict[str, Any]]] = deque(maxlen=TICKS)
        self._lines: deque[str] = deque(maxlen=LINES)
        self._ms: deque[float] = deque(maxlen=TICKS)  # latencies
        self._observation: Mapping[str, Any] = {}
        self._call: Mapping[str, Any] = {}
        self._question: dict[str, Any] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Count an event. Never raises, so that the record continues and shows what led to the `fault`."""
        try:
            self.account.add(event)
        except Exception as error:
            self.fault = self.fault or f"{type(error).__name__}: {error}"
        if "latency_ms" in event:
            self._ms.append(event["latency_ms"])
        if "kind" in event:
            number = self._ticks[-1][0] + 1 if self._ticks else 1
            self._ticks.append((number, {name: event[name] for name in SHOWN if name in event}))
        elif "observation" in event:
            self._observation = event
        elif "people" in event and (event["people"] == "ask" or "call" in event):
            self._question = dict(event) if event["people"] == "ask" else None
        elif "log" in event:
            self._lines.append(event["log"])
        if "call" in event and ("kind" in event or event.get("outcome") == "acted"):
            self._call = event

    def snapshot(self, since: int = 0) -> dict[str, Any]:
        """Return the current live view as JSON data: counts, the last call, the last observation, and the ticks after
        number `since`; `number` is the number of the last tick."""
        account, call, seen, ticks = self.account, self._call, self._observation, _copy(self._ticks)
        number = ticks[-1][0] if ticks else 0
        since = since if since <= number else 0  # a number of another run
        latency = Series(_copy(self._ms)).summary()
        return {
            "number": number,
            "ticks": [tick for place, tick in ticks if place > since],
            "counts": {name: account.counts[name] for name in COUNTS},
            # Work on copies, since another thread may count meanwhile.
            "causes": Counter(dict(account.misses_by_cause)) + Counter(dict(account.by["skipped_by_cause"])),
            "subcauses": dict(account.by["misses_by_subcause"]),
            "latency_ms": {name: latency[name] for name in ("p50", "p99", "max")},
            "call": call.get("call"),
            "confidence": call.get("confidence"),
            "text": seen.get("observation"),
            "history": list(seen.get("history", ())),
            "asking": self._question,
            "log": _copy(self._lines),
            **{name: account.counts[name] for name in ("episodes", "successes", "judged")},
        }


def _copy(values: deque[Any]) -> list[Any]:
    """Return a copy of a collection that another thread may append to meanwhile."""
    while True:
        try:
            return list(values)
        except RuntimeError:
            continue
