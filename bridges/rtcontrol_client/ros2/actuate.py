"""Publish the active call and repeat it; after closing, publish only the safe call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from rtcontrol_client import Standing, clock
from rtcontrol_client.ros2 import Unmappable
from rtcontrol_client.ros2.mapper import Mapper

# A tick publishes the active call again if at least this share of a period has passed since the last time.
REPEAT = 0.75
# Creating and publishing a message takes up to 2 ms (p99). A call that would expire within this time is not published.
MARGIN_NS = 2_000_000


class Ros2Actuator:
    """Publishes the active call. Thread-safe. `apply` must run whenever the call may have changed, and in each tick."""

    def __init__(
        self,
        mapper: Mapper,
        outputs: Mapping[str, Any],
        hz: float,
        stamp_ns: Callable[[], int] = time.time_ns,
        heartbeat: Callable[[float | None], None] = lambda left_ms: None,
    ) -> None:
        """Create an actuator that has published nothing yet.

        `stamp_ns` returns the time stamp for messages. `heartbeat` is called before a call is published, with the
        milliseconds until the call expires (None: no limit), and with None after the safe call was published.
        """
        self._mapper, self._outputs, self._stamp_ns, self._heartbeat = mapper, outputs, stamp_ns, heartbeat
        self._call_ends_ns: int | None = None  # when the last published call expires
        self._repeat_after_ns = int(REPEAT * 1e9 / hz)
        self._lock = Lock()
        self._last_call: tuple[str, dict[str, Any]] | None = None
        self._last_ns = 0
        self._unwritten_topics: set[str] = set()  # topics whose last message could not be written
        self._closed = False

    def apply(self, active: Callable[[], Standing]) -> None:
        """Publish the active call: all its messages if it is new, otherwise its `repeat` messages if they are due.

        `active` returns the active call. It runs under the lock, so that no thread publishes a call which another
        thread has already replaced. If the call does not fit its mapping, or expires before it can be published,
        publish the safe call and raise Unmappable.
        """
        started_ns = clock.now_ns()
        with self._lock:
            now_ns = clock.now_ns()
            standing, safe = active(), self._mapper.config.safe
            name, arguments, ends_ns = safe.name, safe.arguments, None
            drives = standing.status != "safe" and standing.call is not None and not self._closed
            if drives and standing.call is not None:
                name, arguments = standing.call.name, standing.call.arguments
                if standing.left_ms is not None:
                    ends_ns = now_ns + int(standing.left_ms * 1e6)
            if self._call_ends_ns is not None and now_ns > self._call_ends_ns:
                self._last_call = None  # this process was stopped, so the guard may have published
            self._call_ends_ns = ends_ns
            if drives:
                self._heartbeat(standing.left_ms)
            try:
                self._publish(name, arguments, started_ns, ends_ns)
            except Exception as error:
                self._call_ends_ns = None
                self._publish(safe.name, safe.arguments, started_ns)
                self._report_safe()
                if isinstance(error, Unmappable):
                    raise
                raise Unmappable(f"{name} could not be published ({error})") from error
            if not drives:
                self._report_safe()

    def _report_safe(self) -> None:
        if not self._unwritten_topics:
            self._heartbeat(None)

    def _publish(self, name: str, arguments: Mapping[str, Any], now_ns: int, ends_ns: int | None = None) -> None:
        call = (name, dict(arguments))
        new = call != self._last_call
        if not new and now_ns - self._last_ns < self._repeat_after_ns:
            return
        # Create all messages before the first is published, so that a call is never published partially.
        publications = self._mapper.publications(name, arguments, self._stamp_ns())
        # Check the time again, because creating the messages may have taken long.
        if ends_ns is not None and clock.now_ns() > ends_ns - MARGIN_NS:
            if new:
                raise Unmappable(f"{name} could not be published within its time-to-live")
            return
        due = [p for p in publications if new or p.repeat or p.topic in self._unwritten_topics]
        self._last_call = None  # if a write raises an error, the following safe call counts as new
        # Retry messages that could not be written in the next tick, in particular those of the safe call.
        self._unwritten_topics = {p.topic for p in due if not self._outputs[p.topic].write(p.message)}
        self._last_call, self._last_ns = call, now_ns

    def publish_again(self) -> None:
        """Make the next `apply` publish all messages of its call, even if the call is not new."""
        with self._lock:
            self._last_call = None

    def close(self) -> None:
        """Publish the safe call three times, since a best-effort subscriber may miss a message, then nothing else."""
        with self._lock:
            self._closed = True
        for _ in range(3):
            self.publish_again()
            self.apply(lambda: Standing(None, "safe", cause="closed"))
            time.sleep(0.02)
