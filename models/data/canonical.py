"""Tools in head order with at most six argument heads, and whether a call is one of theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import jsonschema
import referencing

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.domain import ClosedDomain
from rtcontrol.models.errors import UserError
from rtcontrol.models.normal import as_declared
from rtcontrol.models.schema import MAX_HEADS, Parameter, ToolSchema

# Of a tool with more parameters than heads the rest shares the last head, is cut, or all its rows are dropped.
Overflow = Literal["merge", "cut", "drop"]
TOO_MANY = f"a tool with more than {MAX_HEADS} parameters"
NOT_TAKEN = "a value that its parameter does not take"


def canonical(tool: Mapping[str, Any], overflow: Overflow) -> ToolSchema:
    """A tool in head order; "cut" leaves it its first six parameters. Raises Unusable."""
    return _canonical(json.dumps(tool, ensure_ascii=False), overflow)


def shown(tool: Mapping[str, Any], overflow: Overflow) -> Mapping[str, Any]:
    """Its definition; one object for all rows that have it. Raises Unusable."""
    return _shown(json.dumps(tool, ensure_ascii=False), overflow)


@lru_cache(maxsize=8192)
def _shown(text: str, overflow: Overflow) -> Mapping[str, Any]:
    return _canonical(text, overflow).to_openai()


@lru_cache(maxsize=8192)
def _canonical(text: str, overflow: Overflow) -> ToolSchema:
    try:
        schema = ToolSchema.from_openai(json.loads(text))
    except UserError as error:
        raise Unusable("a tool that cannot be decoded", error.what) from None
    slots = schema.slots("merge" if overflow == "drop" else overflow)
    if overflow == "drop" and len(schema.parameters) > MAX_HEADS:
        raise Unusable(TOO_MANY, schema.name)
    if overflow == "cut":
        return replace(schema, parameters=tuple(p for slot in slots for p in slot.parameters))
    return schema


def cut(call: Call, tool: ToolSchema, whole: ToolSchema) -> Call:
    """A call without the arguments that were cut from its tool; what `whole` does not know either stays."""
    gone = {p.name for p in whole.parameters} - {p.name for p in tool.parameters}
    return Call(call.name, {k: v for k, v in call.arguments.items() if k not in gone})


def ordered(call: Call, tool: ToolSchema) -> Call:
    """The call with its arguments in head order; what the tool does not know comes last."""
    known = [p.name for p in tool.parameters if p.name in call.arguments]
    return Call(call.name, {k: call.arguments[k] for k in (*known, *(k for k in call.arguments if k not in known))})


def declared(call: Call, tool: ToolSchema) -> Call:
    """The call with its values as heads say them: numbers of the declared type, and null for what may be left out left
    out. Raises Unusable for an integer that is no float."""
    found = dict(call.arguments)
    for p in tool.parameters:
        if p.name in found:
            try:
                found[p.name] = as_declared(found[p.name], p.schema)
            except OverflowError:
                raise Unusable(NOT_TAKEN, f"{tool.name}.{p.name}") from None
            if found[p.name] is None and not p.required:
                del found[p.name]
    return Call(call.name, found)


def check_call(call: Call, tool: ToolSchema) -> None:
    """Raises Unusable for a call that the tool does not allow: what no head can say, hence nothing to learn."""
    parameters = {p.name: p for p in tool.parameters}
    for name in call.arguments:
        if name not in parameters:
            raise Unusable("an argument that its tool does not have", f"{tool.name}.{name}")
    for p in tool.parameters:
        if p.required and p.name not in call.arguments:
            raise Unusable("a required argument that is missing", f"{tool.name}.{p.name}")
        if p.name in call.arguments and not _holds(p, call.arguments[p.name]):
            detail = f"{tool.name}.{p.name} = {json.dumps(call.arguments[p.name], ensure_ascii=False)[:80]}"
            raise Unusable(NOT_TAKEN, detail)


def _holds(p: Parameter, value: Any) -> bool:
    if value is None:
        return p.nullable
    if isinstance(p.domain, ClosedDomain):
        return p.domain.holds(value)
    schema = {"type": p.schema["type"]} if set(p.schema) <= {"type", "description", "default"} else p.schema
    # A registry of nothing: a `$ref` to an address must not be fetched.
    return bool(jsonschema.Draft202012Validator(dict(schema), registry=referencing.Registry()).is_valid(value))
