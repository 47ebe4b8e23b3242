"""The one account of a run: events in, counts out, live and from a record alike."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from rtcontrol.telemetry.histogram import Series
from rtcontrol.telemetry.steadiness import Steadiness


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
# What became of an answer of the first decider, where there is a backup.
ERRED = ("no_observation.unreadable", "decide.error", "execute.raised")
ANSWERS = ("in_time", "late", "unsure", "failed", "lost")
# A tick of these kinds is on time, and counted apart.
KINDS = ("null", "held", "overtaken", "epoch_over")
# So many different errors, and so many events of one kind, are listed.
MAX_ERRORS, MAX_LISTED = 64, 10_000
# So many members are counted each by itself; later ones together, under OTHERS.
MOST_MEMBERS, OTHERS = 10_000, "(others)"
MEMBER_COUNTS = ("releases", "ticks", "on_time", "misses", "skipped_releases", "null", "held", "rested")
CAUSE = "misses."  # before a cause's name
# An acknowledgement, or a late decision, may change what is known of a tick: so long it is remembered.
REMEMBERED = 2048


class Account:
    """Counts of a run. After each event:

    releases == ticks + skipped_releases, ticks == on_time + misses, misses == sum of misses_by_cause,
    skipped_releases == sum of skipped_by_cause, miss_rate == (misses + skipped_releases) / releases.

    One thread adds; any may look. An event is one entry of a record (`telemetry/channels.py`), its kind is the
    key that only such a one has. `recent_*` are short and for people who look on.
    """

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.start: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.origin_ns = 0  # of all t_s, CLOCK_MONOTONIC; 0: not told
        self.ticks = self.on_time = self.misses = self.skipped_releases = 0
        self.null = self.held = self.overtaken = self.epoch_over = self.calls_cut = 0
        self.decided_by_first = self.decided_by_backup = 0  # ticks
        self.first_in_time = self.first_late = self.first_unsure = self.first_failed = self.first_lost = 0
        self.late_used = self.late_dropped = self.safe_calls = self.fallback_errors = self.superseded = 0
        self.first_losses: Counter[str] = Counter()
        self.plans: Counter[str] = Counter()
        self.plan_losses: Counter[str] = Counter()
        self.plan_steps: Counter[int] = Counter()
        self.plan_ms = Series()
        self.misses_by_cause: Counter[str] = Counter()
        self.misses_by_subcause: Counter[str] = Counter()
        self.skipped_by_cause: Counter[str] = Counter()
        self.acknowledged: Counter[str] = Counter()
        self.held_by: Counter[str] = Counter()  # confidence: unsure, or not understood; confirm; paused, stopped
        self.members: dict[str, dict[str, Any]] = {}  # of a crowd
        self.miss_runs, self.steadiness = MissRuns(), Steadiness()
        self.times = {name: Series() for name in TIMES}
        self.calls, self.passes, self.tokens = _Total(), _Total(), _Total()
        self.last_k, self.last_t_s = -1, 0.0
        self.episodes: list[dict[str, Any]] = []
        self.ended_episodes = self.judged = self.successes = 0
        self.host_events: list[dict[str, Any]] = []
        self.instructions: list[dict[str, Any]] = []
        self.understood: list[dict[str, Any]] = []
        self.people: list[dict[str, Any]] = []
        self.errors: dict[tuple[str | None, str], dict[str, Any]] = {}
        self.recent_calls: deque[str] = deque(maxlen=6)
        self.recent_ms: deque[float] = deque(maxlen=256)
        self.ticks_from = 0  # the first tick: not that of the run, where the record was full
        self._causes: dict[int, tuple[str, str | None]] = {}  # of recent misses
        self._acted: dict[int, None] = {}  # recent ticks whose call acted in time

    @property
    def releases(self) -> int:
        return self.ticks + self.skipped_releases

    @property
    def miss_rate(self) -> float:
        return (self.misses + self.skipped_releases) / self.releases if self.releases else 0.0

    @property
    def calls_acted(self) -> int:
        """Calls of ticks, the further ones too."""
        return self.calls.total

    @property
    def off_time(self) -> Counter[str]:
        """Misses and skipped releases by cause. Of copies: another thread may count meanwhile."""
        return Counter(dict(self.misses_by_cause)) + Counter(dict(self.skipped_by_cause))

    @property
    def erred(self) -> int:
        """Misses by an error of code: the agent's, the decider's, the tools'; or by a call that is illegal."""
        return sum(self.misses_by_subcause[name] for name in ERRED) + self.misses_by_cause["invalid"]

    @property
    def longest_miss_run(self) -> int:
        return self.miss_runs.longest

    def add(self, event: Mapping[str, Any]) -> None:
        if "observation" in event:
            return  # it has an instruction, and is no change of it
        if "error" in event and "plan" not in event:  # its ticks have errors of their own
            self._error(event)
        if "kind" in event:
            self._tick(event)
        elif "called" in event:
            self.steadiness.call(event)
        elif "further" in event:
            self._further(event)
        elif "first" in event:
            counted = f"first_{event['outcome']}"
            setattr(self, counted, getattr(self, counted) + 1)
            if "loss" in event:
                self.first_losses[event["loss"]] += 1
            self._times(event)
        elif "plan" in event:
            self.plans[event["outcome"]] += 1
            self.plan_ms.add(event["plan_ms"])
            if "loss" in event:
                self.plan_losses[event["loss"]] += 1
        elif "late" in event:
            if "waited_ms" not in event:  # one that waited for a yes was no late decision
                self.late_used += event["used"]
                self.late_dropped += not event["used"]
            self._revise(event["late"], event)
            self._times(event)
        elif "overran" in event:
            self._revise(event["overran"], event)
            self._times(event)
        elif "revised" in event:
            self._revise(event["revised"], event)
        elif "ack" in event:
            self._acknowledge(event)
        elif "safe" in event:
            self.safe_calls += event["why"] != "exit" and event.get("in_force", True)
            self.fallback_errors += "error" in event
            self.steadiness.safe(event)
        elif "episode" in event:
            self._episode(event["episode"])
        elif "host_event" in event:
            _list(self.host_events, event["host_event"])
        elif "understood" in event:
            _list(self.understood, event)
        elif "people" in event:
            _list(self.people, event)
        elif "instruction" in event:
            _list(self.instructions, event)
        elif "header" in event:
            self.header = event["header"]
            self.steadiness.header(self.header)
        elif "start" in event:
            self.start = event["start"]
        elif "origin_ns" in event:
            self.origin_ns = event["origin_ns"]
        elif "end" in event:
            self.end = dict(event)
            self._skipped(event, self.last_k + 1 + event.get("skipped", 0))

    def check(self) -> None:
        """Raises AssertionError with the relation that does not hold."""
        assert self.ticks == self.on_time + self.misses, "ticks == on_time + misses"
        assert self.misses == sum(self.misses_by_cause.values()), "misses == sum(misses_by_cause)"
        assert self.skipped_releases == sum(self.skipped_by_cause.values()), "skipped == sum(skipped_by_cause)"
        assert self.decided_by_first + self.decided_by_backup <= self.ticks, "at most one decides a tick"
        assert self.null + self.held + self.overtaken + self.epoch_over <= self.on_time, "null, held are on time"

    # -- events -------------------------------------------------------------------------------------------------------

    def _tick(self, event: Mapping[str, Any]) -> None:
        k, kind = event["k"], event["kind"]
        if not self.ticks:
            self.ticks_from = k - event.get("skipped", 0)
        self.last_k, self.last_t_s = max(self.last_k, k), max(self.last_t_s, event["t_s"])
        self.ticks += 1
        self.steadiness.tick(event)
        if "member" in event:
            count_member(self.members, event)
        self.superseded += event["superseded"]
        self._skipped(event, k)
        if "cause" in event:
            self._miss(k, event["cause"], event.get("subcause"))
        else:
            self.on_time += 1
            if kind in KINDS:
                setattr(self, kind, getattr(self, kind) + 1)
                if kind == "held" and "why" in event:
                    self.held_by[event["why"]] += 1
            elif kind == "call":
                _remember(self._acted, k, None)
        if "decided_by" in event:
            decided = f"decided_by_{event['decided_by']}"
            setattr(self, decided, getattr(self, decided) + 1)
        if "step" in event:
            self.plan_steps[event["step"]] += 1
        if kind == "call":
            self.calls.add(1)
        self._decided(event, kind == "call")
        self._times(event)

    def _skipped(self, event: Mapping[str, Any], k: int) -> None:
        """Count the releases before `k` that did not begin."""
        if skipped := event.get("skipped", 0):
            self.skipped_releases += skipped
            self.skipped_by_cause[event["skip_cause"]] += skipped
            self.miss_runs.add(k - skipped, k)

    def _further(self, event: Mapping[str, Any]) -> None:
        """A further call of a tick: neither on time nor a miss, and in none of the times, which are of ticks."""
        if acted := event["outcome"] == "acted":
            self.calls.more(event["n"] + 1)
        self.calls_cut += event["outcome"] == "cut" or (acted and "over" in event)
        self._decided(event, acted)

    def _decided(self, event: Mapping[str, Any], acted: bool) -> None:
        if acted:
            self.recent_calls.append(event["call"])
        if "passes" in event:
            self.passes.add(event["passes"])
            self.tokens.add(event["tokens"])

    def _miss(self, k: int, cause: str, subcause: str | None) -> None:
        self.misses += 1
        self.misses_by_cause[cause] += 1
        if subcause is not None:
            self.misses_by_subcause[f"{cause}.{subcause}"] += 1
        self.miss_runs.add(k)
        _remember(self._causes, k, (cause, subcause))

    def _revise(self, k: int, event: Mapping[str, Any]) -> None:
        """What came of a tick after its deadline may tell more of why it missed."""
        if "cause" in event and k in self._causes:
            cause, subcause = self._causes[k]
            self._causes[k] = event["cause"], event.get("subcause")
            _take(self.misses_by_cause, cause)
            if subcause is not None:
                _take(self.misses_by_subcause, f"{cause}.{subcause}")
            self.misses_by_cause[event["cause"]] += 1
            if "subcause" in event:
                self.misses_by_subcause[f"{event['cause']}.{event['subcause']}"] += 1

    def _acknowledge(self, event: Mapping[str, Any]) -> None:
        """A call that its client did not carry out was not on time, whenever it was sent."""
        k, status = event["ack"], event["status"]
        self.acknowledged[status] += 1
        if k in self._acted and event.get("why") != "safe" and not event.get("n"):
            del self._acted[k]
            if status != "executed":
                self.on_time -= 1
                self._miss(k, "execute", status)

    def _episode(self, episode: dict[str, Any]) -> None:
        self.ended_episodes += 1
        self.judged += episode["success"] is not None
        self.successes += bool(episode["success"])
        _list(self.episodes, episode)

    def _error(self, event: Mapping[str, Any]) -> None:
        """One entry for each place and type of error (or text, where it came from elsewhere)."""
        where, error = event.get("where"), str(event["error"])
        entry = self.errors.get(key := (where, error.split(":")[0] if where else error))
        if entry is None and len(self.errors) < MAX_ERRORS:
            kinds = (name for name in ("safe", "late", "overran", "ack", "further", "first", "plan") if name in event)
            cause = event.get("cause") or event.get("fault") or next(kinds, "")
            entry = {"where": where, "error": error, "cause": cause, "count": 0, "first_t_s": event.get("t_s")}
            self.errors[key] = entry
        if entry is not None:
            entry["count"] += 1

    def _times(self, event: Mapping[str, Any]) -> None:
        for name, key in TIMES.items():
            if (value := event.get(key)) is not None:
                self.times[name].add(value)
        if (latency := event.get("latency_ms")) is not None:
            self.recent_ms.append(latency)


