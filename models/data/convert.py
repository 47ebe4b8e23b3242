"""Convert samples of any set to rows, one per call, with tools in head order; count samples without rows by reason."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Row
from rtcontrol.models.data.sample import HALF, Dropped, Sample, Tally, Unusable
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.json_schema import as_declared
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema

# "train": calls shuffled, numbers of their declared type, rows that their tools forbid dropped, each row once. "eval":
# calls and values as given, every sample that can be shown kept: one that cannot be answered correctly counts as wrong.
Purpose = Literal["train", "eval"]
NOT_TAKEN = "a value that its parameter does not take"
REPEATED = "a row that was there before"
PAPER = "18,20,18,17,15,12"
OVER = "over its share of rows with as many arguments"


def rows(
    samples: Iterable[Sample | Dropped | Row], tally: Tally, purpose: Purpose = "train", seed: int = 0
) -> Iterator[Row]:
    """Yield the rows of a source; rows of a file keep their history."""
    numbers: dict[str, int] = {}
    row_numbers: dict[str, int] = {}
    keys: set[int] = set()
    for sample in samples:
        if isinstance(sample, Dropped):
            tally.samples[sample.source] += 1
            tally.drop(sample)
            continue
        source, where = sample.source, sample.where
        try:
            if isinstance(sample, Sample):
                tally.samples[source] += 1
                candidates = decompose(replace(sample, id=sample.id + _number(sample.id, numbers)), purpose, seed)
            else:
                number = _number(sample.id, row_numbers)  # of the file, where several have rows of one id
                row = replace(sample, id=sample.id + number, sample=sample.sample + number)
                tally.samples[source] += row.sample not in numbers
                numbers.setdefault(row.sample, 1)
                candidates = [_in_head_order(row, purpose)]
            problems = [problem for row in candidates if (problem := _problem(row)) is not None]
            if problems and purpose == "train":
                raise problems[0]
        except Unusable as error:
            tally.drop(Dropped(error.reason, where, error.detail, source))
            continue
        if problems:
            tally.note(Dropped(problems[0].reason, where, problems[0].detail, source))
        for row in candidates:
            key = hash((row.question, *(tool.canonical_json() for tool in row.tools), row.call and row.call.text()))
            if purpose == "train" and key in keys:
                tally.drop(Dropped(REPEATED, where, "", source))
                continue
            keys.add(key)
            tally.rows[source] += 1
            yield row


def _number(name: str, numbers: dict[str, int]) -> str:
    """Return a suffix that makes a repeated id unique."""
    numbers[name] = numbers.get(name, 0) + 1
    return "" if numbers[name] == 1 else f"~{numbers[name]}"


def decompose(sample: Sample, purpose: Purpose, seed: int = 0) -> list[Row]:
    """Return one row per call, in head order. For evaluation the calls keep their order; for training they are shuffled
    by the sample's id and `seed` before their prefixes become histories, so that a history may hold any other calls.
    Raises Unusable."""
    tools = tuple(canonical(tool) for tool in sample.tools)
    if len({tool.name for tool in tools}) < len(tools):
        raise Unusable("two tools of one name")
    if not sample.calls:
        raise Unusable("no call")
    row = Row(sample.instruction, sample.observation, None, sample.history, tools)
    row = replace(row, sample=sample.id, source=sample.source, weight=sample.weight, where=sample.where)
    calls = [_call_in_head_order(call, tools, purpose) for call in sample.calls]
    if purpose == "train":
        random.Random(f"{seed}:{sample.id}").shuffle(calls)
    history, made = list(sample.history), []
    for n, call in enumerate(calls, 1):
        row_id = sample.id if len(calls) == 1 else f"{sample.id}/{n}"
        made.append(replace(row, id=row_id, history=tuple(history), call=call))
        history.append(call.text())
    return made


def _in_head_order(row: Row, purpose: Purpose) -> Row:
    return replace(
        row,
        call=row.call and _call_in_head_order(row.call, row.tools, purpose),
        allowed=tuple(_call_in_head_order(call, row.tools, purpose) for call in row.allowed),
    )


def _call_in_head_order(call: Call, tools: Sequence[ToolSchema], purpose: Purpose) -> Call:
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        raise Unusable("a call of a function that is not shown", call.name)
    return declared(ordered(call, tool), tool) if purpose == "train" else ordered(call, tool)


def _problem(row: Row) -> Unusable | None:
    try:
        check_row(row)
    except Unusable as error:
        return error
    return None


def check_row(row: Row) -> None:
    """Raise Unusable where the row's tools do not allow its call."""
    if row.call is not None:
        check_call(row.call, next(tool for tool in row.tools if tool.name == row.call.name))


