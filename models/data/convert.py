"""Samples of any set as rows: one row a call, tools in head order; what gives no row is counted with its reason."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import HALF, Dropped, PlacedRow, Sample, Tally, Unusable
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.json_schema import as_declared
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

# "train": calls shuffled, numbers of their declared type, rows that their tools forbid dropped, each row once. "eval":
# calls and values as given, every sample that can be shown kept, since what cannot be answered rightly counts as wrong.
Purpose = Literal["train", "eval"]
NOT_TAKEN = "a value that its parameter does not take"
REPEATED = "a row that was there before"


def rows(
    found: Iterable[Sample | Dropped | PlacedRow], tally: Tally, purpose: Purpose = "train", seed: int = 0
) -> Iterator[DataRow]:
    """Yield the rows of what a source gives; a row that is one already keeps its history."""
    samples: dict[str, int] = {}
    ids: dict[str, int] = {}
    seen: set[int] = set()
    for one in found:
        if isinstance(one, Dropped):
            tally.samples[one.source] += 1
            tally.drop(one)
            continue
        if isinstance(one, Sample):
            source, where, calls = one.source, one.where, one.calls
            tally.samples[source] += 1
            made = decompose(replace(one, id=one.id + _number(one.id, samples)), purpose, seed)
        else:
            row, where, calls = one.row, one.where, ()
            source, number = row.source, _number(row.id, ids)  # of the file, where several have rows of one id
            made = [row := replace(row, id=row.id + number, sample=row.sample + number)]
            tally.samples[source] += row.sample not in samples
            samples.setdefault(row.sample, 1)
        try:
            if not made:
                raise Unusable("no call")
            ready = [_ready(row, calls, purpose) for row in made]
            problems = [problem for row, tool in ready if (problem := _problem(row, tool)) is not None]
            if problems and purpose == "train":
                raise problems[0]
        except Unusable as error:
            tally.drop(Dropped(error.reason, where, error.detail, source))
            continue
        if problems:
            tally.note(Dropped(problems[0].reason, where, problems[0].detail, source))
        for row, _ in ready:
            key = hash((row.instruction, row.observation, repr(row.tools), row.history, row.call and row.call.text()))
            if purpose == "train" and key in seen:
                tally.drop(Dropped(REPEATED, where, "", source))
                continue
            seen.add(key)
            tally.rows[source] += 1
            yield row


def _number(name: str, ids: dict[str, int]) -> str:
    """Return what tells an id from those of the same name before it."""
    ids[name] = ids.get(name, 0) + 1
    return "" if ids[name] == 1 else f"~{ids[name]}"


def decompose(sample: Sample, purpose: Purpose, seed: int = 0) -> list[DataRow]:
    """Return one row a call. For evaluation in the order given; for training the list of calls is shuffled before its
    prefixes are taken, the same way each time for a sample's id and `seed`: so that a history may hold any of the other
    calls, and never the row's own."""
    calls = list(sample.calls)
    if purpose == "train":
        random.Random(f"{seed}:{sample.id}").shuffle(calls)
    history, made = list(sample.history), []
    for n, call in enumerate(calls, 1):
        made.append(
            DataRow(
                id=sample.id if len(calls) == 1 else f"{sample.id}/{n}",
                sample=sample.id,
                source=sample.source,
                instruction=sample.instruction,
                observation=sample.observation,
                tools=sample.tools,
                history=tuple(history),
                call=call,
                weight=sample.weight,
            )
        )
        history.append(call.text())
    return made


def _ready(row: DataRow, calls: tuple[Call, ...], purpose: Purpose) -> tuple[DataRow, ToolSchema | None]:
    """Return the row with its tools in head order and its calls (those in its history too) as these have them; and the
    tool that it calls."""
    tools = {schema.name: schema for schema in map(canonical, row.tools)}
    if len(tools) < len(row.tools):
        raise Unusable("two tools of one name")

    def ready(call: Call) -> Call:
        if call.name not in tools:
            raise Unusable("a call of a function that is not shown", call.name)
        kept = ordered(call, tools[call.name])
        return declared(kept, tools[call.name]) if purpose == "train" else kept

    texts = {call.text(): ready(call).text() for call in calls}
    made = replace(
        row,
        tools=tuple(_shown(_text(tool)) for tool in row.tools),
        call=row.call and ready(row.call),
        allowed=tuple(ready(call) for call in row.allowed),
        history=tuple(texts.get(text, text) for text in row.history),
    )
    return made, tools[row.call.name] if row.call else None


def _problem(row: DataRow, tool: ToolSchema | None) -> Unusable | None:
    if row.call is None or tool is None:
        return None
    try:
        check_call(row.call, tool)
    except Unusable as error:
        return error
    return None


def canonical(tool: Mapping[str, Any]) -> ToolSchema:
    """Return a tool in head order. Raises Unusable."""
    return _canonical(_text(tool))


def _text(tool: Mapping[str, Any]) -> str:
    return json.dumps(tool, ensure_ascii=False)


@lru_cache(maxsize=8192)
def _shown(text: str) -> Mapping[str, Any]:
    """Return a tool's definition; one object for all rows that have it."""
    return _canonical(text).exact()


@lru_cache(maxsize=8192)
def _canonical(text: str) -> ToolSchema:
    try:
        text.encode()
        return ToolSchema.from_openai(json.loads(text))
    except UnicodeEncodeError:
        raise Unusable(HALF) from None
    except UserError as error:
        raise Unusable("a tool that cannot be decoded", error.what) from None


def ordered(call: Call, tool: ToolSchema) -> Call:
    """Return the call with its arguments in head order; what the tool does not know comes last."""
    known = [p.name for p in tool.parameters if p.name in call.arguments]
    return Call(call.name, {k: call.arguments[k] for k in (*known, *(k for k in call.arguments if k not in known))})


def declared(call: Call, tool: ToolSchema) -> Call:
    """Return the call with its values as heads say them: numbers of the declared type, and no null for what may be left
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
    """Raise Unusable for a call that the tool does not allow: what no head can say, hence nothing to learn."""
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
