"""Whether a call is right, by rules that need no package.

*exact*: one of the right calls, value for value. *strict*: what SimpleTool's authors published their scores by (their
reproduction release, September 2026): one of the right calls, with no other arguments, values compared by `alike`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, FUNCTION
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import same
from rtcontrol.models.schema.tool_schema import Slot, ToolSchema

RULES = ("exact", "strict")
NEAR = 1e-6  # numbers so close are alike
LEFT_OUT = ""  # as the sets write it


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the function is the right one, and whether all of the call is; `why` not, in a few words."""

    function: bool
    right: bool
    why: str = ""


def judge(calls: Sequence[Call], row: DataRow, rule: str) -> Judgement:
    """Return the verdict on the answer to a row: no call, one, or several. Where the row's call is null, no call is
    right."""
    assert rule in RULES, rule
    if row.call is None:
        return Judgement(not calls, not calls, "a call where none is due" if calls else "")
    right = [one for one in (row.call, *row.allowed) if calls and one.name == calls[0].name]
    if len(calls) != 1:
        return Judgement(bool(right), False, f"{len(calls)} calls" if calls else "no call")
    call, why = calls[0], ""
    for one in right:
        names = [*one.arguments, *(k for k in call.arguments if k not in one.arguments)]
        wrong = [name for name in names if not argument_right(call, one, name, rule)]
        if not wrong:
            return Judgement(True, True)
        why = f"argument {wrong[0]}"
    return Judgement(bool(right), False, why or f"function {call.name}")


def argument_right(call: Call, right: Call, name: str, rule: str) -> bool:
    """Return whether a call has the right call's value of an argument, or neither has one. By the strict rule a call
    may leave out what is null or "" in the right one."""
    if name not in right.arguments:
        return name not in call.arguments
    value, wanted = call.arguments.get(name, LEFT_OUT), right.arguments[name]
    return alike(value, wanted) if rule == "strict" else name in call.arguments and same(value, wanted)


def alike(a: Any, b: Any) -> bool:
    """Whether two values are taken for the same: numbers within 1e-6 of each other, however they are written (`"3"`,
    `3.0`), texts but for case and spaces, lists item by item; whatever else by its text."""
    if a == b or {repr(a), repr(b)} == {"None", "''"}:
        return True
    if (x := _number(a)) is not None and (y := _number(b)) is not None and abs(x - y) < NEAR:
        return True
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, str) and isinstance(b, str):
        return _plain(a) == _plain(b)
    return str(a) == str(b)


def _number(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(found) or math.isinf(found) else found


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


@dataclass(frozen=True, slots=True)
class Head:
    """A head's name, whether its value is right, and how sure it was (None: it does not say)."""

    name: str
    right: bool
    confidence: float | None


def heads(call: Call | None, row: DataRow, confidence: Mapping[str, float]) -> list[Head]:
    """Return the judged heads of a call: the function's, and, where that is right, those of its parameters, by the
    strict rule."""
    if row.call is None:
        return [Head(FUNCTION, call is None, confidence.get(FUNCTION))]
    right = [one for one in (row.call, *row.allowed) if call is not None and one.name == call.name]
    found = [Head(FUNCTION, bool(right), confidence.get(FUNCTION))]
    if call is None or not right:
        return found
    slots = _slots(row, call.name)
    judged = [
        [all(argument_right(call, one, p.name, "strict") for p in slot.parameters) for slot in slots] for one in right
    ]
    best = max(judged, key=sum)  # of several right calls the one that this comes closest to
    return found + [Head(k, ok, confidence.get(k)) for k, ok in zip(ARGUMENTS, best, strict=False)]


def _slots(row: DataRow, name: str) -> tuple[Slot, ...]:
    tool = next(tool for tool in row.tools if tool.get("function", tool)["name"] == name)
    return _read(json.dumps(tool))


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Slot, ...]:
    try:
        return ToolSchema.from_openai(json.loads(text)).slots()
    except UserError:  # no heads, hence none to judge
        return ()
