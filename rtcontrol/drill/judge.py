"""Judge a drill: check the safety rules of executed calls, and compare the causes of misses with the injected faults.

The environment's log shows which calls were executed. What the run itself recorded about its calls is not used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.drill.faults import DrillFault
from rtcontrol.telemetry.causes import NAMES
from rtcontrol.telemetry.timeline import Timeline

# A call may be logged this long after its deadline, because the deadline is checked a little before the call starts.
LATENESS_TOLERANCE_NS = 2_000_000
# The safe call must start within two periods plus this time after the end of the hold.
SAFE_CALL_TOLERANCE_NS = 150_000_000
# The last safe call of a run must start within this time after the run's stop.
LAST_SAFE_CALL_NS = 1_000_000_000
Event = Mapping[str, Any]
Span = tuple[int, int]
Violation = tuple[int, str]  # (time of the violation, description)


def violations(
    events: Sequence[Event], end_ns: int, period_ns: int, hold_ns: int, excused: Sequence[Span] = ()
) -> list[Violation]:
    """Return how and when a run violated the safety rules.

    `events`: the environment's log. `end_ns`: when the run was stopped. `excused`: spans in which no call could act."""
    acts = sorted((event for event in events if event["event"] == "act"), key=lambda act: act["t"])
    if not acts:
        return []
    broken = [*_call_violations(acts, end_ns)]
    busy = [*excused, *((act["t"], act["end"]) for act in acts)]  # while another call runs, no safe call can start
    resets = [event["t"] for event in events if event["event"] == "reset" and acts[0]["t"] < event["t"] < end_ns]
    for start_ns, t_ns in _spans_without_safe_call(acts, resets, end_ns, hold_ns):
        unsafe_ns = t_ns - start_ns - _covered_ns(busy, start_ns, t_ns)
        if unsafe_ns > 2 * period_ns + SAFE_CALL_TOLERANCE_NS:
            broken.append((t_ns, f"no safe call for {unsafe_ns / 1e6:.0f} ms after the hold"))
    return sorted(broken)


def _call_violations(acts: Sequence[Event], end_ns: int) -> Iterator[Violation]:
    """Yield the calls that started too late, in the wrong order or after the stop, and a missing last safe call."""
    stop_done, last_ns = False, 0
    for act in acts:
        t_ns, not_after_ns = act["t"], act["not_after"]
        if not_after_ns is None:
            stop_done = stop_done or t_ns > end_ns
            continue
        if t_ns > not_after_ns + LATENESS_TOLERANCE_NS:
            yield t_ns, f"{(t_ns - not_after_ns) / 1e6:.1f} ms after its deadline"
        if not_after_ns <= last_ns:
            yield t_ns, "a call acted after a call with a later deadline"
        if stop_done:
            yield t_ns, "a call acted after the stop"
        last_ns = not_after_ns
    if not stop_done:
        yield end_ns, "no safe call acted after the stop"


def _spans_without_safe_call(acts: Sequence[Event], resets: Sequence[int], end_ns: int, hold_ns: int) -> Iterator[Span]:
    """Yield the spans (after the hold of a call, or after the stop) in which the safe call was due but not active."""
    changes: list[tuple[int, float]] = [(t_ns, t_ns + hold_ns) for t_ns in resets]
    for act in acts:
        if not act["failed"]:
            changes.append((act["t"], math.inf if act["not_after"] is None else act["end"] + hold_ns))
    covered_until = math.inf  # the end of the last call's hold; infinity while the safe call is active
    for t_ns, until in sorted([*changes, (end_ns, -1), (max(end_ns, acts[-1]["t"]), math.inf)]):
        if until == -1:  # this entry is the stop of the run
            covered_until = covered_until if covered_until == math.inf else min(covered_until, t_ns + LAST_SAFE_CALL_NS)
            continue
        if covered_until < t_ns:
            yield int(covered_until), t_ns
        covered_until = until


def _covered_ns(spans: Sequence[Span], start: int, end: int) -> int:
    """Return how much of the time from `start` to `end` the spans cover. They may overlap."""
    total, reached = 0, start
    for span_start, span_end in sorted(spans):
        span_end = min(span_end, end)
        total += max(0, span_end - max(span_start, reached))
        reached = max(reached, span_end)
    return total


# -- the verdict -------------------------------------------------------------------------------------------------------

RECOVERY_TICKS = 8  # after this number of consecutive ticks on time, a run has recovered
Miss = tuple[str, bool]  # ("cause.subcause" of a miss, whether the record has evidence for it)


@dataclass(frozen=True, slots=True)
class Injection:
    """An attempt to inject a fault. `begin_ns`, `end_ns`: start and end of the fault (CLOCK_MONOTONIC). `injected` is
    False if the process to be stopped or killed did not exist."""

    fault: DrillFault
    begin_ns: int
    end_ns: int
    injected: bool = True


