"""From a tick's evidence to the one cause of its miss. Pure: it looks at nothing but what it is given.

Times are milliseconds from the tick's release, as in its event's `spans_ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple

from rtcontrol.loop.deadline import Cause

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
class Kernel:
    """What the kernel counted of a thread from the tick's release on, `waking_ms` (of waiting for a processor) from the
    release before until it woke; `state` is of the moment at which the miss was named. None: it does not tell."""

    state: str | None = None
    ran_ms: float | None = None
    delayed_ms: float | None = None
    waking_ms: float | None = None
    major_faults: int | None = None
    involuntary: int | None = None
    throttled_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a tick that missed.

    `end_ms` is when its call had acted, or where there is none (`over` is False) when the miss was named. `fault` is
    what the loop itself saw (None: there was no call in time). `late_ms` is the lateness where it is not the tick's own
    (an observation's age), `since_ms` from when on it grew. `usual` are the steps of ticks on time, lately. `apart`:
    the decoder is a process of its own, with `gaps` in its heartbeat; `behind`: older requests are not answered yet.
    `arrival`: the release was the arrival of an observation, which waits while an earlier one is decided. `host` is
    what is wrong with the decoder's. `busy` and `acting` are when the loop's thread was at work on an earlier tick's
    text, and the actuator's on a call.
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
    writes: Sequence[Span] = ()
    apart: bool = False
    gaps: Sequence[Span] = ()
    behind: bool = False
    arrival: bool = False
    host: str | None = None
    busy: Span = (0.0, 0.0)
    acting: Span = (0.0, 0.0)
    loop: Kernel = Kernel()
    decoder: Kernel = Kernel()

    @property
    def lateness_ms(self) -> float:
        """By how much it was late: after its deadline, or while nothing acted yet, beyond what a tick usually takes."""
        if self.late_ms is not None:
            return self.late_ms
        return self.end_ms - (self.deadline_ms if self.over else min(sum(self.usual.values()), self.deadline_ms))

    def told(self, verdict: Verdict) -> dict[str, Any]:
        """What the event says of it: numbers first, then whatever stood still, then what the kernel counted."""
        line: dict[str, Any] = {"late_ms": round(self.lateness_ms, 3)}
        if verdict.explained_ms is not None:
            line["explained_ms"] = round(verdict.explained_ms, 3)
        line["steps_ms"] = {name: round(took, 3) for name, took in self.steps().items()}
        still: dict[str, Sequence[tuple[Any, ...]]]
        still = {"pauses": self.pauses, "decoder_gaps": self.gaps, "slow_writes": self.writes}
        for name, spans in still.items():
            if spans:
                line[name] = [[round(x, 3) if isinstance(x, float) else x for x in span] for span in spans]
        for name, kernel in (("loop", self.loop), ("decoder", self.decoder)):
            if known := {key: value for key, value in asdict(kernel).items() if value is not None}:
                line[name] = known
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
    if e.fault is not None and (e.fault[1] == "raised" or (e.late_ms is None and e.end_ms <= e.deadline_ms)):
        return Verdict(Cause.HOST, e.host) if e.host and e.fault[0] is Cause.NO_OBSERVATION else Verdict(*e.fault)
    need = max(e.lateness_ms / 2, LEAST_MS)
    took = e.steps()
    if (verdict := _pause(e, need)) is not None:
        return verdict
    if (lost := "lost" if e.decoder.state in GONE and "replied" not in e.spans else e.host) is not None:
        return Verdict(Cause.HOST, lost)
    if (verdict := _wake(e, took, need)) is not None:
        return verdict
    if e.fault is not None and e.fault[0] is not Cause.EXECUTE:
        return Verdict(*e.fault)
    if e.fault is not None or "executing" in e.spans:
        acted = {"busy": took.get("wait", 0.0), "slow": took.get("execute", 0.0)}
        if e.fault is not None and e.fault[1] is not None:
            acted = {e.fault[1]: sum(acted.values())}  # the loop knows which, and not when it began
        if (verdict := _largest(Cause.EXECUTE, acted, e.usual, need)) is not None:
            return verdict
    return _largest(Cause.DECIDE, _deciding(e, took), e.usual, need) or Verdict(Cause.UNKNOWN)


def _pause(e: Evidence, need: float) -> Verdict | None:
    """The process stood still while something was its own to do."""
    awaited = (e.spans.get("submitted"), e.spans.get("decided", None if "replied" in e.spans else e.end_ms))
    windows = [(e.since_ms, e.end_ms)]
    if e.apart and awaited[0] is not None and awaited[1] is not None and awaited[0] < awaited[1]:
        # Meanwhile the decoder was at work: the tick would have waited all the same.
        windows = [(e.since_ms, awaited[0]), (awaited[1], e.end_ms)]
    return _of_kind(Cause.PAUSE, e, windows, need)


def _of_kind(cause: Cause, e: Evidence, windows: Sequence[Span], need: float) -> Verdict | None:
    paused = covered_ms([(b, end) for b, end, _ in e.pauses], windows)
    if paused < need:
        return None
    kinds = {kind for _, _, kind in e.pauses}
    of = {kind: covered_ms([(b, end) for b, end, k in e.pauses if k == kind], windows) for kind in sorted(kinds)}
    kind = max(of, key=lambda kind: of[kind])
    return Verdict(cause, "disk" if kind == "stall" and e.loop.major_faults else kind, paused)


def _wake(e: Evidence, took: Mapping[str, float], need: float) -> Verdict | None:
    """The loop's thread was not there at the release, or not when the reply was."""
    windows = [(0.0, e.spans.get("woke", 0.0))]
    if "decided" in e.spans and "replied" in e.spans:
        windows.append((e.spans["decided"], e.spans["replied"]))
    missing = took.get("wake", 0.0) + took.get("deliver", 0.0)
    if missing < need:
        return None
    waking = min(e.loop.waking_ms or 0.0, took.get("wake", 0.0))
    delayed = waking + min(e.loop.delayed_ms or 0.0, took.get("deliver", 0.0))
    if (busy := covered_ms([e.busy], windows)) >= need:
        return Verdict(Cause.DECIDE, "observe", busy)
    if (verdict := _of_kind(Cause.WAKE, e, windows, need)) is not None:
        return verdict
    parts = {"scheduler": delayed, "executor": covered_ms([e.acting], windows)}
    if (verdict := _largest(Cause.WAKE, parts, {}, need)) is not None:
        return verdict
    if e.loop.major_faults and missing - delayed >= need:
        return Verdict(Cause.WAKE, "disk", missing - delayed)
    if e.arrival and took.get("wake", 0.0) >= need:
        return Verdict(Cause.DECIDE, "queued", took["wake"])
    return None


