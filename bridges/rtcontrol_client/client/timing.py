"""The server's clock and ticks, as estimated by the client. The caller passes the time.

docs/protocol.md, section 6, has the rules; the conformance vectors check every client by these rules.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rtcontrol_client.wire.messages import CallMessage

MS = 1_000_000
WINDOW, MAX_AGE_NS = 16, 60_000 * MS  # maximum number and age of the ping exchanges that are used
KEPT, YOUNG_NS = 64, 10_000 * MS  # maximum number and age of the latencies that are used
LEAST = 8  # with fewer latencies than this, the longest latency is used
FIRST_NS = 5 * MS  # assumed time to capture and send an observation, before a latency is measured
MARGIN_NS = MS  # margin for the server to pass an observation between its threads
HANDOVER_NS = 5 * MS  # a tick certainly uses an observation that arrives at least this long before it


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """An estimate of the server's clock minus the client's, in ns; its error is at most half of the round-trip time."""

    offset_ns: int
    rtt_ns: int


class OffsetFilter:
    """Estimates the clock offset from ping exchanges. It uses the exchange with the shortest round trip."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, ClockOffset]] = deque(maxlen=WINDOW)

    def add(self, t0_ns: int, t1_ns: int, t2_ns: int, t3_ns: int) -> None:
        """Add a ping exchange: ping sent at t0 and pong received at t3 by our clock, ping received at t1 and pong sent
        at t2 by the server's clock. An exchange with contradictory times is ignored."""
        rtt_ns = (t3_ns - t0_ns) - (t2_ns - t1_ns)
        if rtt_ns >= 0 and t3_ns >= t0_ns and t2_ns >= t1_ns:
            # Use only integers, because floats cannot represent such times to the nanosecond.
            self._samples.append((t3_ns, ClockOffset(((t1_ns - t0_ns) + (t2_ns - t3_ns)) // 2, rtt_ns)))

    def best_offset(self, now_ns: int) -> ClockOffset | None:
        """Return the best estimate of the offset at `now_ns` of our clock, or None if all exchanges are too old."""
        young = (offset for t_ns, offset in reversed(self._samples) if now_ns - t_ns <= MAX_AGE_NS)
        return min(young, key=lambda offset: offset.rtt_ns, default=None)  # if equal, the newest: clocks drift


class PhaseLock:
    """Computes when to capture an observation so that it arrives just before the server's next tick.

    A latency is the time from the due time of an observation (client's clock) to its arrival (server's clock). It
    includes the clock offset, so the offset itself is needed only before the first latency. An observation is due one
    "lead" before a tick. The lead is the measured latency that minimises the average age of observations at their
    ticks; if the lead is too short, some observations are late and wait for a whole period. All times are in ns.
    """

    def __init__(self) -> None:
        self._latencies = deque[tuple[int, int]](maxlen=KEPT)  # (time of the measurement, latency)
        self._start_times: dict[int, int] = {}  # by seq: the observation's due time
        self._due_ns: int | None = None
        self._target_tick_ns: int | None = None  # the tick for the observation that is due at `_due_ns`, server's clock
        self._used_tick_ns: int | None = None  # the tick for which the last observation was captured
        self._newest_seq = -1  # the seq of the last observation whose latency was measured
        self.waits_ns = deque[int](maxlen=KEPT)  # times from an observation's arrival to its tick

    @property
    def has_latency(self) -> bool:
        """Return whether at least one latency has been measured."""
        return bool(self._latencies)

    def next_capture_ns(self, release_ns: int, period_ns: int, offset: ClockOffset | None, now_ns: int) -> int | None:
        """Return when to capture the next observation, or None if neither a latency nor the clock offset is known.

        `release_ns` is the start of any tick. The result does not change until this time or `record_observation`.
        """
        lead_ns = self._lead_ns(period_ns, offset, now_ns)
        if lead_ns is None:
            return None
        aimed_ns = release_ns + ((now_ns + lead_ns - release_ns) // period_ns + 1) * period_ns
        if self._used_tick_ns is not None and abs(aimed_ns - self._used_tick_ns) < (period_ns + 1) // 2:
            aimed_ns += period_ns
        self._target_tick_ns, self._due_ns = aimed_ns, aimed_ns - lead_ns
        return self._due_ns

    def record_observation(self, seq: int, period_ns: int, now_ns: int) -> None:
        """Store when the observation that is sent now was started: its due time in this period, or else now."""
        started_ns = now_ns
        if self._due_ns is not None and 0 <= now_ns - self._due_ns < period_ns:
            started_ns, self._used_tick_ns, self._due_ns = self._due_ns, self._target_tick_ns, None
        self._start_times[seq] = started_ns
        if len(self._start_times) > KEPT:
            del self._start_times[next(iter(self._start_times))]

    def receive(self, call: CallMessage, period_ns: int, now_ns: int) -> None:
        """Measure the latency of an observation when the first call for this observation arrives."""
        age_ms, release_ns, seq = call.timing.age_ms, call.release_ns, call.seq_obs
        if call.status != "fresh" or age_ms is None or release_ns is None or seq is None or seq <= self._newest_seq:
            return
        self._newest_seq = seq
        started_ns = self._start_times.pop(seq, None)
        if started_ns is None:
            return
        arrived_ns = call.t_server_ns - round(age_ms * MS)
        before_ns = release_ns - period_ns
        if arrived_ns + HANDOVER_NS < before_ns:  # an earlier tick already used it; this call may be part of a plan
            self._latencies.append((now_ns, arrived_ns - started_ns))
            return
        # The previous tick did not use the observation, so it cannot have arrived before that tick.
        self._latencies.append((now_ns, max(arrived_ns, before_ns) - started_ns))
        self.waits_ns.append(release_ns - arrived_ns)

    def _lead_ns(self, period_ns: int, offset: ClockOffset | None, now_ns: int) -> int | None:
        latencies = sorted(latency_ns for t_ns, latency_ns in self._latencies if now_ns - t_ns <= YOUNG_NS)
        if not latencies:
            return None if offset is None else offset.offset_ns + offset.rtt_ns // 2 + FIRST_NS
        n, best = len(latencies), len(latencies) - 1
        if n >= LEAST:
            # Mean age = latency + (share of later arrivals) * period. Of equal ages, use the longer latency.
            best = max(range(n), key=lambda i: (-(n * latencies[i] + (n - 1 - i) * period_ns), i))
        return latencies[best] + MARGIN_NS


class ServerTicks:
    """The times of the server's ticks, from the clock offset, the measured latencies, and the time of one tick."""

    def __init__(self) -> None:
        self.offset, self.phase = OffsetFilter(), PhaseLock()
        self.release_ns: int | None = None  # scheduled start of any tick, by the server's clock

    def is_known(self, now_ns: int) -> bool:
        """Return whether the times of the ticks can be computed."""
        return self.release_ns is not None and (self.phase.has_latency or self.offset.best_offset(now_ns) is not None)

    def next_observation_ns(self, period_ns: int, now_ns: int) -> int | None:
        """Return when to capture the next observation; None if the ticks are not known."""
        if self.release_ns is None:
            return None
        return self.phase.next_capture_ns(self.release_ns, period_ns, self.offset.best_offset(now_ns), now_ns)
