"""How many native physics steps fit into a tick, with the remainder carried."""

from __future__ import annotations


class StepCarry:
    """At 16 Hz a 20 ms physics runs 3, 3, 3, 3, 3, 3, 3 and then 4 steps a tick: no drift, the same every time."""

    def __init__(self, step_s: float) -> None:
        self.step_ns = round(step_s * 1e9)
        self._left_ns = 0

    def steps(self, dt_ns: int) -> int:
        """Whole steps due after `dt_ns` more nanoseconds."""
        count, self._left_ns = divmod(self._left_ns + dt_ns, self.step_ns)
        return count

    def reset(self) -> None:
        """Forget the remainder: a new episode starts on a tick."""
        self._left_ns = 0
