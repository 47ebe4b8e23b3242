"""What a drill comes to: each injected fault beside the misses that the record has of its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.drill.injector import Injection

# So many ticks on time one after the other are a recovery.
RECOVERED = 8
# Of these causes the list has no sub-causes.
PLAIN = ("invalid",)


@dataclass(slots=True)
class SeenTick:
    """A tick as the record has it; `begin_ns` is its release (that of the first one that was skipped before it),
    `end_ns` its deadline. `missed`: (cause, sub-cause, whether there is evidence) of each miss that it counts."""

    k: int
    begin_ns: int
    end_ns: int
    missed: list[tuple[str, str | None, bool]]


def origin_ns(events: Iterable[Mapping[str, Any]]) -> int:
    """The record's first release on CLOCK_MONOTONIC; 0 where there was none."""
    return next((event["origin_ns"] for event in events if "origin_ns" in event), 0)


def ticks_of(events: Iterable[Mapping[str, Any]], period_ns: int, deadline_ns: int, origin: int) -> list[SeenTick]:
    """The ticks of a record, misses named as is known at its end; its first release was at `origin`."""
    ticks: dict[int, dict[str, Any]] = {}
    for event in events:
        if "kind" in event:
            ticks[event["k"]] = dict(event)
        elif (k := _revised(event)) in ticks and "cause" in ticks[k]:
            ticks[k] |= {name: event.get(name) for name in ("cause", "subcause", "evidence")}
        elif event.get("ack") in ticks and event["status"] != "executed":
            ticks[event["ack"]] |= {"cause": "execute", "subcause": event["status"], "evidence": dict(event)}
    seen = []
    for k, tick in sorted(ticks.items()):
        release_ns = origin + round(tick["t_s"] * 1e9)
        skipped = tick.get("skipped", 0)
        missed = []
        if "cause" in tick:
            missed.append((tick["cause"], tick.get("subcause"), bool(tick.get("evidence") or tick.get("error"))))
        why_skipped = (tick.get("skip_cause", "unknown"), tick.get("skip_subcause"), bool(tick.get("skip_evidence")))
        missed += [why_skipped] * skipped
        seen.append(SeenTick(k, release_ns - skipped * period_ns, release_ns + deadline_ns, missed))
    return seen


def _revised(event: Mapping[str, Any]) -> Any:
    """The tick of which a later event tells another cause."""
    return next((event[name] for name in ("late", "overran", "revised") if name in event and "cause" in event), None)


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
        "unknown": sum(not _known(*miss) for miss in everything),
        "uninjected": len(outside),
        "invariants_violated": len(violations),
        "misses": len(everything),
        "faults": faults,
        "uninjected_misses": [{"k": t.k, "t_ns": t.begin_ns, "called": _called(*miss)} for t, miss in outside],
        "violations": list(violations),
    }


def recovery_ns(ticks: Sequence[SeenTick], end_ns: int, until_ns: int | None) -> int | None:
    """The release of the first of `RECOVERED` ticks on time after `end_ns`, and before `until_ns`; None: not so."""
    on_time = 0
    first_ns = 0
    for tick in ticks:
        if tick.begin_ns < end_ns:
            continue
        if until_ns is not None and tick.begin_ns >= until_ns:
            return None
        if tick.missed:
            on_time = 0
            continue
        first_ns = first_ns if on_time else tick.begin_ns
        on_time += 1
        if on_time == RECOVERED:
            return first_ns
    return None


def _judged(
    injection: Injection, missed: Sequence[tuple[str, str | None, bool]], recovered_ns: int | None
) -> dict[str, Any]:
    fault = injection.fault
    why = []
    for cause, subcause, proven in missed:
        if not _known(cause, subcause, proven):
            why.append(f"{_called(cause, subcause)}: no evidence" if cause != "unknown" else "unknown")
        elif (cause, subcause) not in fault.allowed:
            why.append(f"{_called(cause, subcause)} is none of its causes")
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
        "causes": dict(Counter(_called(cause, subcause) for cause, subcause, _ in missed)),
        "attributed": not why,
        "why": sorted(set(why)),
    }


def _known(cause: str, subcause: str | None, proven: bool) -> bool:
    return proven and cause != "unknown" and (subcause is not None or cause in PLAIN)


def _called(cause: str, subcause: str | None, proven: bool = True) -> str:
    return cause if subcause is None else f"{cause}.{subcause}"
