"""Carries out what is active: publishes calls, repeats them, and nothing but the safe call once closed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol_client import Standing
from rtcontrol_client.ros2 import Unmappable
from rtcontrol_client.ros2.mapper import Mapper

# A tick repeats what was not published for this part of a period.
REPEAT = 0.75
# Making and writing a message takes up to 2 ms (p99): what would run out meanwhile is not started.
MARGIN_NS = 2_000_000


class Ros2Actuator:
    """Thread-safe; `apply` is called whenever what is active may have changed and at least every tick."""

    def __init__(
        self, mapper: Mapper, outputs: Mapping[str, Any], hz: float, stamp_ns: Callable[[], int] = time.time_ns
    ) -> None:
        """`stamp_ns`: the time by which messages are stamped."""
        self._mapper, self._outputs, self._stamp_ns = mapper, outputs, stamp_ns
        # Gets how long what is published next may be active, and None once the safe call is out, or without a limit.
        self.heartbeat: Callable[[float | None], None] = lambda left_ms: None
        self._ends_ns: int | None = None  # of what was published last
        self._repeat_ns = int(REPEAT * 1e9 / hz)
        self._lock = threading.Lock()
        self._last: tuple[str, dict[str, Any]] | None = None
        self._last_ns = 0
        self._unwritten: set[str] = set()  # topics that did not take their message
        self._refused: Standing | None = None
        self._closed = False
        self.state = ""  # status of what was carried out last
        self.count: Counter[str] = Counter()

    def apply(self, active: Callable[[], Standing]) -> None:
        """Publish the active call: all of it where it is new, else what repeats, where that is due.

        `active` is called under the lock, so that no thread publishes what another has seen end. Raises Unmappable
        where the call does not fit its mapping, or its time is over before it could be published; the safe call has
        been published then.
        """
        started_ns = time.monotonic_ns()
        with self._lock:
            now_ns = time.monotonic_ns()
            standing = active()
            safe = self._mapper.config.safe
            name, arguments, state, ends_ns = safe.name, safe.arguments, "safe", None
            if standing.status != "safe" and standing.call is not None and not self._closed:
                name, arguments, state = standing.call.name, standing.call.arguments, standing.status
                if standing.left_ms is not None:
                    ends_ns = now_ns + int(standing.left_ms * 1e6)
            if self._ends_ns is not None and now_ns > self._ends_ns:
                self._last = None  # it ran out while this process did not run: the guard may have published meanwhile
            self._ends_ns = ends_ns
            if state != "safe":
                self.heartbeat(standing.left_ms)
            try:
                self._publish(name, arguments, started_ns, ends_ns)
                self.state = state
            except Exception as error:
                # One call is one refusal, in however many ticks it is still active.
                if self._refused is None or self._refused.call is not standing.call:
                    self.count["refused"] += 1
                self._refused, self.state, self._ends_ns = standing, "safe", None
                self._publish(safe.name, safe.arguments, started_ns)
                self._beat()
                if isinstance(error, Unmappable):
                    raise
                raise Unmappable(f"{name} could not be published ({error})") from error
            if state == "safe":
                self._beat()

    def _beat(self) -> None:
        if not self._unwritten:
            self.heartbeat(None)

    def _publish(self, name: str, arguments: Mapping[str, Any], now_ns: int, ends_ns: int | None = None) -> None:
        call = (name, dict(arguments))
        new = call != self._last
        if not new and now_ns - self._last_ns < self._repeat_ns:
            return
        # All messages are made before the first is sent: half a call is none.
        publications = self._mapper.publications(name, arguments, self._stamp_ns())
        # It may have taken long, also to come here: other programs run too.
        if ends_ns is not None and time.monotonic_ns() > ends_ns - MARGIN_NS:
            if new:
                raise Unmappable(f"{name} could not be published within its time-to-live")
            return
        due = [p for p in publications if new or p.repeat or p.topic in self._unwritten]
        self._last = None  # where writing ends halfway, the safe call after it is a new one
        # What could not be written is tried again in the next tick, the safe call above all.
        self._unwritten = {p.topic for p in due if not self._outputs[p.topic].write(p.message)}
        self._last, self._last_ns = call, now_ns
        self.count["calls" if new else "repeats"] += 1

    def renew(self) -> None:
        """Publish the next call whole, whatever was before."""
        with self._lock:
            self._last = None

    def close(self, standing: Standing) -> None:
        """Publish the safe call three times; from now on nothing else is published. Of one message a best-effort
        subscriber could miss."""
        with self._lock:
            self._closed = True
        for _ in range(3):
            self.renew()
            self.apply(lambda: standing)
            time.sleep(0.02)
