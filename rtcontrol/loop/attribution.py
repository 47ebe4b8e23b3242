"""Determine the cause of a missed tick from the tick's timestamps, and from a sample of threads and pauses.

    sampling.Sampler -> EvidenceSample -> EvidenceCollector -> Evidence -> attribute -> Verdict -> the record's line

These functions read no clock. Instants are nanoseconds of CLOCK_MONOTONIC. A span is a time from start to end, both in
milliseconds after the tick's release.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any, NamedTuple

from rtcontrol import records as ev
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop.ledger import tick_timestamps, to_ms
from rtcontrol.telemetry.causes import Cause

# The steps of a tick in their order: (name of the step, timestamp at the end of the step).
STEPS = (
    ("wake", "woke"),
    ("observe", "text"),
    ("send", "submitted"),
    ("queue", "begun"),
    ("decide", "decided"),
    ("deliver", "replied"),
    ("wait", "executing"),
    ("execute", "executed"),
)
LEAST_MS = 1.0  # a shorter delay is never the cause of a miss
NOTHING_MS = 0.1  # a thread that ran for less time counts as not having run
STOPPED, GONE = ("T", "t"), ("X", "Z")  # states of threads, as the kernel's one-letter codes in /proc
USUAL = 15  # the usual duration of a step is computed from this number of the newest ticks on time
PAUSES = ("gc", "starved", "stall", "stopped")  # the sub-causes of pauses
LOCAL = 2  # a sample starts with 2 threads that a decoder's restart does not change: the loop's and the actuator's

Span = tuple[float, float]


# -- evidence ----------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """The cause of a miss. `explained_ms`: how much of the lateness it explains (None: the cause is not a delay)."""

    cause: Cause
    subcause: str | None = None
    explained_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ThreadUsage:
    """Scheduler statistics of a thread since the tick's release. `state`: the thread's state when the cause was
    determined, as the kernel's one-letter code. `delayed_ms`: the time in which the thread waited for a processor;
    `waking_ms`: the same from the previous release to the start of this tick. None: the kernel reports no value."""

    state: str | None = None
    ran_ms: float | None = None
    delayed_ms: float | None = None
    waking_ms: float | None = None
    major_faults: int | None = None
    throttled_ms: float | None = None


USAGE = tuple(usage.name for usage in fields(ThreadUsage))


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence about a missed tick.

    `over`: whether the tick has a result, at `end_ms`; otherwise `end_ms` is when the cause was determined. `fault`:
    the cause that the loop detected itself. `late_ms`: how late the observation was, if this caused the miss;
    `since_ms`: since when it was late. `usual`: the usual duration of each step. `apart`: the decoder is a separate
    process, which did not run in the `gaps` of its heartbeat. `decoder_busy`: older requests were not answered yet.
    `arrival`: the release was the arrival of an observation. `host`: how the decoder's host failed. `texts`: when the
    loop's thread turned observations into text; `acting`: when the actuator executed calls. `loop`, `actuator`,
    `decoder`, `sockets`: statistics of these threads (`sockets` sends requests and receives replies)."""

    deadline_ms: float
    end_ms: float
    spans: Mapping[str, float]
    over: bool = False
    fault: ev.KnownCause | None = None
    late_ms: float | None = None
    since_ms: float = 0.0
    usual: Mapping[str, float] = field(default_factory=dict)
    pauses: Sequence[tuple[float, float, str]] = ()
    apart: bool = False
    gaps: Sequence[Span] = ()
    decoder_busy: bool = False
    arrival: bool = False
    host: str | None = None
    texts: Sequence[Span] = ()
    acting: Sequence[Span] = ()
    loop: ThreadUsage = ThreadUsage()
    actuator: ThreadUsage = ThreadUsage()
    decoder: ThreadUsage = ThreadUsage()
    sockets: ThreadUsage = ThreadUsage()

    @property
    def lateness_ms(self) -> float:
        """Return by how much the tick exceeded its deadline, or its usual duration if it has no result."""
        return self.end_ms - self.deadline_ms if self.over and self.late_ms is None else self.excess_ms

    @property
    def excess_ms(self) -> float:
        """Return by how much the tick took longer than usual, but at least the lateness. Compared with the lateness
        alone, any small delay would seem to explain a tick that is slightly late."""
        if self.late_ms is not None:
            return self.late_ms
        return self.end_ms - min(sum(self.usual.values()), self.deadline_ms)

    @property
    def verdict(self) -> Verdict:
        return attribute(self)

    @property
    def may_change(self) -> bool:
        """Return whether later evidence may change the verdict: the cause is a delay, or is unknown."""
        verdict = self.verdict
        return verdict.explained_ms is not None or verdict.cause is Cause.UNKNOWN

    def fields(self) -> dict[str, Any]:
        """Return the record's fields: cause, sub-cause, and evidence (durations, pauses, thread statistics)."""
        cause, subcause, explained_ms = self.verdict
        fields: dict[str, Any] = {"cause": cause.value}
        if subcause is not None:
            fields["subcause"] = subcause
        line: dict[str, Any] = {"late_ms": round(self.lateness_ms, 3)}
        if explained_ms is not None:
            line["explained_ms"] = round(explained_ms, 3)
        line["steps_ms"] = {name: round(took, 3) for name, took in self.step_durations().items()}
        for name, shown in (("pauses",) * 2, ("gaps", "decoder_gaps"), ("acting",) * 2, ("texts",) * 2):
            if spans := getattr(self, name):
                line[shown] = [[round(x, 3) if isinstance(x, float) else x for x in span] for span in spans]
        for name in ("loop", "actuator", "decoder", "sockets"):
            usage = getattr(self, name)
            if counted := {key: value for key in USAGE if (value := getattr(usage, key)) is not None}:
                line[name] = counted
        return {**fields, "evidence": line}

    def step_durations(self) -> dict[str, float]:
        """Return how long each step took in ms. An unfinished step counts until `end_ms`."""
        took = step_durations(self.spans)
        if not self.over:
            reached = max((i for i, (_, stamp) in enumerate(STEPS) if stamp in self.spans), default=-1)
            if reached + 1 < len(STEPS):
                name = STEPS[reached + 1][0]
                if name == "queue" and not self.decoder_busy:
                    name = "decide"  # the decoder had no other request, so the decision started at once
                last = max((self.spans[stamp] for _, stamp in STEPS if stamp in self.spans), default=0.0)
                took[name] = took.get(name, 0.0) + max(0.0, self.end_ms - last)
        return took


