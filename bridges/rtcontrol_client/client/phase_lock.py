"""When to look at the world, so that what is seen arrives just in time for the server's next tick. Pure: the caller
brings the time. docs/protocol.md, section 6, has the rule; the conformance vectors hold every client to it."""

from __future__ import annotations

from collections import deque

from rtcontrol_client.client.connection import Offset
from rtcontrol_client.wire.messages import CallMessage

MS = 1_000_000
KEPT, YOUNG_NS = 64, 10_000 * MS  # the ways that count: the newest so many, no older than this
LEAST = 8  # of fewer ways the longest one counts
FIRST_NS = 5 * MS  # looking and sending, while no way is known
MARGIN_NS = MS  # between two threads of the server
HANDOVER_NS = 5 * MS  # what was there so long before a tick was there for it


class PhaseLock:
    """Learns the `way` of each observation: from the instant when it was due, by the client's clock, to its arrival, by
    the server's. Both clocks' offset is in it, so it need not be known; it need at first, while nothing has arrived.

    The lead over a tick is the way that makes observations youngest on average: one that comes too late waits for a
    whole period, so a slow one now and then is not waited for, and what happens often is. All instants are in ns.
    """

    def __init__(self) -> None:
        self._ways = deque[tuple[int, int]](maxlen=KEPT)  # (when it was learnt, the way)
        self._begun: dict[int, int] = {}  # by seq of an observation, when it was due
        self._due_ns: int | None = None
        self._aimed_ns: int | None = None  # the tick of the instant due, by the server's clock
        self._taken_ns: int | None = None  # and of the last look
        self._newest = -1  # the seq of the last observation that was learnt from
        self.waits_ns = deque[int](maxlen=KEPT)  # from an observation's arrival to its tick

    @property
    def learnt(self) -> bool:
        """Whether any way is known."""
        return bool(self._ways)

    def next_ns(self, release_ns: int, period_ns: int, offset: Offset | None, now_ns: int) -> int | None:
        """The next instant to look at the world; the same one until then, or until `observed`. `release_ns` is any
        tick of the grid. None while neither a way nor the clocks' offset is known."""
        lead_ns = self._lead_ns(period_ns, offset, now_ns)
        if lead_ns is None:
            return None
        aimed_ns = release_ns + ((now_ns + lead_ns - release_ns) // period_ns + 1) * period_ns
        if self._taken_ns is not None and abs(aimed_ns - self._taken_ns) < (period_ns + 1) // 2:
            aimed_ns += period_ns
        self._aimed_ns, self._due_ns = aimed_ns, aimed_ns - lead_ns
        return self._due_ns

    def observed(self, seq: int, period_ns: int, now_ns: int) -> None:
        """An observation is sent: it was begun when it was due, or now where none was due within the last period."""
        begun_ns = now_ns
        if self._due_ns is not None and 0 <= now_ns - self._due_ns < period_ns:
            begun_ns, self._taken_ns, self._due_ns = self._due_ns, self._aimed_ns, None
        self._begun[seq] = begun_ns
        if len(self._begun) > KEPT:
            del self._begun[next(iter(self._begun))]

    def heard(self, call: CallMessage, period_ns: int, now_ns: int) -> None:
        """A fresh call tells when its observation arrived; an older one that was decided again tells nothing new."""
        age_ms, release_ns, seq = call.timing.age_ms, call.release_ns, call.seq_obs
        if call.status != "fresh" or age_ms is None or release_ns is None or seq is None or seq <= self._newest:
            return
        self._newest = seq
        if (begun_ns := self._begun.pop(seq, None)) is None:
            return
        arrived_ns = call.t_server_ns - round(age_ms * MS)
        before_ns = release_ns - period_ns
        if arrived_ns + HANDOVER_NS < before_ns:  # a plan's step, say: this tick is not the first that had it
            self._ways.append((now_ns, arrived_ns - begun_ns))
            return
        # The tick before did not have it yet, whatever its stamp of arrival says.
        self._ways.append((now_ns, max(arrived_ns, before_ns) - begun_ns))
        self.waits_ns.append(release_ns - arrived_ns)

    def _lead_ns(self, period_ns: int, offset: Offset | None, now_ns: int) -> int | None:
        ways = sorted(way_ns for t_ns, way_ns in self._ways if now_ns - t_ns <= YOUNG_NS)
        if not ways:
            return None if offset is None else offset.offset_ns + offset.rtt_ns // 2 + FIRST_NS
        n, best = len(ways), len(ways) - 1
        if n >= LEAST:
            # Mean age = way + share of those that come later * period; of equal ones the longer way.
            best = max(range(n), key=lambda i: (-(n * ways[i] + (n - 1 - i) * period_ns), i))
        return ways[best] + MARGIN_NS