@dataclass(slots=True)
class RecordedTick:
    """A tick of the record, with the skipped releases directly before it. `begin_ns`: the first release. `end_ns`: the
    tick's deadline. `missed`: the misses of the tick and of the skipped releases."""

    k: int
    begin_ns: int
    end_ns: int
    missed: list[Miss]


def recorded_ticks(timeline: Timeline, period_ns: int, deadline_ns: int) -> list[RecordedTick]:
    """Return the ticks of a record and their misses."""
    ticks = []
    for row, k in enumerate(timeline.k):
        skipped, t_s = (timeline.numbers[name][row] for name in ("skipped", "t_s"))
        skips = 0 if math.isnan(skipped) else int(skipped)
        release_ns = timeline.account.run["origin_ns"] + round(t_s * 1e9)
        details = timeline.details.get(k, {})
        missed = [(_miss_name(timeline, row, "skip_"), bool(details.get("skip_evidence")))] * skips
        if timeline.words["cause"][row]:
            missed.append((_miss_name(timeline, row, ""), bool(details.get("evidence") or details.get("error"))))
        ticks.append(RecordedTick(k, release_ns - skips * period_ns, release_ns + deadline_ns, missed))
    return ticks


def _miss_name(timeline: Timeline, row: int, prefix: str) -> str:
    """Return "cause.subcause" of a tick's miss or, if `prefix` is "skip_", of the skipped releases before the tick."""
    return ".".join(filter(None, (timeline.words[f"{prefix}{word}"][row] for word in ("cause", "subcause"))))


def verdict(
    injections: Sequence[Injection], ticks: Sequence[RecordedTick], violated: Sequence[Violation], seed: int
) -> dict[str, Any]:
    """Judge which injections explain the misses of `ticks`. Return the contents of drill.json."""
    faults, inside = [], set()
    for i, injection in enumerate(injections):
        until_ns = injections[i + 1].begin_ns if i + 1 < len(injections) else math.inf
        recovered_ns = _recovery_ns(ticks, injection.end_ns, until_ns)
        end_ns = until_ns if recovered_ns is None else recovered_ns
        during = [t for t in ticks if t.end_ns >= injection.begin_ns and t.begin_ns < end_ns]
        inside |= {t.k for t in during}
        faults.append(_fault_result(injection, [m for t in during for m in t.missed], recovered_ns))
    outside = [(t, miss) for t in ticks if t.k not in inside for miss in t.missed]
    everything = [miss for t in ticks for miss in t.missed]
    return {
        "seed": seed,
        "injected": len(faults),
        "attributed": sum(f["attributed"] for f in faults),
        "unknown": sum(not _has_known_cause(miss) for miss in everything),
        "uninjected": len(outside),
        "invariants_violated": len(violated),
        "misses": len(everything),
        "faults": faults,
        "uninjected_misses": [{"k": t.k, "t_ns": t.begin_ns, "called": name} for t, (name, _) in outside],
        "violations": [{"t_ns": t_ns, "what": what} for t_ns, what in violated],
    }


def _recovery_ns(ticks: Sequence[RecordedTick], end_ns: int, until_ns: float) -> int | None:
    """Return when the first RECOVERY_TICKS consecutive ticks without a miss start, between `end_ns` and `until_ns`.

    Return None if the run does not recover in this time."""
    after = [tick for tick in ticks if end_ns <= tick.begin_ns < until_ns]
    for i in range(len(after) - RECOVERY_TICKS + 1):
        if not any(tick.missed for tick in after[i : i + RECOVERY_TICKS]):
            return after[i].begin_ns
    return None


def _fault_result(injection: Injection, missed: Sequence[Miss], recovered_ns: int | None) -> dict[str, Any]:
    """Return the entry of drill.json for an injection, with the reasons (`why`) if its misses are not attributed."""
    fault = injection.fault
    why = {f"{name}: no evidence" for name, has_evidence in missed if not has_evidence}
    why |= {f"{name} is not a cause of this fault" for name, _ in missed if name not in fault.causes.split()}
    if not injection.injected:
        why.add("the target process did not exist")
    if fault.must_miss and not missed:
        why.add("the fault caused no miss")
    if recovered_ns is None:
        why.add("the run did not recover before the next fault")
    return {
        "fault": fault.name,
        "begin_ns": injection.begin_ns,
        "end_ns": injection.end_ns,
        "recovered_s": None if recovered_ns is None else round(max(0, recovered_ns - injection.end_ns) / 1e9, 4),
        "misses": len(missed),
        "causes": dict(Counter(name for name, _ in missed)),
        "attributed": not why,
        "why": sorted(why),
    }


def _has_known_cause(miss: Miss) -> bool:
    name, has_evidence = miss
    return has_evidence and name in NAMES