# -- compute evidence from timestamps and samples ----------------------------------------------------------------------


class EvidenceCollector:
    """A collector of evidence from several ticks. `on_time`: timestamps of recent ticks on time; `texts`: when the
    loop's thread needed long to turn an observation into text; `gaps`: gaps in the decoder's heartbeat, from its newest
    reply. `periodic`: releases follow the clock, not the arrival of observations."""

    def __init__(self, periodic: bool) -> None:
        self.texts: deque[tuple[int, int]] = deque(maxlen=8)
        self.gaps: Sequence[tuple[int, int]] = ()
        self.on_time: deque[Mapping[str, float]] = deque(maxlen=USUAL)
        self._periodic = periodic

    def evidence_of_miss(
        self, outcome: ev.TickOutcome, sample: ev.EvidenceSample, host: ev.HostChanged, end_ns: int
    ) -> Evidence:
        """Return the evidence about a missed tick that ended at `end_ns`."""
        tick, reply, fault = outcome.tick, outcome.reply, outcome.fault
        spans = tick_timestamps(tick, reply, outcome.done)
        late_ms, since_ms = self._lateness(outcome)
        return self._evidence(
            tick,
            sample,
            _with_estimated_spans(spans, reply),
            to_ms(end_ns - tick.release_ns),
            since_ms,
            over=reply is not None and fault is None,
            fault=fault,
            late_ms=late_ms,
            decoder_busy=tick.decoder_busy,
            host=_host_failure(tick, host) if reply is None else None,
        )

    def complete_evidence(
        self, tick: ev.Tick, before: Evidence, reply: DecisionReply | None = None, done: ev.Completion | None = None
    ) -> Evidence:
        """Return the earlier evidence `before`, completed by the heartbeat gaps in later replies, and the timestamps of
        a late `reply` or of the late call's result `done`."""
        gaps = [gap for gap in _clip_spans(tick, self.gaps, before.end_ms) if gap not in before.gaps]
        if not before.may_change:
            return before
        evidence = replace(before, gaps=[*before.gaps, *gaps])
        if reply is None:
            return evidence
        spans = _with_estimated_spans(tick_timestamps(tick, reply, done), reply)
        return replace(evidence, spans={name: min(t, before.end_ms) for name, t in spans.items()}, host=None)

    def skip_fields(self, tick: ev.Tick, first_ns: int, sample: ev.EvidenceSample) -> dict[str, Any]:
        """Return the record's fields with the cause of skipped releases: why the loop's thread started no tick from
        `first_ns` to the tick's release."""
        skipped = replace(tick, release_ns=first_ns)
        woke = to_ms(tick.woke_ns - first_ns)
        away: dict[str, Any] = {"over": True, "late_ms": woke, "decoder": ThreadUsage()}
        evidence = self._evidence(skipped, sample, {"woke": woke}, woke, **away)
        return {f"skip_{name}": value for name, value in evidence.fields().items()}

    def _evidence(
        self,
        tick: ev.Tick,
        sample: ev.EvidenceSample,
        spans: dict[str, float],
        end: float,
        since: float = 0.0,
        **more: Any,
    ) -> Evidence:
        """Return the evidence about a tick from its release until `end`."""
        known: dict[str, Any] = {
            "usual": usual_durations(self.on_time),
            "pauses": _pauses(tick, sample, since, end),
            "apart": sample.apart,
            "gaps": _clip_spans(tick, self.gaps, end),
            "arrival": not self._periodic,
            "texts": _clip_spans(tick, self.texts, end),
            "acting": _call_spans(tick, sample, end),
            **_usages(tick, sample),
        }
        deadline = to_ms(tick.deadline_ns - tick.release_ns)
        return Evidence(deadline, end, spans, since_ms=since, **{**known, **more})

    def _lateness(self, outcome: ev.TickOutcome) -> tuple[float | None, float]:
        """Return how late a stale observation was, and since when, or None and 0 if the observation was not stale."""
        tick, fault = outcome.tick, outcome.fault
        if fault is None or fault[0] is not Cause.STALE_OBSERVATION:
            return None, 0.0
        # The usual age of an observation when the loop wakes is not a delay, so subtract this age.
        ages = [spans["woke"] - spans["captured"] for spans in self.on_time if "captured" in spans]
        late_ms = to_ms(tick.woke_ns - tick.capture_ns) - (median(ages) if ages else 0.0)
        return late_ms, to_ms(tick.capture_ns - tick.release_ns)


