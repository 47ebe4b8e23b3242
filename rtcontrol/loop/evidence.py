"""From the stamps of a tick and a sample of the process to the evidence of its miss. Pure.

`attribution` then names the cause. Instants are CLOCK_MONOTONIC nanoseconds, spans milliseconds from the release.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop.attribution import Evidence, ThreadUsage, Verdict, attribute, usual
from rtcontrol.records import SPANS, Completion, EvidenceSample, HostChanged, ThreadReading, Tick, TickOutcome
from rtcontrol.telemetry.causes import Cause

# So many ticks on time tell what is usual.
USUAL = 15
# Of the threads in a sample: the loop's and the actuator's, which stay the same after a restart of the decoder.
LOCAL = 2


@dataclass(slots=True)
class MissFinding:
    """A miss with its evidence, and what that says so far."""

    tick: Tick
    evidence: Evidence
    verdict: Verdict = field(init=False)

    def __post_init__(self) -> None:
        self.verdict = attribute(self.evidence)

    @property
    def open(self) -> bool:
        """Whether later evidence may change it: only what is a matter of time, or unknown."""
        return self.verdict.explained_ms is not None or self.verdict.cause is Cause.UNKNOWN

    def fields(self) -> dict[str, Any]:
        """Return what the record's line says: cause, sub-cause and evidence."""
        line: dict[str, Any] = {"cause": self.verdict.cause.value}
        if self.verdict.subcause is not None:
            line["subcause"] = self.verdict.subcause
        line["evidence"] = self.evidence.to_dict(self.verdict)
        return line


