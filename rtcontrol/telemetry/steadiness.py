"""How steady calls are: what is taken back, how long a call stays, what is repeated, what is stale."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.telemetry.histogram import Series

# A value that comes back within so long is a reversal: in time, so that it means the same at each rate.
WINDOW_S = 2.0
# Of a number's range in its tool's schema: a smaller change turns nothing round. Without a range any change does.
STEP_SHARE = 0.05
MOST_MEMBERS = 10_000  # of a crowd are followed
FUNCTION, LONE = "function", ""
LONGEST_TEXT = 256
SHOWN = 3  # values that a line names

Number = int | float


@dataclass(slots=True)
class _Track:
    """A value now and before, when it changed last, and which way the last large change of a number went."""

    now: str | Number
    before: str | Number | None = None
    changed_s: float = -math.inf
    way: int = 0


@dataclass(slots=True)
class _Member:
    """Of a crowd, or a run's one: what is in force since when, what it was decided by, its counts and values."""

    epoch: int | None = None
    call: str | None = None
    since_s: float = 0.0
    last_s: float = 0.0
    seen: tuple[int, int] | None = None
    calls: int = 0
    repeated: int = 0
    reversals: int = 0
    tracks: dict[str, _Track] = field(default_factory=dict)


class Steadiness:
    """Counts of what acted, as its events come: `header`, `call`, `tick`. One thread adds; any may look."""

    def __init__(self) -> None:
        self.calls = self.repeated = self.reversals = self.ticks = self.stale = self.kept = 0
        self.seconds = 0.0  # in which calls followed each other
        self.by_value: Counter[str] = Counter()  # reversals
        self.dwell_ms = Series()
        self.steps: dict[str, float] = {}
        self.period_s = 0.0  # of a world that waits; 0: the calls' own stamps are its time
        self.members: dict[str, _Member] = {}

    def header(self, header: Mapping[str, Any]) -> None:
        """Take the run's: its tools for the ranges of their numbers, and its clock."""
        self.steps = steps_of(header.get("tools"))
        hz = header.get("hz")
        timed = header.get("clock") == "lockstep" and isinstance(hz, int | float) and hz > 0
        self.period_s = 1 / float(hz) if timed else 0.0  # type: ignore[arg-type]

    def call(self, event: Mapping[str, Any]) -> None:
        """Take a call that acted. Further ones of a tick are beside its first, and none that takes its place."""
        if event["why"] == "further" or (one := self._member(event)) is None:
            return
        name, arguments = event["called"], event["arguments"]
        t_s = event["k"] * self.period_s if self.period_s and "k" in event else event["t_s"]
        if event.get("epoch", one.epoch) != one.epoch:
            one.epoch, one.call = event["epoch"], None
            one.tracks.clear()
        elif one.call is not None:
            self.seconds += max(0.0, t_s - one.last_s)
        one.last_s = t_s
        text = str(_plain([name, arguments]))
        changed = text != one.call
        if changed:
            if one.call is not None:
                self.dwell_ms.add(max(0.0, 1e3 * (t_s - one.since_s)))
            one.call, one.since_s = text, t_s
        if event["why"] == "safe":
            one.tracks.clear()
            return
        values = {FUNCTION: name, **{f"{name}.{key}": value for key, value in arguments.items()}}
        turned = [key for key, value in values.items() if self._turns(one.tracks, key, _plain(value), t_s)]
        self.by_value.update(turned)
        for counts in (self, one):
            counts.calls += 1
            counts.repeated += not changed
            counts.reversals += bool(turned)

    def safe(self, event: Mapping[str, Any]) -> None:
        """Take the safe call of a crowd's member, which is no call of its own."""
        if "member" in event:
            self.call({**event, "called": event["safe"] or "", "arguments": {}, "why": "safe"})

    def tick(self, event: Mapping[str, Any]) -> None:
        """Take a tick that is over."""
        self.ticks += 1
        self.kept += "kept" in event
        one, kind = self._member(event), event["kind"]
        if kind == "held" or (kind == "miss" and event.get("action", "hold") == "hold"):
            self.stale += 1
        elif kind in ("call", "null") and one is not None and "seq" in event:
            seen = (event.get("epoch", 0), event["seq"])
            self.stale += seen == one.seen
            one.seen = seen

    def of_members(self) -> dict[str, dict[str, int]]:
        """Return of a crowd by member its calls, repeated ones, and reversals."""
        listed = [(name, one) for name, one in list(self.members.items()) if name != LONE]
        return {
            name: {"calls": one.calls, "repeated": one.repeated, "reversals": one.reversals} for name, one in listed
        }

    def summary(self) -> dict[str, Any]:
        """Return what the report has; shares and rates are None where there is nothing to count."""
        return {
            "calls": self.calls,
            "minutes": round(self.seconds / 60, 4),
            "reversals": self.reversals,
            "reversals_a_minute": round(60 * self.reversals / self.seconds, 3) if self.seconds else None,
            "reversals_by_value": dict(Counter(dict(self.by_value)).most_common()),
            "repeated": self.repeated,
            "repeated_share": round(self.repeated / self.calls, 6) if self.calls else None,
            "stale": self.stale,
            "stale_share": round(self.stale / self.ticks, 6) if self.ticks else None,
            "dwell_ms": self.dwell_ms.summary(),
            "kept_by_hysteresis": self.kept,
        }

    def _member(self, event: Mapping[str, Any]) -> _Member | None:
        name = event.get("member", LONE)
        if name not in self.members and len(self.members) < MOST_MEMBERS:
            self.members[name] = _Member()
        return self.members.get(name)

    def _turns(self, tracks: dict[str, _Track], key: str, value: str | Number, t_s: float) -> bool:
        """Return whether a value turns back."""
        if (track := tracks.get(key)) is None:
            tracks[key] = _Track(value)
            return False
        now, before, soon = track.now, track.before, t_s - track.changed_s <= WINDOW_S
        if value == now:
            return False
        track.now, track.before = value, now
        if isinstance(value, str) or isinstance(now, str):
            track.changed_s, track.way = t_s, 0
            return soon and value == before
        if abs(value - now) <= self.steps.get(key, 0.0):
            return False
        back = -1 if value > now else 1
        turns = soon and track.way == back
        track.changed_s, track.way = t_s, -back
        return turns