def ran_and_delayed(raw: bytes) -> tuple[int, int]:
    """Parse a schedstat file. Return how long the thread ran, and waited for a processor, in ns. Raises ValueError."""
    ran, delayed = raw.split()[:2]
    return int(ran), int(delayed)


def _with_estimated_spans(spans: Mapping[str, float], reply: DecisionReply | None) -> dict[str, float]:
    """Return the timestamps. If the decoder has another clock, estimate when the decision started from the arrival of
    the reply and the decision's duration."""
    filled = {name: t for name, t in spans.items() if name not in ("captured", "received")}
    if reply is not None and "begun" not in filled and "submitted" in filled and "replied" in filled:
        filled["decided"] = filled["replied"]
        filled["begun"] = max(filled["submitted"], filled["replied"] - to_ms(reply.decide_ns))
    return filled


def _host_failure(tick: ev.Tick, host: ev.HostChanged) -> str | None:
    """Return how the decoder's process with the tick's request failed, or None if it did not fail."""
    if host.gave_up is not None:
        return "gave_up"
    if host.incarnation != tick.incarnation:
        return "lost"
    if host.alive:
        return None
    lost = [event.t_ns for event in host.events if event.event == "lost"]
    return "restarting" if lost and lost[-1] < tick.release_ns else "lost"


