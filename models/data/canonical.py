"""Tools in head order with at most six argument heads, and whether a call is one of theirs."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import HALF, Sample, Unusable
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.json_schema import as_declared
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema

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
    return _canonical(text, overflow).exact()


@lru_cache(maxsize=8192)
def _canonical(text: str, overflow: Overflow) -> ToolSchema:
    try:
        text.encode()
        schema = ToolSchema.from_openai(json.loads(text))
    except UnicodeEncodeError:
        raise Unusable(HALF) from None
    except UserError as error:
        raise Unusable("a tool that cannot be decoded", error.what) from None
    slots = schema.slots("merge" if overflow == "drop" else overflow)
    if overflow == "drop" and len(schema.parameters) > MAX_HEADS:
        raise Unusable(TOO_MANY, schema.name)
    if overflow == "cut":
        kept = sum(len(slot.parameters) for slot in slots)
        if schema.rules is not None and kept < len(schema.parameters):
            raise Unusable(TOO_MANY, f"{schema.name}, which {schema.rules.keywords} tie together")
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
    tied = tool.rules.names if tool.rules else ()
    for p in tool.parameters:
        if p.name in found:
            try:
                found[p.name] = as_declared(found[p.name], p.schema)
            except OverflowError:
                raise Unusable(NOT_TAKEN, f"{tool.name}.{p.name}") from None
            if found[p.name] is None and not p.required and p.name not in tied:
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
    if tool.rules is not None and tool.rules.fault(call.arguments) is not None:
        raise Unusable("arguments that may not stand together", f"{tool.name}: {tool.rules.keywords}")


def _holds(p: Parameter, value: Any) -> bool:
    if value is None and p.nullable:
        return True
    return p.domain.holds(value) if isinstance(p.domain, ClosedDomain) else p.domain.judge.takes(value)


Purpose = Literal["train", "eval"]


def decompose(sample: Sample, purpose: Purpose, seed: int = 0) -> list[DataRow]:
    """One row a call. For evaluation in the order given; for training the list of calls is shuffled before its prefixes
    are taken, the same way each time for a sample's id and `seed`: so that a history may hold any of the other calls,
    and never the row's own."""
    order = list(range(len(sample.calls)))
    if purpose == "train":
        random.Random(f"{seed}:{sample.id}").shuffle(order)
    history, rows = list(sample.history), []
    for n, at in enumerate(order, 1):
        call = sample.calls[at]
        rows.append(
            DataRow(
                id=sample.id if len(order) == 1 else f"{sample.id}/{n}",
                sample=sample.id,
                source=sample.source,
                instruction=sample.instruction,
                observation=sample.observation,
                tools=sample.tools,
                history=tuple(history),
                call=call,
                weight=sample.weight,
                check=sample.checks[at] if sample.checks else None,
            )
        )
        history.append(call.text())
    return rows
