"""From a tick's evidence to the one cause of its miss. Pure: it looks at nothing but what it is given.

Times are milliseconds from the tick's release, as in its event's `spans_ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any, NamedTuple

from rtcontrol.telemetry.causes import Cause

# The steps of a tick, each with the stamp that ends it.
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
# Less than this explains nothing, however little the tick was late.
LEAST_MS = 1.0
# A thread that ran for less had no processor: one that has just woken runs longer before it is seen to.
NOTHING_MS = 0.1
# The kernel's letters for a thread that a signal stopped, and for one that is dead.
STOPPED, GONE = ("T", "t"), ("X", "Z")

Span = tuple[float, float]


class Verdict(NamedTuple):
    """`explained_ms` is how much of the lateness the cause's evidence accounts for; None where a cause is no matter of
    time (a call that is illegal, say)."""

    cause: Cause
    subcause: str | None = None
    explained_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ThreadUsage:
    """What the kernel counted of a thread from the tick's release on, `waking_ms` (of waiting for a processor) from the
    release before until it woke; `state` is of the moment at which the miss was named. None: it does not tell."""

    state: str | None = None
    ran_ms: float | None = None
    delayed_ms: float | None = None
    waking_ms: float | None = None
    major_faults: int | None = None
    throttled_ms: float | None = None


USAGE = tuple(one.name for one in fields(ThreadUsage))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a tick that missed.

    `end_ms` is when its call had acted, or where there is none (`over` is False) when the miss was named. `fault` is
    what the loop itself saw (None: there was no call in time). `late_ms` is the lateness where it is not the tick's own
    (an observation's age), `since_ms` from when on it grew. `usual` are the steps of ticks on time, lately. `apart`:
    the decoder is a process of its own, with `gaps` in its heartbeat; `behind`: older requests are not answered yet.
    `arrival`: the release was the arrival of an observation, which waits while an earlier one is decided. `host` is
    what is wrong with the decoder's. `texts` is when the loop's thread was at work on texts of any tick, `acting` when
    the actuator's was at work on calls. `loop`, `actuator` and `decoder` are these threads, `sockets` those that
    carry requests and replies between them.
    """

    deadline_ms: float
    end_ms: float
    spans: Mapping[str, float]
    over: bool = False
    fault: tuple[Cause, str | None] | None = None
    late_ms: float | None = None
    since_ms: float = 0.0
    usual: Mapping[str, float] = field(default_factory=dict)
    pauses: Sequence[tuple[float, float, str]] = ()
    apart: bool = False
    gaps: Sequence[Span] = ()
    behind: bool = False
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
        """By how much it was late: after its deadline, or while nothing acted yet, beyond what a tick usually takes."""
        return self.end_ms - self.deadline_ms if self.over and self.late_ms is None else self.excess_ms

    @property
    def excess_ms(self) -> float:
        """How much longer it took than a tick usually does, which is no less than it was late: one that is late by a
        hair is so for what took long, and not for the first trifle."""
        if self.late_ms is not None:
            return self.late_ms
        return self.end_ms - min(sum(self.usual.values()), self.deadline_ms)

    def to_dict(self, verdict: Verdict) -> dict[str, Any]:
        """What the event says of it: numbers first, then whatever stood still, then what the kernel counted."""
        line: dict[str, Any] = {"late_ms": round(self.lateness_ms, 3)}
        if verdict.explained_ms is not None:
            line["explained_ms"] = round(verdict.explained_ms, 3)
        line["steps_ms"] = {name: round(took, 3) for name, took in self.steps().items()}
        names = {"pauses": "pauses", "gaps": "decoder_gaps", "acting": "acting", "texts": "texts"}
        for name, shown in names.items():
            if spans := getattr(self, name):
                line[shown] = [[round(x, 3) if isinstance(x, float) else x for x in span] for span in spans]
        for name in ("loop", "actuator", "decoder", "sockets"):
            usage = getattr(self, name)
            counted = {key: value for key in USAGE if (value := getattr(usage, key)) is not None}
            if counted:
                line[name] = counted
        return line

    def steps(self) -> dict[str, float]:
        """How long each step took; the one under way until the end."""
        took = steps(self.spans)
        if not self.over:
            reached = max((i for i, (_, stamp) in enumerate(STEPS) if stamp in self.spans), default=-1)
            if reached + 1 < len(STEPS):
                name = STEPS[reached + 1][0]
                if name == "queue" and not self.behind:
                    name = "decide"  # nobody said that it was begun; nothing else keeps the decoder
                took[name] = took.get(name, 0.0) + max(0.0, self.end_ms - max(_stamps(self.spans), default=0.0))
        return took