class Witness:
    """Knows what evidence needs beyond the tick itself: what is usual (spans of ticks on time), when the loop's thread
    was long at work on `texts`, in which `gaps` the decoder stood still (by its newest reply), and the sample before.
    `periodic`: a release comes by the clock, not by an arrival."""

    def __init__(self, periodic: bool) -> None:
        self.texts: deque[tuple[int, int]] = deque(maxlen=8)
        self.gaps: Sequence[tuple[int, int]] = ()
        self.before = EvidenceSample()
        self._on_time: deque[Mapping[str, float]] = deque(maxlen=USUAL)
        self._usual: Mapping[str, float] | None = {}  # None: to be computed
        self._periodic = periodic

    def on_time(self, spans: Mapping[str, float]) -> None:
        """A tick was on time."""
        self._on_time.append(spans)
        self._usual = None

    def finding(self, outcome: TickOutcome, sample: EvidenceSample, host: HostChanged, end_ns: int) -> MissFinding:
        """Judge a tick that was over at `end_ns`: with a call, or a reply, that came after its deadline, or without."""
        tick, reply, fault = outcome.tick, outcome.reply, outcome.fault
        spans = spans_of(tick, reply, outcome.done)
        late, since = self._lateness(outcome, spans)
        evidence = self._evidence(
            tick,
            sample,
            _filled(spans, reply),
            to_ms(end_ns - tick.release_ns),
            since,
            over=reply is not None and fault is None,
            fault=fault,
            late_ms=late,
            behind=tick.behind,
            host=_host_failure(tick, host) if reply is None else None,
        )
        self.before = sample
        return MissFinding(tick, evidence)

    def completed(
        self, finding: MissFinding, sample: EvidenceSample, spans: dict[str, float], reply: DecisionReply
    ) -> MissFinding:
        """Judge a miss again whose steps are known to the end now: its reply came, or its call ended."""
        tick, before = finding.tick, finding.evidence
        end = max(spans.values())
        gaps = list(dict.fromkeys([*before.gaps, *_clip(tick, self.gaps, end)]))
        evidence = replace(
            before,
            end_ms=end,
            spans=_filled(spans, reply),
            over=True,
            host=None,
            gaps=gaps,
            pauses=_pauses(tick, sample, before.since_ms, end),
            acting=_acting(tick, sample, end),
            texts=_clip(tick, self.texts, end),
        )
        # Its state, faults and throttling are those of the miss.
        for role, usage in _worst(sample, _times(tick, sample)).items():
            if usage.ran_ms is not None:
                thread = replace(getattr(before, role), ran_ms=usage.ran_ms, delayed_ms=usage.delayed_ms)
                evidence = replace(evidence, **{role: thread})
        return MissFinding(tick, evidence)

    def final(self, finding: MissFinding) -> MissFinding:
        """Judge a miss whose own reply did not come: by the gaps that other replies told of meanwhile."""
        before = finding.evidence
        gaps = [gap for gap in _clip(finding.tick, self.gaps, before.end_ms) if gap not in before.gaps]
        if not gaps or not finding.open:
            return finding
        evidence = replace(before, gaps=[*before.gaps, *gaps])
        return MissFinding(finding.tick, evidence)

    def skip_fields(self, tick: Tick, first_ns: int, sample: EvidenceSample) -> dict[str, Any]:
        """Return why the releases from `first_ns` until the tick's did not begin: the loop's thread was away."""
        skipped = replace(tick, release_ns=first_ns)
        woke = to_ms(tick.woke_ns - first_ns)
        away: dict[str, Any] = {"over": True, "late_ms": woke, "decoder": ThreadUsage()}
        evidence = self._evidence(skipped, sample, {"woke": woke}, woke, **away)
        fields = MissFinding(skipped, evidence).fields()
        return {f"skip_{name}": value for name, value in fields.items()}

    def _evidence(
        self, tick: Tick, sample: EvidenceSample, spans: dict[str, float], end: float, since: float = 0.0, **more: Any
    ) -> Evidence:
        """Return what is known of a tick from its release until `end`."""
        if self._usual is None:
            self._usual = usual(self._on_time)
        known: dict[str, Any] = {
            "usual": self._usual,
            "pauses": _pauses(tick, sample, since, end),
            "apart": sample.apart,
            "gaps": _clip(tick, self.gaps, end),
            "arrival": not self._periodic,
            "texts": _clip(tick, self.texts, end),
            "acting": _acting(tick, sample, end),
            **self._usages(tick, sample),
        }
        deadline = to_ms(tick.deadline_ns - tick.release_ns)
        return Evidence(deadline, end, spans, since_ms=since, **{**known, **more})

    def _lateness(self, outcome: TickOutcome, spans: Mapping[str, float]) -> tuple[float | None, float]:
        """Return an observation's lateness, and from when on it grew, where that is what is judged."""
        tick, fault = outcome.tick, outcome.fault
        if fault is None or fault[0] is not Cause.STALE_OBSERVATION:
            return None, 0.0
        # What kept the loop from looking kept the world's own thread, too.
        ages = [spans["woke"] - spans["captured"] for spans in self._on_time if "captured" in spans]
        late = to_ms(tick.woke_ns - tick.capture_ns) - (median(ages) if ages else 0.0)
        return late, to_ms(tick.capture_ns - tick.release_ns)

    def _usages(self, tick: Tick, sample: EvidenceSample) -> dict[str, ThreadUsage]:
        """Return what the kernel counted of each role since the release; what is older is none of this tick's."""
        recent = self.before.t_ns >= 2 * tick.release_ns - tick.deadline_ns
        before = self.before.threads if recent and len(self.before.threads) == len(sample.threads) else None
        usages = []
        for i, (thread, usage) in enumerate(zip(sample.threads, _times(tick, sample), strict=True)):
            past = ThreadReading("") if before is None else before[i]
            throttled = _since(thread.throttled_ns, past.throttled_ns)
            usages.append(
                replace(
                    usage,
                    state=thread.state,
                    major_faults=_since(thread.major_faults, past.major_faults),
                    throttled_ms=None if throttled is None else to_ms(throttled),
                )
            )
        return _worst(sample, usages)


def ran_and_delayed(raw: bytes) -> tuple[int, int]:
    """Return nanoseconds on a processor, and of waiting for one, from a schedstat file. ValueError for another."""
    ran, delayed = raw.split()[:2]
    return int(ran), int(delayed)


