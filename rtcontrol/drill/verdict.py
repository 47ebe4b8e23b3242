"""What a drill comes to: each injected fault beside the misses that the record has of its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from rtcontrol.drill.injector import Injection
from rtcontrol.telemetry.causes import CAUSES, Cause
from rtcontrol.telemetry.timeline import Timeline

# So many ticks on time one after the other are a recovery.
RECOVERED = 8
# What a miss may be called: `cause.subcause`, or `cause` alone where the list has no sub-causes of it.
NAMES = {
    f"{cause.value}.{sub}" if sub else cause.value
    for cause, entry in CAUSES.items()
    for sub in entry.subcauses or ("",)
} - {Cause.UNKNOWN.value}
Miss = tuple[str, bool]  # what it is called, and whether there is evidence


@dataclass(slots=True)
class SeenTick:
    """A tick as the record has it; `begin_ns` is its release (that of the first one that was skipped before it),
    `end_ns` its deadline. `missed`: each miss that it counts."""

    k: int
    begin_ns: int
    end_ns: int
    missed: list[Miss]


def ticks_of(timeline: Timeline, period_ns: int, deadline_ns: int) -> list[SeenTick]:
    """The ticks of a record, misses named as is known at its end."""
    seen = []
    for row, k in enumerate(timeline.k):
        skipped, t_s = (timeline.numbers[name][row] for name in ("skipped", "t_s"))
        skips = 0 if isnan(skipped) else int(skipped)
        release_ns = timeline.origin_ns + round(t_s * 1e9)
        told = timeline.details.get(k, {})
        missed = []
        if called := _called(timeline, row, ""):
            missed.append((called, bool(told.get("evidence") or told.get("error"))))
        missed += [(_called(timeline, row, "skip_") or "unknown", bool(told.get("skip_evidence")))] * skips
        seen.append(SeenTick(k, release_ns - skips * period_ns, release_ns + deadline_ns, missed))
    return seen


def _called(timeline: Timeline, row: int, what: str) -> str:
    """Return cause and sub-cause of a tick's miss, or of its skipped releases."""
    named = (timeline.words[f"{what}{word}"][row] for word in ("cause", "subcause"))
    return ".".join(filter(None, named))


def verdict(
    injections: Sequence[Injection], ticks: Sequence[SeenTick], violations: Sequence[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    """The drill's JSON."""
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


def recovery_ns(ticks: Sequence[SeenTick], end_ns: int, until_ns: int | None) -> int | None:
    """The release of the first of `RECOVERED` ticks on time after `end_ns`, and before `until_ns`; None: not so."""
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
    why = []
    for miss in missed:
        called = miss[0]
        if not _known(miss):
            why.append(called if called == "unknown" else f"{called}: no evidence")
        elif called not in fault.causes.split():
            why.append(f"{called} is none of its causes")
    if not injection.hit:
        why.append("there was nothing to inject it into")
    if fault.felt and not missed:
        why.append("it cost no tick")
    if recovered_ns is None:
        why.append("no recovery before the next fault")
    return {
        "fault": fault.name,
        "begin_ns": injection.begin_ns,
        "end_ns": injection.end_ns,
        "recovered_s": None if recovered_ns is None else round(max(0, recovered_ns - injection.end_ns) / 1e9, 4),
        "misses": len(missed),
        "causes": dict(Counter(called for called, _ in missed)),
        "attributed": not why,
        "why": sorted(set(why)),
    }


def _known(miss: Miss) -> bool:
    called, proven = miss
    return proven and called in NAMES
