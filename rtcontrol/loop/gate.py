"""The confidence gate: which decisions are too unsure to act, wherever they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rtcontrol.agents import Tool
from rtcontrol.models.call import Decision
from rtcontrol.models.special import ARGUMENTS


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
