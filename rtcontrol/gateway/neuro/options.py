"""What `rtcontrol serve --neuro` is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from rtcontrol.gateway.neuro.messages import PRIORITIES
from rtcontrol.loop.config import instruction_text
from rtcontrol.models.errors import UserError

# The API knows no deadline: milliseconds until a forced action must have left, by the urgency that the game asks for.
DEADLINES = {"low": 5000.0, "medium": 2000.0, "high": 1000.0, "critical": 500.0}
LEAST_MS, MOST_MS = 1.0, 600_000.0
MOST_HZ = 50.0
INSTRUCTION = "Do what the game asks."


@dataclass(frozen=True)
class NeuroOptions:
    """`deadlines` in milliseconds by priority; `safe`: actions that are taken first where none is decided in time;
    `hz`: how often something may be done that no game forced (0: never but when it speaks to the player)."""

    instruction: str = INSTRUCTION
    deadlines: dict[str, float] = field(default_factory=lambda: dict(DEADLINES))
    safe: tuple[str, ...] = ()
    hz: float = 0.0

    @classmethod
    def parse(cls, instruction: str | None, deadlines: str | None, safe: tuple[str, ...], hz: float) -> Self:
        """From the command line's words. Raises UserError."""
        if not 0 <= hz <= MOST_HZ:
            raise UserError(f"--neuro-hz {hz:g} is no rate.", f"Give 0 (never) to {MOST_HZ:g} times a second.")
        return cls(instruction_text(instruction or INSTRUCTION), _deadlines(deadlines), safe, hz)

    @property
    def longest_ms(self) -> float:
        return max(self.deadlines.values())


def _deadlines(text: str | None) -> dict[str, float]:
    if text is None:
        return dict(DEADLINES)
    remedy = "Give milliseconds for all (800), or by priority: low=5000,critical=300."
    found = dict(DEADLINES)
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.rpartition("="))
        names = [name] if equals else list(PRIORITIES)
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not LEAST_MS <= value <= MOST_MS or any(one not in DEADLINES for one in names):
            raise UserError(f"--neuro-deadline-ms {text} is no list of deadlines.", remedy)
        found |= dict.fromkeys(names, value)
    return found
