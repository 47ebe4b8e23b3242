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


class Recent:
    """Takes a run's events on their way into the account, from the recorder's thread; any thread may take a `picture`
    of it. Its cost is a few appends an event: who looks on pays for the rest, and the loop's thread for nothing."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self.account = Account()
        self.account.add({"header": header})
        self.asking: dict[str, Any] | None = None
        self.instruction: str | None = None
        self._ticks: deque[tuple[int, dict[str, Any]]] = deque(maxlen=TICKS)
        self._lines: deque[str] = deque(maxlen=LINES)
        self._seen: Mapping[str, Any] = {}
        self._last: Mapping[str, Any] = {}
        self._number = 0

    def add(self, event: Mapping[str, Any]) -> None:
        self.account.add(event)
        if "kind" in event:
            self._number += 1
            self._ticks.append((self._number, {name: event[name] for name in SHOWN if name in event}))
            if "call" in event:
                self._last = event
        elif "observation" in event:
            self._seen = event
        elif "people" in event:
            self.asking = dict(event) if event["people"] == "ask" else None if "call" in event else self.asking
        elif "instruction" in event:
            self.instruction = event["instruction"]
        elif "log" in event:
            self._lines.append(event["log"])

    def snapshot(self, since: int = 0) -> dict[str, Any]:
        """What is to be seen now, as JSON takes it: counts, the last call, what was read, and the ticks after number
        `since`; `number` is then the last one's."""
        account, last, seen = self.account, self._last, self._seen
        kept = _copy(self._ticks)
        last_number = kept[-1][0] if kept else 0
        since = since if since <= last_number else 0  # another run's
        ticks = [tick for number, tick in kept if number > since]
        recent = Series(_copy(account.recent_ms)).summary()
        return {
            "number": last_number,
            "ticks": ticks,
            "counts": {name: getattr(account, name) for name in COUNTS},
            "causes": dict(account.off_time),
            "subcauses": dict(account.misses_by_subcause),
            "latency_ms": {name: recent[name] for name in ("p50", "p99", "max")},
            "call": last.get("call"),
            "confidence": last.get("confidence"),
            "text": seen.get("observation"),
            "history": list(seen.get("history", ())),
            "asking": self.asking,
            "log": _copy(self._lines),
            "episodes": account.ended_episodes,
            "successes": account.successes,
            "judged": account.judged,
        }


def _copy(values: deque[Any]) -> list[Any]:
    """Of what another thread appends to meanwhile."""
    while True:
        try:
            return list(values)
        except RuntimeError:
            continue
