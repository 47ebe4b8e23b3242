"""Rows of JSONL files (design, section 9), one after the other, each checked against its own tools."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import referencing
import referencing.exceptions

from rtcontrol.models.call import Call
from rtcontrol.models.domain import ClosedDomain
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import Parameter, ToolSchema, tool_schemas
from rtcontrol.models.train.rows import Row

FORM = "Write an object with instruction, observation, tools, history and call, as `rtcontrol data` does."


class BadRow(UserError):
    """A row that cannot be represented; `reason` is what is wrong with it, without file and line."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        super().__init__(f"{where}: {reason}", remedy)
        self.reason = reason


def read_rows(file: Path) -> Iterator[tuple[str, Row | BadRow]]:
    """(FILE:LINE, row or what is wrong with it) of every line that is not empty. Rows of the same tools share them.
    Raises UserError for a file that cannot be read."""
    try:
        with file.open("rb") as lines:  # bytes: a line separator of Unicode is part of a text
            for number, line in enumerate(lines, 1):
                if line.strip():
                    where = f"{file}:{number}"
                    try:
                        yield where, _row(line, where)
                    except BadRow as bad:
                        yield where, bad
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error.strerror}).", "Give files of rows, one JSON object a line."
        ) from None


def _row(line: bytes, where: str) -> Row:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise BadRow(where, f"it is no JSON ({error}).", FORM) from None
    if not isinstance(value, dict):
        raise BadRow(where, "it is no JSON object.", FORM)
    for name in ("instruction", "observation"):
        if not isinstance(value.get(name), str):
            raise BadRow(where, f"its {name} is no text.", FORM)
    if not isinstance(value.get("tools"), list):
        raise BadRow(where, "its tools are no list of definitions.", FORM)
    weight = value.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
        raise BadRow(where, f"its weight is {weight!r}.", "Write a number from 0 on.")
    if "call" not in value:
        raise BadRow(where, "it has no call.", "Write the right call, or null where the call in force stays.")
    try:
        tools = _tools(json.dumps(value["tools"]))
    except UserError as error:
        raise BadRow(where, error.what, error.remedy) from None
    call = None if value["call"] is None else _call(value["call"], where, "call")
    if call is not None and (fault := fault_of(call, tools)):
        raise BadRow(where, fault, "Correct the call, or leave the row out.")
    history = value.get("history") or []
    if not isinstance(history, list):
        raise BadRow(where, "its history is no list of calls.", FORM)
    told = tuple(h if isinstance(h, str) else _call(h, where, "history").text() for h in history)
    return Row(value["instruction"], value["observation"], call, told, tools=tools, weight=float(weight))


def _call(value: Any, where: str, name: str) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise BadRow(where, f"its {name} has no name.", 'Write {"name": ..., "arguments": {...}}.')
    if not isinstance(value.get("arguments", {}), dict):
        raise BadRow(where, f"its {name}'s arguments are no object.", 'Write {"name": ..., "arguments": {...}}.')
    return Call(value["name"], value.get("arguments", {}))


@lru_cache(maxsize=64)  # an encoder is kept for as many
def _tools(text: str) -> tuple[ToolSchema, ...]:
    return tool_schemas(json.loads(text))


def fault_of(call: Call, tools: Sequence[ToolSchema]) -> str | None:
    """What the tools do not allow in a call; None: nothing."""
    tool = next((t for t in tools if t.name == call.name), None)
    if tool is None:
        return f"its call {call.name!r} is none of its tools."
    known = {p.name: p for p in tool.parameters}
    if extra := [name for name in call.arguments if name not in known]:
        return f"{call.name} has no parameter {extra[0]!r}."
    if missing := [p.name for p in tool.parameters if p.required and p.name not in call.arguments]:
        return f"{call.name}: {missing[0]} is required, and missing."
    for name, value in call.arguments.items():
        if why := _outside(known[name], value):
            return f"{call.name}: {name} is {repr(value)[:80]}, {why}."
    return None


def _outside(parameter: Parameter, value: Any) -> str | None:
    if value is None and parameter.nullable:
        return None
    if isinstance(parameter.domain, ClosedDomain):
        return None if parameter.domain.holds(value) else "which is not one of its values"
    checker = _validator(json.dumps(parameter.domain.schema))
    try:
        error = next(checker.iter_errors(value), None)
    except (referencing.exceptions.Unresolvable, RecursionError) as broken:
        return f"which cannot be checked ({str(broken)[:80]})"
    return None if error is None else f"which its schema does not allow ({error.message[:120]})"


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    # A registry of nothing: a `$ref` to an address must not be fetched.
    found: Mapping[str, Any] = json.loads(schema)
    return jsonschema.Draft202012Validator(found, registry=referencing.Registry())
