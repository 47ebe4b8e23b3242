"""Whether an instruction is understood: calls that stay less sure than the gate are told to people, once for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rtcontrol.agents import Tool
from rtcontrol.loop.requests import echo
from rtcontrol.models.call import Decision
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS


class Doubt(NamedTuple):
    """What holds a decision back: the head or parameter, how sure it is, how sure it must be. Of a null function that
    says that nothing was understood, `least` is 1."""

    head: str
    confidence: float
    least: float


class ConfidenceGate:
    """`floors` are the least confidence by head or parameter, of all heads under the empty name; `null_is_doubt`: a
    null function says that what is told is not understood."""

    def __init__(self, floors: Mapping[str, float], tools: Iterable[Tool], null_is_doubt: bool = False) -> None:
        self._floors = dict(floors)
        self._least = self._floors.pop("", 0.0)
        self._null_is_doubt = null_is_doubt
        self._heads = heads_of(tools)
        self.closed = bool(self._floors or self._least > 0 or null_is_doubt)  # it may hold something

    def doubt(self, decision: Decision) -> Doubt | None:
        """Why a decision must not act; None where it may."""
        call, confidence = decision.call, decision.confidence
        if call is None and self._null_is_doubt:
            return Doubt("function", 1.0 - confidence.get("function", 1.0), 1.0)
        if self._least and min(confidence.values(), default=1.0) < self._least:
            head = min(confidence, key=lambda name: confidence[name])
            return Doubt(head, confidence[head], self._least)
        names = self._heads.get(call.name, {}) if call is not None else {}
        for head, floor in self._floors.items():
            if (sure := confidence.get(names.get(head, head), 1.0)) < floor:
                return Doubt(head, sure, floor)
        return None


def heads_of(tools: Iterable[Tool]) -> dict[str, dict[str, str]]:
    """By tool: the head of each parameter."""
    return {
        t.name: {p.name: ARGUMENTS[i] for i, slot in enumerate(t.schema.slots()) for p in slot.parameters}
        for t in tools
    }


# So long, beyond what was sure meanwhile, decisions must be unsure: one that is in doubt at times is understood.
DOUBT_S = 0.5
NAMED = 3  # words


class ConfidenceMonitor:
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
