"""What a drill comes to: what must hold of the calls that acted, and each injected fault next to its time's misses.

What acted is known from the world alone: nothing that the run says of itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.drill.faults import DrillFault
from rtcontrol.telemetry.causes import CAUSES, Cause
from rtcontrol.telemetry.timeline import Timeline

# Between the last look at the deadline and the instant that is written down lie some lines of Python.
LATE_NS = 2_000_000
# The safe call is due at the end of the hold; two periods later, and so much for a busy machine, it has no excuse.
SLACK_NS = 150_000_000
# After the run was requested to end, the safe call acts within so long.
END_NS = 1_000_000_000
Event = Mapping[str, Any]
Span = tuple[int, int]


class FaultJudge:
    """Checks the calls of one run, of these times. Each violation is an entry of `violations`, with its instant."""

    def __init__(self, period_ns: int, hold_ns: int) -> None:
        self.period_ns, self.hold_ns = period_ns, hold_ns
        self.violations: list[dict[str, Any]] = []
        self._covered: float = math.inf  # until then something is active that may be
        self._excused: list[Span] = []

    def check(self, events: Sequence[Event], end_ns: int, excused: Sequence[Span] = ()) -> None:
        """Go through what acted (`act`, `reset`) in order. The run was requested to end at `end_ns`; nothing could act
        in the spans that are `excused`."""
        acts = [event for event in events if event["event"] == "act"]
        self._excused = [*excused, *((act["t"], act["end"]) for act in acts)]  # while a call acts, no other can
        first_ns = min((act["t"] for act in acts), default=math.inf)
        parted, last_deadline = not acts, 0
        for event in sorted((*events, {"event": "end", "t": end_ns}), key=lambda event: event["t"]):
            t_ns = event["t"]
            if event["event"] == "act":
                not_after_ns = event["not_after"]
                if not_after_ns is not None:
                    self._check_time(t_ns, not_after_ns, last_deadline)
                    last_deadline = not_after_ns
                    if parted:
                        self.violate(t_ns, "a call acted after the stop")
                elif t_ns > end_ns:
                    parted = True
                if not event["failed"]:
                    self._cover(t_ns, math.inf if not_after_ns is None else event["end"] + self.hold_ns)
            elif event["event"] == "reset" and first_ns < t_ns < end_ns:
                self._cover(t_ns, t_ns + self.hold_ns)
            elif event["event"] == "end" and self._covered < math.inf:
                self._covered = min(self._covered, t_ns + END_NS)
        self._cover(max(event["t"] for event in (*events, {"t": end_ns})), math.inf)
        if not parted:
            self.violate(end_ns, "no safe call acted after the stop")

    def _check_time(self, t_ns: int, not_after_ns: int, last_ns: int) -> None:
        if t_ns > not_after_ns + LATE_NS:
            self.violate(t_ns, f"{(t_ns - not_after_ns) / 1e6:.1f} ms after its deadline")
        if not_after_ns <= last_ns:
            self.violate(t_ns, "its deadline is no later than that of the call before it")

    def _cover(self, t_ns: int, until: float) -> None:
        """Something acts at `t_ns`, and may be active `until` then."""
        if self._covered < t_ns:
            begin_ns = int(self._covered)
            bare_ns = t_ns - begin_ns - _overlap(self._excused, begin_ns, t_ns)
            if bare_ns > 2 * self.period_ns + SLACK_NS:
                self.violate(t_ns, f"no safe call for {bare_ns / 1e6:.0f} ms after the hold")
        self._covered = until

    def violate(self, t_ns: int, law: str) -> None:
        self.violations.append({"t_ns": t_ns, "what": law})


def _overlap(spans: Sequence[Span], begin: int, end: int) -> int:
    """Return how much of the time between is covered by spans, which may overlap each other."""
    total, reached = 0, begin
    for b, e in sorted(spans):
        e = min(e, end)
        total += max(0, e - max(b, reached))
        reached = max(reached, e)
    return total


# -- the verdict -------------------------------------------------------------------------------------------------------

# So many ticks on time one after the other are a recovery.
RECOVERED = 8
# What a miss may be called: `cause.subcause`, or `cause` alone where the list has no sub-causes of it.
NAMES = {
    f"{cause.value}.{sub}" if sub else cause.value
    for cause, entry in CAUSES.items()
    for sub in entry.subcauses or ("",)
} - {Cause.UNKNOWN.value}
Miss = tuple[str, bool]  # what it is called, and whether there is evidence


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that was injected; instants of CLOCK_MONOTONIC. `hit`: there was something to inject it into."""

    fault: DrillFault
    begin_ns: int
    end_ns: int
    hit: bool = True