class _Total:
    """Sum, mean and most of a count that each decision has."""

    def __init__(self) -> None:
        self.count = self.total = self.most = 0

    def add(self, value: int) -> None:
        self.count += 1
        self.total += value
        self.most = max(self.most, value)

    def more(self, value: int) -> None:
        """What was added last is one more than it was: `value`."""
        self.total += 1
        self.most = max(self.most, value)

    def summary(self) -> dict[str, float]:
        return {"total": self.total, "mean": round(self.total / self.count, 2) if self.count else 0.0, "max": self.most}


def _list(listed: list[dict[str, Any]], entry: Mapping[str, Any]) -> None:
    if len(listed) < MAX_LISTED:
        listed.append(dict(entry))


def _remember(known: dict[int, Any], k: int, value: Any) -> None:
    known[k] = value
    if len(known) > REMEMBERED:
        del known[next(iter(known))]


def _take(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def count_member(members: dict[str, dict[str, Any]], event: Mapping[str, Any]) -> None:
    """One tick. After each: releases == ticks + skipped_releases, ticks == on_time + misses."""
    name = event["member"]
    if name not in members and len(members) >= MOST_MEMBERS:
        name = OTHERS
    counted = members.setdefault(
        name, {**dict.fromkeys(MEMBER_COUNTS, 0), "latency_ms_total": 0.0, "latency_ms_max": 0.0}
    )
    skipped = event.get("skipped", 0)
    counted["releases"] += 1 + skipped
    counted["skipped_releases"] += skipped
    counted["ticks"] += 1
    counted["rested"] += event.get("rested", 0)
    if (cause := event.get("cause")) is not None:
        counted["misses"] += 1
        counted[CAUSE + cause] = counted.get(CAUSE + cause, 0) + 1
    else:
        counted["on_time"] += 1
        if event["kind"] in ("null", "held"):
            counted[event["kind"]] += 1
    if (latency := event.get("latency_ms")) is not None:
        counted["latency_ms_total"] += latency
        counted["latency_ms_max"] = max(counted["latency_ms_max"], latency)
