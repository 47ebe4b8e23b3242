"""The wall clock's grid that a paced drive keeps to, whatever happens."""

from __future__ import annotations

import time


class Grid:
    """Instants a step apart since `restart`; whole steps that were missed are passed over, the phase is kept."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self.restart()

    def restart(self) -> None:
        """The next instant is now."""
        self._next_s = time.monotonic()

    def wait(self) -> tuple[float, int]:
        """Sleep until the next instant; gives how late it began, and how many instants were passed over."""
        left = self._next_s - time.monotonic()
        if left > 0:
            time.sleep(left)
        late_s = time.monotonic() - self._next_s
        skipped = int(late_s / self._step_s)
        self._next_s += (skipped + 1) * self._step_s
        return late_s - skipped * self._step_s, skipped