def _usages(tick: ev.Tick, sample: ev.EvidenceSample) -> dict[str, ThreadUsage]:
    """Return the thread statistics since the release, by role. If several threads have the same role, use the thread
    that waited longest for a processor."""
    # If the decoder restarted, ignore statistics of its threads at the release, because those threads no longer exist.
    runs = tick.schedstats if tick.incarnation == sample.incarnation else tick.schedstats[:LOCAL]
    worst: dict[str, ThreadUsage] = {}
    # Page faults and throttling are counted since the previous sample. Ignore them if that sample is too old.
    recent = sample.before_ns >= 2 * tick.release_ns - tick.deadline_ns
    for i, thread in enumerate(sample.threads):
        usage = ThreadUsage(thread.state)
        if i < len(runs) and thread.ran_ns is not None and thread.delayed_ns is not None:
            before = tick.schedstats_before[i] if i < min(LOCAL, len(tick.schedstats_before)) else None
            usage = _usage_of(thread, thread.ran_ns, thread.delayed_ns, runs[i], before)
        if recent:
            throttled = None if thread.throttled_ns is None else to_ms(thread.throttled_ns)
            usage = replace(usage, major_faults=thread.major_faults, throttled_ms=throttled)
        if thread.role not in worst or (usage.delayed_ms or 0.0) > (worst[thread.role].delayed_ms or 0.0):
            worst[thread.role] = usage
    return worst


def _usage_of(thread: ev.ThreadReading, ran_ns: int, delayed_ns: int, raw: bytes, before: bytes | None) -> ThreadUsage:
    """Return the usage of a thread since its schedstat file was read as `raw`. Omit the times if `raw` is invalid."""
    try:
        ran, delayed = ran_and_delayed(raw)
        waking = None if before is None else to_ms(delayed - ran_and_delayed(before)[1])
    except ValueError:
        return ThreadUsage(thread.state)
    return ThreadUsage(thread.state, to_ms(ran_ns - ran), to_ms(delayed_ns - delayed), waking)


def _pauses(tick: ev.Tick, sample: ev.EvidenceSample, since: float, until: float) -> list[tuple[float, float, str]]:
    spans = ((to_ms(start - tick.release_ns), to_ms(end - tick.release_ns), kind) for start, end, kind in sample.pauses)
    return [(max(b, since), min(e, until), kind) for b, e, kind in spans if e > since and b < until]


def _call_spans(tick: ev.Tick, sample: ev.EvidenceSample, until: float) -> list[Span]:
    # The end of a call may be missing: the call ran until the next call started, or it is still running.
    starts = [*(start for start, _ in sample.acting[1:]), sample.t_ns]
    spans = [(start, end or next_) for (start, end), next_ in zip(sample.acting, starts, strict=False)]
    return _clip_spans(tick, spans, until)


def _clip_spans(tick: ev.Tick, spans: Iterable[tuple[int, int]], until: float) -> list[Span]:
    relative = [(to_ms(start - tick.release_ns), to_ms(end - tick.release_ns)) for start, end in spans]
    return [(max(b, 0.0), min(e, until)) for b, e in relative if e > 0.0 and b < until]


# -- determine the cause from the evidence -----------------------------------------------------------------------------


def attribute(e: Evidence) -> Verdict:
    """Return the first cause, in order of precedence, that explains at least half of the lateness.

    Precedence: errors (an invalid call, or a call that failed before the deadline or raised an exception), pauses, a
    lost decoder, late wake-ups, other faults that the loop detected, slow decisions, slow calls."""
    in_time = e.late_ms is None and e.end_ms < e.deadline_ms
    preempted = in_time and e.fault == (Cause.EXECUTE, "busy")  # the rules below determine the cause
    if e.fault is not None and ((in_time and not preempted) or e.fault[1] == "raised"):
        return Verdict(Cause.HOST, e.host) if e.host and e.fault[0] is Cause.NO_OBSERVATION else Verdict(*e.fault)
    need = max(e.excess_ms / 2, LEAST_MS)
    took = e.step_durations()
    if (verdict := _pause_verdict(e, need)) is not None:
        return verdict
    # The decoder may be dead although the host has not yet noticed it.
    if (lost := e.host or ("lost" if e.decoder.state in GONE and "replied" not in e.spans else None)) is not None:
        return Verdict(Cause.HOST, lost)
    if (verdict := _wake_verdict(e, took, need)) is not None:
        return verdict
    if e.fault is not None and (preempted or e.fault[0] is not Cause.EXECUTE):
        return Verdict(*e.fault)
    decided = _parts_verdict(Cause.DECIDE, _decide_parts_ms(e, took), e.usual, need)
    return decided or _parts_verdict(Cause.EXECUTE, _execute_parts_ms(e, took), e.usual, need) or Verdict(Cause.UNKNOWN)


