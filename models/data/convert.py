"""Samples of any set as rows: decomposed, tools in head order, what cannot be represented counted with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import (
    Overflow,
    Purpose,
    canonical,
    check_call,
    cut,
    declared,
    decompose,
    ordered,
    shown,
)
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Dropped, PlacedRow, Sample, Unusable
from rtcontrol.models.data.tally import Tally
from rtcontrol.models.schema.tool_schema import ToolSchema

REPEATED = "a row that was there before"
CUT = "an argument of a parameter that was cut"


@dataclass(frozen=True)
class ConvertOptions:
    """`purpose` "train": calls shuffled, numbers of their declared type, rows that their tools forbid dropped, each row
    once; "eval": calls and values as given, every sample that can be shown kept, since what cannot be answered rightly
    counts as wrong."""

    purpose: Purpose = "train"
    overflow: Overflow = "merge"
    seed: int = 0


def rows(
    found: Iterable[Sample | Dropped | PlacedRow | DataRow], options: ConvertOptions, tally: Tally
) -> Iterator[DataRow]:
    """The rows of what a source gives; a row that is one already keeps its history."""
    samples: dict[str, int] = {}
    ids: dict[str, int] = {}
    seen: set[int] = set()
    for one in found:
        if isinstance(one, Dropped):
            tally.samples[one.source] += 1
            tally.drop(one)
            continue
        if isinstance(one, Sample):
            tally.samples[one.source] += 1
            one = replace(one, id=_own(one.id, samples))
            made, where = [(row, one.calls) for row in decompose(one, options.purpose, options.seed)], one.where
        else:
            one, where = (one.row, one.where) if isinstance(one, PlacedRow) else (one, one.id)
            number = _number(one.id, ids)  # of the file, where several have rows of one id
            one = replace(one, id=one.id + number, sample=one.sample + number)
            tally.samples[one.source] += one.sample not in samples
            samples.setdefault(one.sample, 1)
            made = [(one, ())]
        try:
            if not made:
                raise Unusable("no call")
            ready = [_ready(row, others, options) for row, others in made]
            problems = [problem for row, tool in ready if (problem := _problem(row, tool)) is not None]
            if problems and options.purpose == "train":
                raise problems[0]
        except Unusable as error:
            tally.drop(Dropped(error.reason, where, error.detail, one.source))
            continue
        if problems:
            tally.note(Dropped(problems[0].reason, where, problems[0].detail, one.source))
        if any(_lost(row, *there) for (row, _), there in zip(made, ready, strict=True)):
            tally.note(Dropped(CUT, where, "", one.source))
        for row, _ in ready:
            key = hash((row.instruction, row.observation, repr(row.tools), row.history, row.call and row.call.text()))
            if options.purpose == "train" and key in seen:
                tally.drop(Dropped(REPEATED, where, "", one.source))
                continue
            seen.add(key)
            tally.rows[row.source] += 1
            yield row


def _own(name: str, ids: dict[str, int]) -> str:
    """The id, with a number where it was there before."""
    return name + _number(name, ids)


def _number(name: str, ids: dict[str, int]) -> str:
    ids[name] = ids.get(name, 0) + 1
    return "" if ids[name] == 1 else f"~{ids[name]}"


def _ready(row: DataRow, calls: tuple[Call, ...], options: ConvertOptions) -> tuple[DataRow, ToolSchema | None]:
    """The row with its tools in head order and its calls (those in its history too) as these have them; and the tool
    that it calls."""
    tools = {schema.name: schema for schema in (canonical(tool, options.overflow) for tool in row.tools)}
    if len(tools) < len(row.tools):
        raise Unusable("two tools of one name")
    wholes = {s.name: s for s in (canonical(tool, "merge") for tool in row.tools)} if options.overflow == "cut" else {}

    def ready(call: Call) -> Call:
        if call.name not in tools:
            raise Unusable("a call of a function that is not shown", call.name)
        own = tools[call.name]
        kept = ordered(cut(call, own, wholes[call.name]) if wholes else call, own)
        return declared(kept, own) if options.purpose == "train" else kept

    texts = {call.text(): ready(call).text() for call in calls}
    made = replace(
        row,
        tools=tuple(shown(tool, options.overflow) for tool in row.tools),
        call=row.call and ready(row.call),
        allowed=tuple(ready(call) for call in row.allowed),
        history=tuple(texts.get(text, text) for text in row.history),
    )
    return made, tools[row.call.name] if row.call else None


def _lost(row: DataRow, made: DataRow, tool: ToolSchema | None) -> bool:
    """Whether the call lost an argument with its tool's parameter."""
    if row.call is None or made.call is None or tool is None:
        return False
    return not set(row.call.arguments) - set(made.call.arguments) <= {p.name for p in tool.parameters}


def _problem(row: DataRow, tool: ToolSchema | None) -> Unusable | None:
    if row.call is None or tool is None:
        return None
    try:
        check_call(row.call, tool)
    except Unusable as error:
        return error
    return None