def _deciding(e: Evidence, took: Mapping[str, float]) -> dict[str, float]:
    """What the time between the release and the reply went to, by sub-cause."""
    parts = {"observe": took.get("observe", 0.0), "send": took.get("send", 0.0)}
    submitted = e.spans.get("submitted")
    if submitted is None:
        return parts
    until = e.spans.get("replied", e.end_ms)
    waited = took.get("queue", 0.0) + took.get("decide", 0.0)
    still = covered_ms(e.gaps, [(submitted, until)])
    if e.decoder.state in STOPPED and "replied" not in e.spans:
        still = max(still, until - submitted - (e.decoder.ran_ms or 0.0))
    kept = max(e.decoder.delayed_ms or 0.0, e.decoder.throttled_ms or 0.0)
    still = max(still, min(kept, waited))
    parts["decoder_stopped"] = still
    begun = e.spans.get("begun", submitted)
    queue_gaps = covered_ms(e.gaps, [(submitted, begun)])
    queued = took.get("queue", 0.0)
    # Whatever stood still in the queue's time is not the queue's, and the rest of it not the decision's.
    in_queue = queue_gaps if "begun" in e.spans else min(still, queued)
    parts["queued"] = max(0.0, queued - in_queue)
    parts["decoder_slow"] = max(0.0, took.get("decide", 0.0) - max(0.0, still - in_queue))
    return parts


def _largest(cause: Cause, parts: Mapping[str, float], usual: Mapping[str, float], need: float) -> Verdict | None:
    """The part that is most above what it usually is, if it explains enough."""
    normal = {"queued": "queue", "decoder_slow": "decide", "busy": "wait", "slow": "execute"}
    enough = [
        (took - usual.get(normal.get(name, name), 0.0), name, took) for name, took in parts.items() if took >= need
    ]
    if not enough:
        return None
    _, name, took = max(enough)
    return Verdict(cause, name, took)


def covered_ms(spans: Sequence[Span], windows: Iterable[Span]) -> float:
    """How much of the windows the spans cover, each instant once."""
    clipped = [(max(b, begin), min(e, end)) for begin, end in windows for b, e in spans]
    total, reached = 0.0, float("-inf")
    for b, e in sorted(span for span in clipped if span[1] > span[0]):
        total += max(0.0, e - max(b, reached))
        reached = max(reached, e)
    return total


def _stamps(spans: Mapping[str, float]) -> list[float]:
    return [spans[stamp] for _, stamp in STEPS if stamp in spans]