def _pause_verdict(e: Evidence, need: float) -> Verdict | None:
    """Return the verdict that the process was paused for at least `need` ms while the tick needed it, or None."""
    start, end = e.spans.get("submitted"), e.spans.get("decided", None if "replied" in e.spans else e.end_ms)
    windows = [(e.since_ms, e.end_ms)]
    if e.apart and start is not None and end is not None and start < end and not _lacks_request(e):
        # While the decoder's process was deciding, pauses of this process did not delay the tick. Ignore them.
        windows = [(e.since_ms, start), (end, e.end_ms)]
    paused = covered_ms([(b, end) for b, end, _ in e.pauses], windows)
    if paused < need:
        return None
    kinds = {name: covered_ms([(b, end) for b, end, kind in e.pauses if kind == name], windows) for name in PAUSES}
    # A pause that has not ended has no recorded kind. The kernel only reports how long the loop's thread has waited.
    kinds["starved"] = max(kinds["starved"], min(paused, max(e.loop.delayed_ms or 0.0, e.loop.throttled_ms or 0.0)))
    # Check "gc" first, because a garbage collection also delays the heartbeat.
    named = next((name for name in ("gc", "starved") if kinds[name] >= paused / 2), None)
    if named is None:
        named = "disk" if e.loop.major_faults else max(PAUSES, key=lambda name: kinds[name])
    return Verdict(Cause.PAUSE, named, paused)


def _lacks_request(e: Evidence) -> bool:
    """Return whether the decoder's thread has not received the tick's request: it sleeps, and has not run since."""
    ran_ms = e.decoder.ran_ms
    return "replied" not in e.spans and e.decoder.state == "S" and ran_ms is not None and ran_ms < NOTHING_MS


def _wake_verdict(e: Evidence, took: Mapping[str, float], need: float) -> Verdict | None:
    """Return the verdict that a thread ran late, or None. The loop's thread may have woken late for the release or the
    reply, or the loop's, the sockets' or the actuator's thread may have waited for a processor."""
    windows = _spans_without_loop(e)
    delayed = min(e.loop.waking_ms or 0.0, took.get("wake", 0.0))
    delayed += min(e.loop.delayed_ms or 0.0, _total_ms(took, "observe", "send"))
    delayed += min(max(e.loop.delayed_ms or 0.0, e.sockets.delayed_ms or 0.0), took.get("deliver", 0.0))
    if (submitted := e.spans.get("submitted")) is not None:
        delayed += _starved_ms(e, e.sockets, max(0.0, e.spans.get("received", e.end_ms) - submitted))
    delayed += _starved_ms(e, e.actuator, _total_ms(took, "wait", "execute"))
    if (texts := covered_ms(e.texts, windows)) >= need:
        return Verdict(Cause.DECIDE, "observe", texts)
    parts = {"scheduler": delayed, "executor": covered_ms(e.acting, windows)}
    if parts[largest := max(parts, key=lambda name: parts[name])] >= need:
        return Verdict(Cause.WAKE, largest, parts[largest])
    missing = _total_ms(took, "wake", "deliver")
    if e.loop.major_faults and missing - delayed >= need:
        return Verdict(Cause.WAKE, "disk", missing - delayed)
    if e.arrival and took.get("wake", 0.0) >= need:
        return Verdict(Cause.DECIDE, "queued", took["wake"])
    return None


def _spans_without_loop(e: Evidence) -> list[Span]:
    """Return the spans in which the tick waited for the loop's thread: from the release until the thread woke, and from
    the decision until the thread received the reply."""
    windows = [(0.0, e.spans.get("woke", 0.0))]
    if "decided" in e.spans:
        windows.append((e.spans["decided"], e.spans.get("replied", e.end_ms)))
    return windows