@dataclass(slots=True)
class RecordedTick:
    """A tick as the record has it; `begin_ns` is its release (that of the first one that was skipped before it),
    `end_ns` its deadline. `missed`: each miss that it counts."""

    k: int
    begin_ns: int
    end_ns: int
    missed: list[Miss]


def ticks_of(timeline: Timeline, period_ns: int, deadline_ns: int) -> list[RecordedTick]:
    """Return the ticks of a record, misses named as is known at its end."""
    recorded = []
    for row, k in enumerate(timeline.k):
        skipped, t_s = (timeline.numbers[name][row] for name in ("skipped", "t_s"))
        skips = 0 if math.isnan(skipped) else int(skipped)
        release_ns = timeline.account.run["origin_ns"] + round(t_s * 1e9)
        details = timeline.details.get(k, {})
        missed = []
        if called := _called(timeline, row, ""):
            missed.append((called, bool(details.get("evidence") or details.get("error"))))
        missed += [(_called(timeline, row, "skip_") or "unknown", bool(details.get("skip_evidence")))] * skips
        recorded.append(RecordedTick(k, release_ns - skips * period_ns, release_ns + deadline_ns, missed))
    return recorded


def _called(timeline: Timeline, row: int, prefix: str) -> str:
    """Return cause and sub-cause of a tick's miss, or of its skipped releases."""
    return ".".join(filter(None, (timeline.words[f"{prefix}{word}"][row] for word in ("cause", "subcause"))))


def verdict(
    injections: Sequence[Injection], ticks: Sequence[RecordedTick], violations: Sequence[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    """Return the drill's JSON."""
    faults, inside = [], set()
    for i, injection in enumerate(injections):
        until_ns = injections[i + 1].begin_ns if i + 1 < len(injections) else None
        recovered_ns = recovery_ns(ticks, injection.end_ns, until_ns)
        end_ns = recovered_ns if recovered_ns is not None else until_ns
        during = [t for t in ticks if t.end_ns >= injection.begin_ns and (end_ns is None or t.begin_ns < end_ns)]
        inside |= {t.k for t in during}
        faults.append(_judged(injection, [m for t in during for m in t.missed], recovered_ns))
    outside = [(t, miss) for t in ticks if t.k not in inside for miss in t.missed]
    everything = [miss for t in ticks for miss in t.missed]
    return {
        "seed": seed,
        "injected": len(faults),
        "attributed": sum(f["attributed"] for f in faults),
        "unknown": sum(not _known(miss) for miss in everything),
        "uninjected": len(outside),
        "invariants_violated": len(violations),
        "misses": len(everything),
        "faults": faults,
        "uninjected_misses": [{"k": t.k, "t_ns": t.begin_ns, "called": called} for t, (called, _) in outside],
        "violations": list(violations),
    }


def recovery_ns(ticks: Sequence[RecordedTick], end_ns: int, until_ns: int | None) -> int | None:
    """Return the release of the first of `RECOVERED` ticks on time after `end_ns` and before `until_ns`, or None."""
    on_time: list[int] = []
    for tick in ticks:
        if tick.begin_ns < end_ns:
            continue
        if until_ns is not None and tick.begin_ns >= until_ns:
            return None
        on_time = [] if tick.missed else [*on_time, tick.begin_ns]
        if len(on_time) == RECOVERED:
            return on_time[0]
    return None


def _judged(injection: Injection, missed: Sequence[Miss], recovered_ns: int | None) -> dict[str, Any]:
    fault = injection.fault
    why = set()
    for miss in missed:
        called = miss[0]
        if not _known(miss):
            why.add(called if called == "unknown" else f"{called}: no evidence")
        elif called not in fault.causes.split():
            why.add(f"{called} is none of its causes")
    if not injection.hit:
        why.add("there was nothing to inject it into")
    if fault.felt and not missed:
        why.add("it cost no tick")
    if recovered_ns is None:
        why.add("no recovery before the next fault")
    return {
        "fault": fault.name,
        "begin_ns": injection.begin_ns,
        "end_ns": injection.end_ns,
        "recovered_s": None if recovered_ns is None else round(max(0, recovered_ns - injection.end_ns) / 1e9, 4),
        "misses": len(missed),
        "causes": dict(Counter(called for called, _ in missed)),
        "attributed": not why,
        "why": sorted(why),
    }


def _known(miss: Miss) -> bool:
    called, proven = miss
    return proven and called in NAMES