def steps(spans: Mapping[str, float]) -> dict[str, float]:
    """How long each step took whose end is known."""
    took: dict[str, float] = {}
    at = 0.0
    for name, stamp in STEPS:
        if (t := spans.get(stamp)) is not None:
            if stamp == "submitted":
                t = min(t, spans.get("begun", t))  # decided inside: no queue
            took[name] = max(0.0, t - at)
            at = max(at, t)
    return took


def usual(recent: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The median of each step over ticks, of which the `spans` are given."""
    taken: dict[str, list[float]] = {}
    for spans in recent:
        for name, took in steps(spans).items():
            taken.setdefault(name, []).append(took)
    return {name: median(times) for name, times in taken.items()}


def attribute(e: Evidence) -> Verdict:
    """The cause: the first, in order of precedence, whose evidence explains at least half of the lateness.

    What failed in time, was illegal or raised is not blamed on a pause or a late wake-up: without them it would have
    failed just the same.
    """
    in_time = e.late_ms is None and e.end_ms < e.deadline_ms
    gave_way = in_time and e.fault == (Cause.EXECUTE, "busy")  # what kept the call waiting is to be found
    if e.fault is not None and ((in_time and not gave_way) or e.fault[1] == "raised"):
        return Verdict(Cause.HOST, e.host) if e.host and e.fault[0] is Cause.NO_OBSERVATION else Verdict(*e.fault)
    need = max(e.excess_ms / 2, LEAST_MS)
    took = e.steps()
    if (verdict := _pause(e, need)) is not None:
        return verdict
    # The host may not have noticed yet.
    if (lost := e.host or ("lost" if e.decoder.state in GONE and "replied" not in e.spans else None)) is not None:
        return Verdict(Cause.HOST, lost)
    if (verdict := _wake(e, took, need)) is not None:
        return verdict
    if e.fault is not None and (gave_way or e.fault[0] is not Cause.EXECUTE):
        return Verdict(*e.fault)
    decided = _all(Cause.DECIDE, _deciding(e, took), e.usual, need)
    return decided or _all(Cause.EXECUTE, _acting(e, took), e.usual, need) or Verdict(Cause.UNKNOWN)


def _pause(e: Evidence, need: float) -> Verdict | None:
    """The process stood still while something was its own to do."""
    awaited = (e.spans.get("submitted"), e.spans.get("decided", None if "replied" in e.spans else e.end_ms))
    windows = [(e.since_ms, e.end_ms)]
    if e.apart and awaited[0] is not None and awaited[1] is not None and awaited[0] < awaited[1]:
        # Meanwhile the decoder was at work: the tick would have waited all the same.
        windows = [(e.since_ms, awaited[0]), (awaited[1], e.end_ms)]
    paused = covered_ms([(b, end) for b, end, _ in e.pauses], windows)
    if paused < need:
        return None
    # The heartbeat misses its turn in a collection, too: only what is left is the stall's.
    collected = covered_ms([(b, end) for b, end, kind in e.pauses if kind == "gc"], windows)
    if collected >= paused / 2:
        return Verdict(Cause.PAUSE, "gc", paused)
    return Verdict(Cause.PAUSE, "disk" if e.loop.major_faults else "stall", paused)


def _wake(e: Evidence, took: Mapping[str, float], need: float) -> Verdict | None:
    """The loop's thread was not there at the release, or not when the reply was; or it, or the actuator's, wanted a
    processor for its part of the tick and had none."""
    windows = _away(e)
    missing = _sum(took, "wake", "deliver")
    delayed = min(e.loop.waking_ms or 0.0, took.get("wake", 0.0))
    delayed += min(e.loop.delayed_ms or 0.0, _sum(took, "observe", "send"))
    delayed += min(max(e.loop.delayed_ms or 0.0, e.sockets.delayed_ms or 0.0), took.get("deliver", 0.0))
    delayed += _kept(e, e.actuator, _sum(took, "wait", "execute"))
    if (texts := covered_ms(e.texts, windows)) >= need:
        return Verdict(Cause.DECIDE, "observe", texts)
    parts = {"scheduler": delayed, "executor": covered_ms(e.acting, windows)}
    if parts[largest := max(parts, key=lambda name: parts[name])] >= need:
        return Verdict(Cause.WAKE, largest, parts[largest])
    if e.loop.major_faults and missing - delayed >= need:
        return Verdict(Cause.WAKE, "disk", missing - delayed)
    if e.arrival and took.get("wake", 0.0) >= need:
        return Verdict(Cause.DECIDE, "queued", took["wake"])
    return None


def _away(e: Evidence) -> list[Span]:
    """When the tick waited for the loop's thread: for its release, and for the reply that was there."""
    windows = [(0.0, e.spans.get("woke", 0.0))]
    if "decided" in e.spans and "replied" in e.spans:
        windows.append((e.spans["decided"], e.spans["replied"]))
    return windows


def _acting(e: Evidence, took: Mapping[str, float]) -> dict[str, float]:
    """What the time after the reply went to, by sub-cause: only while the actuator was at work the world was busy."""
    if (replied := e.spans.get("replied")) is None:
        return {}
    begun = e.spans.get("executing")
    if e.fault is not None and e.fault[1] is not None:
        return {e.fault[1]: covered_ms(e.acting, [(replied, e.end_ms)])}  # the loop knows which, and not since when
    if begun is None:
        return {}
    return {"busy": covered_ms(e.acting, [(replied, begun)]), "slow": took.get("execute", 0.0)}


def _deciding(e: Evidence, took: Mapping[str, float]) -> dict[str, float]:
    """What the time between the release and the reply went to, by sub-cause."""
    # Other ticks' texts kept the loop from this one's release, or from its reply.
    observe = took.get("observe", 0.0) + covered_ms(e.texts, _away(e))
    parts = {"observe": observe, "send": took.get("send", 0.0)}
    submitted = e.spans.get("submitted")
    if submitted is None:
        return parts
    until = e.spans.get("replied", e.end_ms)
    queued, decide = took.get("queue", 0.0), took.get("decide", 0.0)
    heard = still = covered_ms(e.gaps, [(submitted, until)])
    if e.decoder.state in STOPPED and "replied" not in e.spans:
        still = max(still, until - submitted - (e.decoder.ran_ms or 0.0))
    still = max(still, _kept(e, e.decoder, queued + decide), min(e.decoder.throttled_ms or 0.0, queued + decide))
    # While it stood still it neither decided nor kept the request waiting. Of what the kernel alone tells nobody knows
    # when it was: it is the decision's first.
    begun = e.spans.get("begun", until if queued else submitted)
    in_queue = covered_ms(e.gaps, [(submitted, begun)])
    in_decide = covered_ms(e.gaps, [(begun, e.spans.get("decided", until))])
    parts["decoder_stopped"] = still
    parts["queued"] = max(0.0, queued - in_queue - max(0.0, still - heard - decide))
    parts["decoder_slow"] = max(0.0, decide - in_decide - (still - heard))
    return parts


def _all(cause: Cause, parts: Mapping[str, float], usual: Mapping[str, float], need: float) -> Verdict | None:
    """What all parts together took beyond the usual, if that explains enough; the sub-cause is the most of it."""
    normal = {"queued": "queue", "decoder_slow": "decide", "busy": "wait", "slow": "execute"}
    beyond = {name: max(0.0, took - usual.get(normal.get(name, name), 0.0)) for name, took in parts.items()}
    if (explained := sum(beyond.values())) < need:
        return None
    return Verdict(cause, max(beyond, key=lambda name: beyond[name]), explained)


def covered_ms(spans: Sequence[Span], windows: Iterable[Span]) -> float:
    """How much of the windows the spans cover, each instant once."""
    clipped = [(max(b, begin), min(e, end)) for begin, end in windows for b, e in spans]
    total, reached = 0.0, float("-inf")
    for b, e in sorted(span for span in clipped if span[1] > span[0]):
        total += max(0.0, e - max(b, reached))
        reached = max(reached, e)
    return total


def _kept(e: Evidence, kernel: ThreadUsage, waited: float) -> float:
    """How long of `waited` the thread had no processor. The kernel counts it when it is over: one that has not run at
    all, and wants to, has had none all the time."""
    if not e.over and kernel.state == "R" and kernel.ran_ms is not None and kernel.ran_ms < NOTHING_MS:
        return waited
    return min(kernel.delayed_ms or 0.0, waited)


def _sum(took: Mapping[str, float], *names: str) -> float:
    return sum(took.get(name, 0.0) for name in names)


def _stamps(spans: Mapping[str, float]) -> list[float]:
    return [spans[stamp] for _, stamp in STEPS if stamp in spans]