def _decide_parts_ms(e: Evidence, took: Mapping[str, float]) -> dict[str, float]:
    """Return how the time from the release to the reply was spent, in ms by sub-cause of `decide`."""
    # At this tick's release or reply, the loop may also have been computing the observation text of another tick.
    observe = took.get("observe", 0.0) + covered_ms(e.texts, _spans_without_loop(e))
    parts = {"observe": observe, "send": took.get("send", 0.0)}
    submitted = e.spans.get("submitted")
    if submitted is None:
        return parts
    until = e.spans.get("replied", e.end_ms)
    queued, decide = took.get("queue", 0.0), took.get("decide", 0.0)
    noticed = still = covered_ms(e.gaps, [(submitted, until)])
    if e.decoder.state in STOPPED and "replied" not in e.spans:
        still = max(still, until - submitted - (e.decoder.ran_ms or 0.0))
    starved = max(_starved_ms(e, e.decoder, queued + decide), min(e.decoder.throttled_ms or 0.0, queued + decide))
    still = max(still, starved)
    # Subtract the time in which the decoder did not run. Heartbeat gaps show when this was. Subtract the rest of it,
    # whose place is unknown, first from the decision, and then from the queue.
    started = e.spans.get("begun", until if queued else submitted)
    in_queue = covered_ms(e.gaps, [(submitted, started)])
    in_decide = covered_ms(e.gaps, [(started, e.spans.get("decided", until))])
    parts["decoder_starved" if still and 2 * starved >= still else "decoder_stopped"] = still
    parts["queued"] = max(0.0, queued - in_queue - max(0.0, still - noticed - decide))
    parts["decoder_slow"] = max(0.0, decide - in_decide - (still - noticed))
    return parts


def _execute_parts_ms(e: Evidence, took: Mapping[str, float]) -> dict[str, float]:
    """Return how the time after the reply was spent, in ms by sub-cause of `execute`."""
    if (replied := e.spans.get("replied")) is None:
        return {}
    if e.fault is not None and e.fault[1] is not None:
        return {e.fault[1]: covered_ms(e.acting, [(replied, e.end_ms)])}  # this call has no timestamps
    if (started := e.spans.get("executing")) is None:
        return {}
    return {"busy": covered_ms(e.acting, [(replied, started)]), "slow": took.get("execute", 0.0)}


def _parts_verdict(cause: Cause, parts: Mapping[str, float], usual: Mapping[str, float], need: float) -> Verdict | None:
    """Return the verdict that all parts together took at least `need` ms longer than usual, or None. The sub-cause is
    the part with the largest excess."""
    normal = {"queued": "queue", "decoder_slow": "decide", "busy": "wait", "slow": "execute"}
    beyond = {name: max(0.0, took - usual.get(normal.get(name, name), 0.0)) for name, took in parts.items()}
    if (explained := sum(beyond.values())) < need:
        return None
    return Verdict(cause, max(beyond, key=lambda name: beyond[name]), explained)


def _starved_ms(e: Evidence, kernel: ThreadUsage, waited: float) -> float:
    """Return for how many of the `waited` ms the thread waited for a processor. The kernel counts such a wait only
    after its end, so return all of `waited` for a thread that is ready but has not run."""
    if not e.over and kernel.state == "R" and kernel.ran_ms is not None and kernel.ran_ms < NOTHING_MS:
        return waited
    return min(kernel.delayed_ms or 0.0, waited)


def step_durations(spans: Mapping[str, float]) -> dict[str, float]:
    """Return the duration of each step whose end timestamp is in `spans`, in ms."""
    took: dict[str, float] = {}
    at = 0.0
    for name, stamp in STEPS:
        if (t := spans.get(stamp)) is not None:
            if stamp == "submitted":
                t = min(t, spans.get("begun", t))  # a decider in the loop's process starts inside `submit`
            took[name] = max(0.0, t - at)
            at = max(at, t)
    return took


def usual_durations(recent: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the median duration of each step in ms. `recent`: the timestamps of recent ticks."""
    taken: dict[str, list[float]] = {}
    for spans in recent:
        for name, took in step_durations(spans).items():
            taken.setdefault(name, []).append(took)
    return {name: median(times) for name, times in taken.items()}


def covered_ms(spans: Sequence[Span], windows: Iterable[Span]) -> float:
    """Return how many ms of the windows are covered by the spans. Overlaps count once."""
    clipped = [(max(b, start), min(e, end)) for start, end in windows for b, e in spans]
    total, reached = 0.0, float("-inf")
    for b, e in sorted(span for span in clipped if span[1] > span[0]):
        total += max(0.0, e - max(b, reached))
        reached = max(reached, e)
    return total


def _total_ms(took: Mapping[str, float], *names: str) -> float:
    return sum(took.get(name, 0.0) for name in names)
