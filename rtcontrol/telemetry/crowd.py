"""The accounts of a crowd's members: from the ticks that name one, live and from a record alike."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# So many members are counted each by itself; later ones together, under OTHERS.
MOST, OTHERS = 10_000, "(others)"
COUNTS = ("releases", "ticks", "on_time", "misses", "skipped_releases", "null", "held", "rested")
WORST = 10  # are shown
CAUSE = "misses."  # before a cause's name


def count_member(members: dict[str, dict[str, Any]], event: Mapping[str, Any]) -> None:
    """One tick. After each: releases == ticks + skipped_releases, ticks == on_time + misses."""
    name = event["member"]
    if name not in members and len(members) >= MOST:
        name = OTHERS
    counted = members.setdefault(name, {**dict.fromkeys(COUNTS, 0), "latency_ms_total": 0.0, "latency_ms_max": 0.0})
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


def crowd_report(
    members: Mapping[str, Mapping[str, Any]], steady: Mapping[str, Mapping[str, int]] = MappingProxyType({})
) -> dict[str, Any]:
    """What the report says of them: how many, and each by name, the worst first; `steady` are the calls of each."""
    listed = {name: {**_shown(counted), **steady.get(name, {})} for name, counted in list(members.items())}
    order = sorted(listed, key=lambda name: (-listed[name]["missed_share"], -listed[name]["latency_ms"]["max"], name))
    return {
        "members": len(listed),
        "rested": sum(one["rested"] for one in listed.values()),
        "without_a_miss": sum(not one["misses"] + one["skipped_releases"] for one in listed.values()),
        "by_member": {name: listed[name] for name in order},
    }


def _shown(counted: Mapping[str, Any]) -> dict[str, Any]:
    causes = {name.removeprefix(CAUSE): n for name, n in counted.items() if name.startswith(CAUSE)}
    missed = counted["misses"] + counted["skipped_releases"]
    mean = counted["latency_ms_total"] / counted["ticks"] if counted["ticks"] else 0.0
    return {
        **{name: counted[name] for name in COUNTS},
        "misses_by_cause": causes,
        "missed_share": round(missed / counted["releases"], 6) if counted["releases"] else 0.0,
        "latency_ms": {"mean": round(mean, 4), "max": round(counted["latency_ms_max"], 4)},
    }


def worst_members(crowd: Mapping[str, Any]) -> list[str]:
    """A line of each of the worst, as people read it; none where nobody missed anything."""
    shown = [(name, one) for name, one in crowd["by_member"].items() if one["missed_share"]][:WORST]
    return [
        f"{name}: missed {one['misses'] + one['skipped_releases']} of {one['releases']} "
        f"({', '.join(f'{cause} {n}' for cause, n in one['misses_by_cause'].items()) or 'skipped'}), "
        f"latency {one['latency_ms']['mean']:.1f} ms on average, {one['latency_ms']['max']:.1f} at most"
        for name, one in shown
    ]
