"""Which head was right: of the function, and of each argument where the function is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.errors import UserError
from rtcontrol.models.eval.judge import LEFT_OUT, answers, argument_right
from rtcontrol.models.schema import Slot, ToolSchema
from rtcontrol.models.special import ARGUMENTS, FUNCTION


@dataclass(frozen=True, slots=True)
class Head:
    """A head's name, whether its value is right, and how sure it was (None: it does not say)."""

    name: str
    right: bool
    confidence: float | None


def heads(call: Call | None, row: DataRow, confidence: Mapping[str, float]) -> list[Head]:
    """The heads of a call that are judged: the function's, and, where that is right, those of its parameters, by the
    values that are allowed (as in `judge.alike`). An argument that no answer names is right where it is left out."""
    if row.call is None:
        return [Head(FUNCTION, call is None, confidence.get(FUNCTION))]
    named = [] if call is None else [one[call.name] for one in answers(row) if call.name in one]
    found = [Head(FUNCTION, bool(named), confidence.get(FUNCTION))]
    if call is None or not named:
        return found
    slots = _slots(row, call.name)
    judged = [[_right(slot, call, allowed) for slot in slots] for allowed in named]
    best = max(judged, key=sum)  # of several right calls the one that this comes closest to
    found += [Head(k, right, confidence.get(k)) for k, right in zip(ARGUMENTS, best, strict=False)]
    return found


def _right(slot: Slot, call: Call, allowed: Mapping[str, Any]) -> bool:
    return all(
        argument_right(call.arguments.get(p.name, LEFT_OUT), allowed.get(p.name, [LEFT_OUT])) for p in slot.parameters
    )


def _slots(row: DataRow, name: str) -> tuple[Slot, ...]:
    tool = next(tool for tool in row.tools if tool.get("function", tool)["name"] == name)
    return _read(json.dumps(tool))


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Slot, ...]:
    try:
        return ToolSchema.from_openai(json.loads(text)).slots()
    except UserError:  # no heads, hence none to judge
        return ()
