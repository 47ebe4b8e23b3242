"""Build observations from the newest message of each topic, or report which topics have no current message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol_client import clock
from rtcontrol_client.ros2 import Unmappable
from rtcontrol_client.ros2.config import Scalar
from rtcontrol_client.ros2.mapper import Mapper, Source


@dataclass(frozen=True)
class Snapshot:
    """An observation. `t_ns` is the time when the newest required message was sent, by the clock of `clock.now_ns`."""

    text: str | None
    data: dict[str, Scalar | None]
    t_ns: int


@dataclass
class _TopicState:
    source: Source
    input: Any
    t_ns: int | None = None
    values: Mapping[str, Scalar | None] | None = None
    error: str | None = None

    def poll(self) -> None:
        """Read the newest message if it is new."""
        try:
            if (polled := self.input.poll()) is None:
                return
            message, self.t_ns = polled
            self.values, self.error = self.source.read(message), None
        except Unmappable as error:
            self.values, self.error = None, str(error)
            self.t_ns = self.t_ns or clock.now_ns()

    def stale_reason(self) -> str | None:
        """Return the reason why the topic has no current message; None if it has a current message."""
        if self.t_ns is None:
            return "no message yet"
        if (age_ms := (clock.now_ns() - self.t_ns) / 1e6) > self.source.max_age_ms:
            age = f"{age_ms:.0f} ms" if age_ms < 10_000 else f"{age_ms / 1000:.0f} s"
            return f"the last message is older than {self.source.max_age_ms:g} ms ({age})"
        return self.error


class Observer:
    """Reads all topics and combines them to an observation. Not thread-safe."""

    def __init__(self, mapper: Mapper, inputs: Mapping[str, Any]) -> None:
        self._mapper = mapper
        self._states = [_TopicState(source, inputs[source.topic.name]) for source in mapper.sources]
        self.waiting: dict[str, str] = {}  # topics that prevent an observation, with the reason

    def observe(self) -> Snapshot | None:
        """Poll all topics; return an observation, or None if a required topic is out of date (see `waiting`)."""
        values: dict[str, Scalar | None] = {}
        newest_ns = 0
        missing: dict[bool, dict[str, str]] = {True: {}, False: {}}  # by whether the topic is required
        for state in self._states:
            state.poll()
            required = state.source.required
            if (reason := state.stale_reason()) is not None:
                values |= dict.fromkeys(state.source.readers)
                missing[required][state.source.topic.name] = reason
                continue
            assert state.values is not None and state.t_ns is not None
            values |= state.values
            if required or not newest_ns:
                newest_ns = max(newest_ns, state.t_ns)
        self.waiting = missing[True] if missing[True] or newest_ns else missing[False]
        if self.waiting:
            return None
        return Snapshot(self._mapper.text(values), values, min(newest_ns, clock.now_ns()))

    def drop_messages(self) -> None:
        """Drop all messages, including messages that have not been read yet."""
        for state in self._states:
            state.poll()
            state.t_ns = state.values = state.error = None


WINDOW_NS = 30_000_000_000
STEP_NS = 20_000_000  # if our wall clock jumps by more than this, it was set
BACK_NS = 200_000_000  # if time stamps go back by more than this, the sender's clock was set (less: two publishers)


class DelayEstimator:
    """Estimates by how much more than usual a topic's messages are delayed, from their time stamps.

    The smallest delay in the last 30 to 60 s counts as the difference between the two clocks. So a constant delay
    cannot be detected, but a growing delay can. The estimate restarts after the sender's clock was set back. Delays are
    measured by our wall clock (correct on the same machine) and by our monotonic clock (correct while our wall clock is
    slewed); the smaller delay counts.
    """

    def __init__(self) -> None:
        self._by_wall, self._by_monotonic = _ClockDelay(), _ClockDelay()
        self._skew_ns: int | None = None  # our wall clock minus our monotonic clock

    def captured_ns(self, source_ns: int, wall_ns: int, now_ns: int) -> int:
        """Convert `source_ns` (the sender's wall clock) to our monotonic clock; the result is never in the future.

        `now_ns` and `wall_ns` are the current time by our two clocks. Return `now_ns` if `source_ns` is not positive.
        """
        if source_ns <= 0:
            return now_ns
        skew_ns = wall_ns - now_ns
        if self._skew_ns is not None and abs(skew_ns - self._skew_ns) > STEP_NS:  # our wall clock was set
            self._by_wall = _ClockDelay()
        self._skew_ns = skew_ns
        late_ns = self._by_wall.extra_delay_ns(source_ns, wall_ns, now_ns)
        return now_ns - min(late_ns, self._by_monotonic.extra_delay_ns(source_ns, now_ns, now_ns))


class _ClockDelay:
    """Measures the smallest delay between the sender's time stamps and one of our clocks."""

    def __init__(self) -> None:
        self._least_ns: int | None = None
        self._older_ns: int | None = None
        self._since_ns = 0
        self._source_ns = 0

    def extra_delay_ns(self, source_ns: int, ours_ns: int, now_ns: int) -> int:
        """Return the delay of a message that arrived at `ours_ns` by our clock, minus the smallest delay."""
        if source_ns < self._source_ns - BACK_NS:  # messages of a sender arrive in the order in which they were sent
            self._least_ns = self._older_ns = None
        delay_ns = ours_ns - source_ns
        if self._least_ns is None or (now_ns - self._since_ns > WINDOW_NS and source_ns != self._source_ns):
            self._older_ns, self._least_ns, self._since_ns = self._least_ns, delay_ns, now_ns
        self._source_ns = source_ns
        self._least_ns = min(self._least_ns, delay_ns)
        return delay_ns - (self._least_ns if self._older_ns is None else min(self._least_ns, self._older_ns))
