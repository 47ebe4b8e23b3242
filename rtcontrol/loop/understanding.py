"""Whether an instruction is understood: calls that stay less sure than the gate are told to people, once for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rtcontrol.loop.instructions import echo

# So long, beyond what was sure meanwhile, decisions must be unsure: one that is in doubt at times is understood.
DOUBT_S = 0.5
NAMED = 3  # words


class Understanding:
    """`heard` of each decision of a run that has a gate; `notify` tells people. The owner may set `doubted`
    (instruction, what is said of it), which is told too. All from the loop's thread."""

    def __init__(self, hz: float, notify: Callable[[str], None]) -> None:
        self._ticks, self._notify = max(1, math.ceil(DOUBT_S * hz)), notify
        self.doubted: Callable[[str, str], None] = lambda text, what: None
        self._instruction: str | None = None
        self._doubt, self._told = 0, False

    def heard(self, instruction: str, unsure: bool, unknown: Sequence[str] = ()) -> None:
        """A decision by this instruction was or was not too unsure to act; `unknown` words of it were never taught."""
        if instruction != self._instruction:
            self._instruction, self._doubt, self._told = instruction, 0, False
        self._doubt = self._doubt + 1 if unsure else max(0, self._doubt - 1)
        if self._doubt >= self._ticks and not self._told:
            self._told = True
            because = f"{never_taught(unknown)}; its" if unknown else "its"
            what = f'"{echo(instruction)}" is not understood: {because} calls are unsure, and held back.'
            self._notify(f"{what} Say it in other words.")
            self.doubted(instruction, what)


def never_taught(unknown: Sequence[str]) -> str:
    """The words that the model was never taught, for people."""
    named = ", ".join(f'"{echo(word)}"' for word in unknown[:NAMED])
    more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
    return f"{named}{more} {'is a word' if len(unknown) == 1 else 'are words'} that it was never taught"
