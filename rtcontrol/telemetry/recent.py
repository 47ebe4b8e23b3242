"""What people look at while a run is on: the last ticks, and what they were decided by."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.histogram import Series

# So many ticks, and lines for people, are kept for who looks on.
TICKS, LINES = 256, 20
# Of a tick.
SHOWN = (
    *("k", "kind", "why", "cause", "subcause", "evidence", "latency_ms", "decide_ms"),
    *("skipped", "skip_cause", "skip_subcause", "skip_evidence"),
)
COUNTS = ("releases", "ticks", "on_time", "misses", "skipped_releases", "null", "held", "safe_calls", "late_used")
OUTCOMES = ("episodes", "successes", "judged")


class Recent:
    """Takes a run's events on their way into the account, from the recorder's thread; any thread may take a `picture`
    of it. Its cost is a few appends an event: who looks on pays for the rest, and the loop's thread for nothing."""

    def __init__(self) -> None:
        self.account = Account()
        self._ticks: deque[tuple[int, dict[str, Any]]] = deque(maxlen=TICKS)
        self._lines: deque[str] = deque(maxlen=LINES)
        self._ms: deque[float] = deque(maxlen=TICKS)  # latencies
        self._seen: Mapping[str, Any] = {}
        self._last: Mapping[str, Any] = {}
        self._asking: dict[str, Any] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        self.account.add(event)
        if "latency_ms" in event:
            self._ms.append(event["latency_ms"])
        if "kind" in event:
            number = self._ticks[-1][0] + 1 if self._ticks else 1
            self._ticks.append((number, {name: event[name] for name in SHOWN if name in event}))
        elif "observation" in event:
            self._seen = event
        elif "people" in event:
            self._asking = dict(event) if event["people"] == "ask" else None if "call" in event else self._asking
        elif "log" in event:
            self._lines.append(event["log"])
        if "call" in event and ("kind" in event or event.get("outcome") == "acted"):
            self._last = event

    def snapshot(self, since: int = 0) -> dict[str, Any]:
        """What is to be seen now, as JSON takes it: counts, the last call, what was read, and the ticks after number
        `since`; `number` is then the last one's."""
        account, last, seen = self.account, self._last, self._seen
        kept = _copy(self._ticks)
        last_number = kept[-1][0] if kept else 0
        since = since if since <= last_number else 0  # another run's
        ticks = [tick for number, tick in kept if number > since]
        recent = Series(_copy(self._ms)).summary()
        return {
            "number": last_number,
            "ticks": ticks,
            "counts": {name: account.counts[name] for name in COUNTS},
            "causes": dict(account.off_time),
            "subcauses": dict(account.by["misses_by_subcause"]),
            "latency_ms": {name: recent[name] for name in ("p50", "p99", "max")},
            "call": last.get("call"),
            "confidence": last.get("confidence"),
            "text": seen.get("observation"),
            "history": list(seen.get("history", ())),
            "asking": self._asking,
            "log": _copy(self._lines),
            **{name: account.counts[name] for name in OUTCOMES},
        }


def _copy(values: deque[Any]) -> list[Any]:
    """Of what another thread appends to meanwhile."""
    while True:
        try:
            return list(values)
        except RuntimeError:
            continue
