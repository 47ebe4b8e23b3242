"""What the client counts."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from rtcontrol.bridges.client.offset import Offset

COUNTS = ["observed", "superseded", "fresh", "held", "safe", "expired", "errors", "sessions", "resumed", "reconnects"]


class ClientTally:
    """Counts since the client was made, by name."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()  # calls and messages, by why
        self.latency_ns: deque[int] = deque(maxlen=4096)
        self.last_error: str | None = None  # in the server's words

    def statistics(self, clock: Offset | None) -> dict[str, Any]:
        """Counts since the client was made; `latency_ms` is from the observation's stamp to the call's arrival, of the
        last 4096 fresh calls; `clock` the server's minus ours, by the fastest recent round trip.

        `superseded` observations were replaced by newer ones before they were sent; `expired` calls ran out of their
        time-to-live, in force or on the way; `ignored` ones were of another session, epoch or order.
        """
        ordered = sorted(self.latency_ns)
        shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0)) if ordered else ()
        at = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in shares}
        return {
            **{name: self.count[name] for name in COUNTS},
            "ignored": dict(self.ignored),
            "latency_ms": {name: round(ns / 1e6, 3) for name, ns in at.items()},
            "clock": {"offset_ms": clock.offset_ns / 1e6, "rtt_ms": clock.rtt_ns / 1e6} if clock else {},
            "last_error": self.last_error,
        }
