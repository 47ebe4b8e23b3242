"""How steady calls are: what is taken back, how long it stays, what is repeated, what is stale; in bounded memory."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rtcontrol.telemetry.histogram import Series

# A value that comes back within so long is a reversal: in time, so that it means the same at each rate.
WINDOW_S = 2.0
# Of a number's range in its tool's schema: a smaller change turns nothing round. Without a range any change does.
STEP_SHARE = 0.05
# So many values (of a crowd: of all its members) are followed; calls with later ones are counted as untracked.
MOST_TRACKS, MOST_MEMBERS = 16_384, 10_000
FUNCTION, LONE = "function", ""
LONGEST_TEXT = 256
NEVER_S = -1e9
SHOWN = 3  # values that a line names

Number = int | float


class Steadiness:
    """Counts of what acted, as its events come: `header`, `call`, `tick`. One thread adds; any may look.

    `tracks` are by member and value: what it is, since when, what it was before, when that changed, and which way the
    last large change of a number went. `members` are those of a crowd, or a run's one.
    """

    def __init__(self) -> None:
        self.calls = self.repeated = self.reversals = self.ticks = self.stale = self.kept = self.untracked = 0
        self.seconds = 0.0  # in which calls followed each other
        self.by_value: Counter[str] = Counter()  # reversals
        self.dwell_ms, self.value_dwell_ms = Series(), Series()
        self.steps: dict[str, float] = {}
        self.period_s = 0.0  # of a world that waits; 0: the calls' own stamps are its time
        self.members: dict[str, dict[str, Any]] = {}
        self.tracks: dict[tuple[str, str], list[Any]] = {}

    def header(self, header: Mapping[str, Any]) -> None:
        """The run's: its tools for the ranges of their numbers, and its clock."""
        self.steps = steps_of(header.get("tools"))
        hz = float(header["hz"]) if _finite(header.get("hz")) else 0.0
        self.period_s = 1 / hz if header.get("clock") == "lockstep" and hz > 0 else 0.0

    def call(self, event: Mapping[str, Any]) -> None:
        """A call that acted. Further ones of a tick are beside its first, and none that takes its place."""
        if event["why"] == "further":
            return
        one = self._member(event.get("member", LONE))
        if one is None:
            self.untracked += 1
            return
        name, arguments = event["called"], event["arguments"]
        t_s = event["k"] * self.period_s if self.period_s and "k" in event else event["t_s"]
        if event.get("epoch", one["epoch"]) != one["epoch"]:
            self.forget(one["name"])
            one |= {"epoch": event["epoch"], "call": None, "last_s": t_s}
        self.seconds += max(0.0, t_s - one["last_s"]) if one["call"] is not None else 0.0
        text = _plain([name, arguments])
        if event["why"] == "safe":
            self._stays(one, str(text), t_s)
            self.forget(one["name"])
            return
        self.calls += 1
        one["calls"] += 1
        if not self._stays(one, str(text), t_s):
            self.repeated += 1
            one["repeated"] += 1
        values = {FUNCTION: name, **{f"{name}.{key}": value for key, value in arguments.items()}}
        turned = [key for key, value in values.items() if self._turns(one["name"], key, _plain(value), t_s)]
        self.by_value.update(turned)
        self.reversals += bool(turned)
        one["reversals"] += bool(turned)

    def safe(self, event: Mapping[str, Any]) -> None:
        """The safe call of a crowd's member, which is no call of its own."""
        if "member" in event:
            self.call({**event, "called": event["safe"] or "", "arguments": {}, "why": "safe"})

    def tick(self, event: Mapping[str, Any]) -> None:
        """A tick that is over."""
        self.ticks += 1
        self.kept += "kept" in event
        one, kind = self._member(event.get("member", LONE)), event["kind"]
        if kind == "held" or (kind == "miss" and event.get("action", "hold") == "hold"):
            self.stale += 1
        elif kind in ("call", "null") and one is not None and "seq" in event:
            seen = [event.get("epoch", 0), event["seq"]]
            self.stale += seen == one["seen"]
            one["seen"] = seen

    def forget(self, member: str) -> None:
        """What comes next is compared with nothing."""
        for key in [key for key in self.tracks if key[0] == member]:
            del self.tracks[key]

    def leave(self, member: str) -> None:
        """It comes no more."""
        self.forget(member)
        self.members.pop(member, None)

    def of_members(self) -> dict[str, dict[str, int]]:
        """Of a crowd: by member its calls, repeated ones, and reversals."""
        listed = [one for name, one in list(self.members.items()) if name != LONE]
        return {one["name"]: {key: one[key] for key in ("calls", "repeated", "reversals")} for one in listed}

    def summary(self) -> dict[str, Any]:
        """As the report has it; shares and rates are None where there is nothing to count."""
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
            "value_dwell_ms": self.value_dwell_ms.summary(),
            "kept_by_hysteresis": self.kept,
            "untracked": self.untracked,
        }

    def _member(self, name: str) -> dict[str, Any] | None:
        one = self.members.get(name)
        if one is None and len(self.members) < MOST_MEMBERS:
            one = self.members[name] = {"name": name, "epoch": None, "call": None, "since_s": 0.0, "last_s": 0.0}
            one |= {"seen": None, "calls": 0, "repeated": 0, "reversals": 0}
        return one

    def _stays(self, one: dict[str, Any], text: str, t_s: float) -> bool:
        """Whether this call is another one than that in force, whose time is over then."""
        changed: bool = text != one["call"]
        if changed and one["call"] is not None:
            self.dwell_ms.add(max(0.0, 1e3 * (t_s - one["since_s"])))
        if changed:
            one["call"], one["since_s"] = text, t_s
        one["last_s"] = t_s
        return changed

    def _turns(self, member: str, key: str, value: str | Number, t_s: float) -> bool:
        """Whether a value turns back."""
        track = self.tracks.get((member, key))
        if track is None:
            if len(self.tracks) < MOST_TRACKS:
                self.tracks[member, key] = [value, t_s, None, NEVER_S, 0]
            else:
                self.untracked += 1
            return False
        now, since_s, before, changed_s, way = track
        if value == now:
            return False
        self.value_dwell_ms.add(max(0.0, 1e3 * (t_s - since_s)))
        soon = t_s - changed_s <= WINDOW_S
        if isinstance(value, str) or isinstance(now, str):
            track[:] = value, t_s, now, t_s, 0
            return soon and value == before
        goes = 1 if value > now else -1
        if abs(value - now) <= self.steps.get(key, 0.0):
            track[:3] = value, t_s, now
            return False
        track[:] = value, t_s, now, t_s, goes
        return soon and way == -goes


def _plain(value: Any) -> str | Number:
    """A number as it is, anything else as a text that is the same for the same value."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= LONGEST_TEXT else f"{len(text)} {hashlib.sha256(text.encode()).hexdigest()}"


def steps_of(tools: object) -> dict[str, float]:
    """By `tool.parameter`: what a change of a number must exceed to turn it round; nothing of what is no definition."""
    found: dict[str, float] = {}
    for tool in tools if isinstance(tools, list | tuple) else ():
        told = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        parameters = told.get("parameters") if isinstance(told, Mapping) else None
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        for name, schema in properties.items() if isinstance(properties, Mapping) else ():
            if isinstance(schema, Mapping) and (span := _span(schema)) is not None:
                found[f"{told.get('name')}.{name}"] = STEP_SHARE * span
    return found


def _span(schema: Mapping[str, Any]) -> float | None:
    """The range of a number in its schema."""
    listed = schema.get("enum")
    bounds = listed if isinstance(listed, list) else [schema.get("minimum"), schema.get("maximum")]
    return max(bounds) - min(bounds) if bounds and all(map(_finite, bounds)) else None


def _finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def steadiness(report: Mapping[str, Any]) -> str:
    """How steady the calls were, as people read it; empty where none acted."""
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