def canonical(tool: Mapping[str, Any]) -> ToolSchema:
    """Return a tool in head order. Raises Unusable."""
    return _canonical(json.dumps(tool, ensure_ascii=False))


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
    """Return the call with its arguments in head order; unknown ones come last."""
    known = [p.name for p in tool.parameters if p.name in call.arguments]
    return Call(call.name, {k: call.arguments[k] for k in (*known, *(k for k in call.arguments if k not in known))})


def declared(call: Call, tool: ToolSchema) -> Call:
    """Return the call with its values as heads write them: numbers of the declared type, no null for an argument that
    may be left out. Raises Unusable for an integer that does not fit a float."""
    arguments = dict(call.arguments)
    for p in tool.parameters:
        if p.name in arguments:
            try:
                arguments[p.name] = as_declared(arguments[p.name], p.schema)
            except OverflowError:
                raise Unusable(NOT_TAKEN, f"{tool.name}.{p.name}") from None
            if arguments[p.name] is None and not p.required:
                del arguments[p.name]
    return Call(call.name, arguments)


def check_call(call: Call, tool: ToolSchema) -> None:
    """Raise Unusable for a call that the tool does not allow: no head can write it."""
    parameters = {p.name: p for p in tool.parameters}
    for name in call.arguments:
        if name not in parameters:
            raise Unusable("an argument that its tool does not have", f"{tool.name}.{name}")
    for p in tool.parameters:
        if p.required and p.name not in call.arguments:
            raise Unusable("a required argument that is missing", f"{tool.name}.{p.name}")
        if p.name in call.arguments and not _takes(p, call.arguments[p.name]):
            detail = f"{tool.name}.{p.name} = {json.dumps(call.arguments[p.name], ensure_ascii=False)[:80]}"
            raise Unusable(NOT_TAKEN, detail)
    if tool.rules is not None and tool.rules.fault(call.arguments) is not None:
        raise Unusable("arguments that may not stand together", f"{tool.name}: {tool.rules.keywords}")


def _takes(parameter: Parameter, value: Any) -> bool:
    if value is None and parameter.nullable:
        return True
    domain = parameter.domain
    return domain.holds(value) if isinstance(domain, ClosedDomain) else domain.judge.takes(value)


def shares_of(text: str) -> dict[int, float]:
    """Read `18,20,18,17,15,12` as shares of 1 to 6 arguments; seven numbers are shares of 0 to 6; `paper` means the
    paper's. Raises UserError."""
    try:
        numbers = [float(part) for part in (PAPER if text == "paper" else text).split(",")]
    except ValueError:
        numbers = []
    whole = len(numbers) in (MAX_HEADS, MAX_HEADS + 1) and all(0 <= n < math.inf for n in numbers)
    if not whole or sum(numbers) <= 0:
        raise UserError(
            f"{text!r} are not shares.", f"Write six numbers (1 to 6 arguments) or seven (0 to 6): {PAPER}."
        )
    first = MAX_HEADS + 1 - len(numbers)
    return {first + n: number / sum(numbers) for n, number in enumerate(numbers)}


def balanced(rows: Sequence[Row], shares: Mapping[int, float], seed: int, tally: Tally) -> list[Row]:
    """Return rows in order whose calls have these shares by number of arguments, as in the paper: as few rows as
    possible are dropped, at random by `seed`. More than six arguments count as six; rows without a call or without a
    share stay.

    Raises UserError where no row has a count that has a share.
    """
    classes: dict[int, list[int]] = {count: [] for count, share in shares.items() if share}
    kept = set(range(len(rows)))
    for index, row in enumerate(rows):
        if row.call is not None and (count := min(len(row.call.arguments), MAX_HEADS)) in shares:
            classes.setdefault(count, []).append(index)
            kept.discard(index)
    if empty := [count for count, indices in classes.items() if not indices]:
        raise UserError(
            f"No row has a call of {empty[0]} arguments, whose share is {shares[empty[0]]:.0%}.",
            "Add rows that do (rtcontrol data synthesise), or give other shares.",
        )
    total = min(len(indices) / shares[count] for count, indices in classes.items() if shares[count])
    rng = random.Random(seed)
    for count, indices in sorted(classes.items()):
        # The floor of a share, short of what rounding takes away.
        kept |= set(rng.sample(indices, min(len(indices), math.floor(total * shares[count] + 1e-9))))
    for index in sorted({*range(len(rows))} - kept):
        tally.drop(Dropped(OVER, rows[index].id, "", rows[index].source))
        tally.rows[rows[index].source] -= 1
    return [row for index, row in enumerate(rows) if index in kept]
