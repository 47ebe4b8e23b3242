"""What a client counted: its side of the report."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Counts:
    """The running figures of a client; `snapshot()` is what users see."""

    count: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    latency_ns: deque[int] = field(default_factory=lambda: deque(maxlen=4096))
    last_error: str | None = None

    def snapshot(self, clock: dict[str, Any]) -> dict[str, Any]:
        """Counts since the client was made; `latency_ms` is from the observation's stamp to the call's arrival, of the
        last 4096 fresh calls.

        `superseded` observations were replaced by newer ones before they were sent; `expired` calls ran out of their
        time-to-live, in force or on the way; `ignored` ones were of another session, epoch or order.
        """
        names = ("observed", "superseded", "fresh", "held", "safe", "expired", "errors", "sessions", "resumed")
        ordered = sorted(self.latency_ns)
        latency = {
            name: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6, 3)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            if ordered
        }
        return {
            **{name: self.count[name] for name in names},
            "reconnects": self.count["reconnects"],
            "ignored": dict(self.ignored),
            "latency_ms": latency,
            "clock": clock,
            "last_error": self.last_error,
        }
