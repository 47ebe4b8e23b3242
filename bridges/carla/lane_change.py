"""A lane change as a smooth way across: how far over a vehicle should be, at any moment and ahead of it."""

from __future__ import annotations

from dataclasses import dataclass

TAKES_S = 3.0
LEAST_M = 16.0  # and never shorter than so much of the road
DONE_M = 0.4


@dataclass(slots=True)
class LaneChange:
    """From `start` to `end`, metres right of the reference lane's centre; `side` is -1, 1, or 0 for a way back."""

    side: int
    start: float
    end: float
    progress: float = 0.0
    over_s: float = 0.0  # since it should have been done

    def advance(self, dt_s: float, speed: float) -> None:
        if self.progress >= 1.0:
            self.over_s += dt_s
        self.progress = min(1.0, self.progress + dt_s * _rate(speed))

    def moved(self, by: float) -> None:
        """The reference lane is another one now: everything lies so much farther to the right of it."""
        self.start += by
        self.end += by

    def lateral(self, ahead_m: float, speed: float) -> float:
        """How far right of the reference lane's centre the way is, so far ahead."""
        progress = min(1.0, self.progress + ahead_m * _rate(speed) / max(speed, 0.1))
        smooth = progress**3 * (10.0 - 15.0 * progress + 6.0 * progress * progress)
        return self.start + (self.end - self.start) * smooth

    def done(self, lateral_m: float) -> bool:
        """Whether a vehicle so far right of the reference lane's centre has arrived."""
        return self.progress >= 0.95 and abs(lateral_m - self.end) < DONE_M


def _rate(speed: float) -> float:
    return min(1.0 / TAKES_S, max(speed, 0.0) / LEAST_M)