def spans_of(tick: Tick, reply: DecisionReply | None, done: Completion | None) -> dict[str, float]:
    """Return when each step was done, in ms from the release on, as far as it is known."""
    release_ns = tick.release_ns
    stamps = [tick.capture_ns, tick.woke_ns, tick.text_ns, tick.submitted_ns]
    if reply is not None:
        decided_ns = reply.begun_ns and reply.begun_ns + reply.decide_ns
        stamps += (reply.received_ns, reply.begun_ns, decided_ns, tick.replied_ns)
    if done is not None:
        stamps += (done.began_ns, done.ended_ns)
    spans = {}
    for name, t_ns in zip(SPANS, stamps, strict=False):
        if t_ns:
            spans[name] = round((t_ns - release_ns) / 1e6, 4)
    return spans


def _filled(spans: Mapping[str, float], reply: DecisionReply | None) -> dict[str, float]:
    """The spans, with the decoder's own where its clock is another: it began so long before its reply was there."""
    filled = {name: t for name, t in spans.items() if name not in ("captured", "received")}
    if reply is not None and "begun" not in filled and "submitted" in filled and "replied" in filled:
        filled["decided"] = filled["replied"]
        filled["begun"] = max(filled["submitted"], filled["replied"] - to_ms(reply.decide_ns))
    return filled


def _host_failure(tick: Tick, host: HostChanged) -> str | None:
    """What is wrong with the decoder that was asked; None: nothing."""
    if host.gave_up is not None:
        return "gave_up"
    if host.incarnation != tick.incarnation:
        return "lost"
    if host.alive:
        return None
    lost = [event.t_ns for event in host.events if event.event == "lost"]
    return "restarting" if lost and lost[-1] < tick.release_ns else "lost"


def _times(tick: Tick, sample: EvidenceSample) -> list[ThreadUsage]:
    """Of each thread: for how long it ran and had no processor since the release, as far as that is known."""
    # After a restart other threads decide.
    runs = tick.runs if tick.incarnation == sample.incarnation else tick.runs[:LOCAL]
    times = [ThreadUsage() for _ in sample.threads]
    for i, (thread, raw) in enumerate(zip(sample.threads, runs, strict=False)):
        if thread.ran_ns is None or thread.delayed_ns is None:
            continue
        try:
            ran, delayed = ran_and_delayed(raw)
            waking = None
            if i < min(LOCAL, len(tick.runs_before)):
                waking = to_ms(delayed - ran_and_delayed(tick.runs_before[i])[1])
        except ValueError:
            continue
        times[i] = ThreadUsage(None, to_ms(thread.ran_ns - ran), to_ms(thread.delayed_ns - delayed), waking)
    return times


def _worst(sample: EvidenceSample, usages: Sequence[ThreadUsage]) -> dict[str, ThreadUsage]:
    """By role: of several threads the one that waited longest for a processor."""
    worst: dict[str, ThreadUsage] = {}
    for thread, usage in zip(sample.threads, usages, strict=True):
        role = thread.role
        if role not in worst or (usage.delayed_ms or 0.0) > (worst[role].delayed_ms or 0.0):
            worst[role] = usage
    return worst


def _pauses(tick: Tick, sample: EvidenceSample, since: float, until: float) -> list[tuple[float, float, str]]:
    spans = ((to_ms(begin - tick.release_ns), to_ms(end - tick.release_ns), kind) for begin, end, kind in sample.pauses)
    return [(max(b, since), min(e, until), kind) for b, e, kind in spans if e > since and b < until]


def _acting(tick: Tick, sample: EvidenceSample, until: float) -> list[tuple[float, float]]:
    # One that has not ended is under way, or went on beside the next.
    begins = [*(begin for begin, _ in sample.acting[1:]), sample.t_ns]
    spans = [(begin, end or next_) for (begin, end), next_ in zip(sample.acting, begins, strict=False)]
    return _clip(tick, spans, until)


def _clip(tick: Tick, spans: Sequence[tuple[int, int]], until: float) -> list[tuple[float, float]]:
    relative = [(to_ms(begin - tick.release_ns), to_ms(end - tick.release_ns)) for begin, end in spans]
    return [(max(b, 0.0), min(e, until)) for b, e in relative if e > 0.0 and b < until]


def _since(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def to_ms(ns: int) -> float:
    """Return milliseconds, as the record has them."""
    return round(ns / 1e6, 4)
