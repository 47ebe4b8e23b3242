"""Whether a call is right, by rules that need no package.

*exact*: one of the right calls, value for value. *strict* and *loose*: what SimpleTool's authors published their scores
by (their reproduction release, September 2026): a list of allowed values for each argument, where "" says that it may
be left out. Both compare values alike (`alike`); loose looks at the first call alone and at the arguments that the
answer names; strict asks for exactly one call and refuses arguments that the answer does not name.
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

RULES = ("exact", "strict", "loose")
NEAR = 1e-6  # numbers so close are alike
LEFT_OUT = ""  # among allowed values: the argument may be left out
Allowed = Mapping[str, Mapping[str, Any]]  # {function: {argument: allowed values}}


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the function is the right one, and whether all of the call is; `why` not, in a few words."""

    function: bool
    right: bool
    why: str = ""


def judge(calls: Sequence[Call], row: DataRow, rule: str) -> Judgement:
    """The verdict on what was answered to a row: no call, one, or several. Where the row's call is null, no call is
    right."""
    assert rule in RULES, rule
    if row.call is None:
        return Judgement(not calls, not calls, "a call where none is due" if calls else "")
    if rule == "exact":
        return _exact(calls, [row.call, *row.allowed])
    return by_answer(calls, answers(row), rule)


def answers(row: DataRow) -> list[Allowed]:
    """What is right for a row, as allowed values: its official answer where it has one, else its calls' own values."""
    if row.check is not None and isinstance(row.check.answer, list) and row.check.answer:
        return [one for one in row.check.answer if isinstance(one, Mapping)]
    calls = [] if row.call is None else [row.call, *row.allowed]
    return [{call.name: {k: [v] for k, v in call.arguments.items()}} for call in calls]


def by_answer(calls: Sequence[Call], allowed: Sequence[Allowed], rule: str) -> Judgement:
    """By the authors' rules: right where the call is one of those allowed."""
    assert rule in ("strict", "loose"), rule
    if not calls:
        return Judgement(not allowed, not allowed, "no call" if allowed else "")
    if rule == "strict" and len(calls) != 1:
        return Judgement(any(calls[0].name in one for one in allowed), False, f"{len(calls)} calls")
    call, why = calls[0], ""
    named = [one[call.name] for one in allowed if call.name in one]
    if not named:
        return Judgement(False, False, f"function {call.name}")
    for arguments in named:
        why = _wrong(call, arguments, rule)
        if not why:
            return Judgement(True, True)
    return Judgement(True, False, why)


def _wrong(call: Call, allowed: Mapping[str, Any], rule: str) -> str:
    """Which argument is wrong, or ""."""
    if rule == "strict" and (more := [name for name in call.arguments if name not in allowed]):
        return f"argument {more[0]} is not in the answer"
    for name, values in allowed.items():
        if not argument_right(call.arguments.get(name, LEFT_OUT), values):
            return f"argument {name}"
    return ""


def argument_right(value: Any, allowed: Any) -> bool:
    """Whether an argument's value (`LEFT_OUT`, or None, where it is not given) is one of those allowed."""
    values = allowed if isinstance(allowed, list) else [allowed]
    if value is None or value == LEFT_OUT:
        return not values or LEFT_OUT in values
    return any(alike(value, one) for one in values if one != LEFT_OUT)


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


def _exact(calls: Sequence[Call], right: Sequence[Call]) -> Judgement:
    if len(calls) != 1:
        return Judgement(bool(calls) and any(calls[0].name == one.name for one in right), False, _count(calls))
    call, why = calls[0], ""
    for one in right:
        if one.name != call.name:
            continue
        names = [*one.arguments, *(k for k in call.arguments if k not in one.arguments)]
        wrong = [k for k in names if not _holds(call, one, k)]
        if not wrong:
            return Judgement(True, True)
        why = f"argument {wrong[0]}"
    return Judgement(bool(why), False, why or f"function {call.name}")


def _holds(call: Call, right: Call, name: str) -> bool:
    return name in call.arguments and name in right.arguments and same(call.arguments[name], right.arguments[name])


def _count(calls: Sequence[Call]) -> str:
    return f"{len(calls)} calls" if calls else "no call"


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
