"""Whether an instruction is understood: calls that stay less sure than the gate are told to people, once for each."""

from __future__ import annotations

import math
from collections.abc import Callable

from rtcontrol.loop.instructions import echo

# So long, beyond what was sure meanwhile, decisions must be unsure: one that is in doubt at times is understood.
DOUBT_S = 0.5


class Understanding:
    """`heard` of each decision of a run that has a gate; `notify` tells people. The owner may set `doubted`
    (instruction, what is said of it), which is told too. All from the loop's thread."""

    def __init__(self, hz: float, notify: Callable[[str], None]) -> None:
        self._ticks, self._notify = max(1, math.ceil(DOUBT_S * hz)), notify
        self.doubted: Callable[[str, str], None] = lambda text, what: None
        self._instruction: str | None = None
        self._doubt, self._told = 0, False

    def heard(self, instruction: str, unsure: bool) -> None:
        """A decision by this instruction was or was not too unsure to act."""
        if instruction != self._instruction:
            self._instruction, self._doubt, self._told = instruction, 0, False
        self._doubt = self._doubt + 1 if unsure else max(0, self._doubt - 1)
        if self._doubt >= self._ticks and not self._told:
            self._told = True
            what = f'"{echo(instruction)}" is not understood: its calls are unsure, and held back.'
            self._notify(f"{what} Say it in other words.")
            self.doubted(instruction, what)