def _plain(value: Any) -> str | Number:
    """Return a number as it is, anything else as a text that is the same for the same value."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= LONGEST_TEXT else f"{len(text)} {hash(text)}"


def steps_of(tools: Any) -> dict[str, float]:
    """Return by `tool.parameter` what a change of a number must exceed to turn it round; nothing of no definition."""
    found: dict[str, float] = {}
    try:
        for tool in tools or ():
            told = tool.get("function", tool)
            for name, schema in told["parameters"]["properties"].items():
                bounds = schema.get("enum") or [schema.get("minimum"), schema.get("maximum")]
                if not any(isinstance(one, bool | str | None) for one in bounds):
                    span = float(max(bounds) - min(bounds))
                    found |= {f"{told['name']}.{name}": STEP_SHARE * span} if math.isfinite(span) else {}
    except (ArithmeticError, AttributeError, LookupError, TypeError):
        return {}
    return found


def steadiness(report: Mapping[str, Any]) -> str:
    """Return a line on how steady the calls were; empty where none acted."""
    told = report.get("steadiness")
    if not told or not told["calls"]:
        return ""
    parts = []
    if told["reversals_a_minute"] is not None:
        named = [f"{name} {n}" for name, n in told["reversals_by_value"].items()]
        more = ", ..." if len(named) > SHOWN else ""
        which = f" ({', '.join(named[:SHOWN])}{more})" if named else ""
        parts.append(f"{told['reversals_a_minute']:.1f} reversals a minute{which}")
    stays = told["dwell_ms"]
    if stays["p50"] is not None:
        parts.append(f"a call stays {stays['p50']:.0f} ms (p50), {stays['p99']:.0f} (p99)")
    parts.append(f"repeated {100 * told['repeated_share']:.1f} %")
    if told["stale_share"] is not None:
        parts.append(f"stale {100 * told['stale_share']:.1f} %")
    if told["kept_by_hysteresis"]:
        parts.append(f"kept by hysteresis in {told['kept_by_hysteresis']} ticks")
    return f"steadiness: {', '.join(parts)}"
