"""Convert samples of data sets to rows, one per call, with arguments in head order. Count dropped samples by reason."""

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
from rtcontrol.models.data.sample import LONE_SURROGATE, DroppedSample, Sample, Tally, UnusableSample
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.json_schema import to_declared_types
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema

# "train": shuffle a sample's calls, convert numbers to their declared types, drop illegal calls and duplicate rows.
# "eval": keep calls and values as they are. If they are illegal, no answer to the row counts as right.
Purpose = Literal["train", "eval"]
INVALID_VALUE = "a value that its parameter does not allow"
DUPLICATE = "a duplicate row"
PAPER = "18,20,18,17,15,12"
OVER_SHARE = "more rows with this number of arguments than requested"


def convert_rows(
    samples: Iterable[Sample | DroppedSample | Row], tally: Tally, purpose: Purpose = "train", seed: int = 0
) -> Iterator[Row]:
    """Convert samples to rows and yield them. Rows from a file of rows keep their history."""
    sample_counts: dict[str, int] = {}
    row_counts: dict[str, int] = {}
    keys: set[int] = set()
    for sample in samples:
        if isinstance(sample, DroppedSample):
            tally.samples[sample.source] += 1
            tally.count_dropped(sample)
            continue
        source, where = sample.source, sample.where
        try:
            if isinstance(sample, Sample):
                tally.samples[source] += 1
                unique_id = sample.id + _unique_suffix(sample.id, sample_counts)
                candidates = rows_of_sample(replace(sample, id=unique_id), purpose, seed)
            else:
                number = _unique_suffix(sample.id, row_counts)  # rows of different files may have the same id
                row = replace(sample, id=sample.id + number, sample=sample.sample + number)
                tally.samples[source] += row.sample not in sample_counts
                sample_counts.setdefault(row.sample, 1)
                candidates = [_row_in_head_order(row, purpose)]
            problems = [problem for row in candidates if (problem := _row_error(row)) is not None]
            if problems and purpose == "train":
                raise problems[0]
        except UnusableSample as error:
            tally.count_dropped(DroppedSample(error.reason, where, error.detail, source))
            continue
        if problems:
            tally.count_noted(DroppedSample(problems[0].reason, where, problems[0].detail, source))
        for row in candidates:
            key = hash((row.question, *(tool.canonical_json() for tool in row.tools), row.call and row.call.text()))
            if purpose == "train" and key in keys:
                tally.count_dropped(DroppedSample(DUPLICATE, where, "", source))
                continue
            keys.add(key)
            tally.rows[source] += 1
            yield row


def _unique_suffix(name: str, counts: dict[str, int]) -> str:
    """Return a suffix that makes an id unique: empty, or `~2` for the second sample with the same id."""
    counts[name] = counts.get(name, 0) + 1
    return "" if counts[name] == 1 else f"~{counts[name]}"


def rows_of_sample(sample: Sample, purpose: Purpose, seed: int = 0) -> list[Row]:
    """Return one row for each call of a sample. The history of a row contains the earlier calls. For training, calls
    are shuffled first (by `seed` and the sample's id), so that a history may contain any of the other calls. Raises
    UnusableSample."""
    tools = tuple(canonical_tool(tool) for tool in sample.tools)
    if len({tool.name for tool in tools}) < len(tools):
        raise UnusableSample("two tools with the same name")
    if not sample.calls:
        raise UnusableSample("no call")
    row = Row(sample.instruction, sample.observation, None, sample.history, tools)
    row = replace(row, sample=sample.id, source=sample.source, weight=sample.weight, where=sample.where)
    calls = [_call_in_head_order(call, tools, purpose) for call in sample.calls]
    if purpose == "train":
        random.Random(f"{seed}:{sample.id}").shuffle(calls)
    history, rows = list(sample.history), []
    for n, call in enumerate(calls, 1):
        row_id = sample.id if len(calls) == 1 else f"{sample.id}/{n}"
        rows.append(replace(row, id=row_id, history=tuple(history), call=call))
        history.append(call.text())
    return rows


def _row_in_head_order(row: Row, purpose: Purpose) -> Row:
    return replace(
        row,
        call=row.call and _call_in_head_order(row.call, row.tools, purpose),
        allowed=tuple(_call_in_head_order(call, row.tools, purpose) for call in row.allowed),
    )


def _call_in_head_order(call: Call, tools: Sequence[ToolSchema], purpose: Purpose) -> Call:
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        raise UnusableSample("a call of an unknown function", call.name)
    return with_declared_types(in_head_order(call, tool), tool) if purpose == "train" else in_head_order(call, tool)


def _row_error(row: Row) -> UnusableSample | None:
    try:
        check_row(row)
    except UnusableSample as error:
        return error
    return None


def check_row(row: Row) -> None:
    """Raise UnusableSample if the row's tools do not allow its call."""
    if row.call is not None:
        check_call(row.call, next(tool for tool in row.tools if tool.name == row.call.name))


def canonical_tool(tool: Mapping[str, Any]) -> ToolSchema:
    """Read a tool definition (cached). Raises UnusableSample if it is invalid."""
    return _read_tool(json.dumps(tool, ensure_ascii=False))


@lru_cache(maxsize=8192)
def _read_tool(text: str) -> ToolSchema:
    try:
        text.encode()
        return ToolSchema.from_openai(json.loads(text))
    except UnicodeEncodeError:
        raise UnusableSample(LONE_SURROGATE) from None
    except UserError as error:
        raise UnusableSample("a tool that cannot be decoded", error.what) from None


def in_head_order(call: Call, tool: ToolSchema) -> Call:
    """Return a call with its arguments in the order of the tool's heads. Unknown arguments are last."""
    known = [p.name for p in tool.parameters if p.name in call.arguments]
    return Call(call.name, {k: call.arguments[k] for k in (*known, *(k for k in call.arguments if k not in known))})


def with_declared_types(call: Call, tool: ToolSchema) -> Call:
    """Return a call with numbers converted to their declared types, and without nulls for optional arguments. Raises
    UnusableSample for an integer that does not fit in a float."""
    arguments = dict(call.arguments)
    for p in tool.parameters:
        if p.name in arguments:
            try:
                arguments[p.name] = to_declared_types(arguments[p.name], p.schema)
            except OverflowError:
                raise UnusableSample(INVALID_VALUE, f"{tool.name}.{p.name}") from None
            if arguments[p.name] is None and not p.required:
                del arguments[p.name]
    return Call(call.name, arguments)


def check_call(call: Call, tool: ToolSchema) -> None:
    """Raise UnusableSample if the tool does not allow a call, because no model could decode that call."""
    parameters = {p.name: p for p in tool.parameters}
    for name in call.arguments:
        if name not in parameters:
            raise UnusableSample("an unknown argument", f"{tool.name}.{name}")
    for p in tool.parameters:
        if p.required and p.name not in call.arguments:
            raise UnusableSample("a missing required argument", f"{tool.name}.{p.name}")
        if p.name in call.arguments and not _allows_value(p, call.arguments[p.name]):
            detail = f"{tool.name}.{p.name} = {json.dumps(call.arguments[p.name], ensure_ascii=False)[:80]}"
            raise UnusableSample(INVALID_VALUE, detail)
    if tool.rules is not None and tool.rules.violation(call.arguments) is not None:
        raise UnusableSample("arguments that may not be combined", f"{tool.name}: {tool.rules.keywords}")


def _allows_value(parameter: Parameter, value: Any) -> bool:
    if value is None and parameter.nullable:
        return True
    domain = parameter.domain
    return domain.contains(value) if isinstance(domain, ClosedDomain) else domain.validator.accepts(value)


def parse_shares(text: str) -> dict[int, float]:
    """Parse six numbers such as `18,20,18,17,15,12`, the shares of rows with 1 to 6 arguments, or seven numbers for 0
    to 6 arguments. `paper` means the shares of the SimpleTool paper. Raises UserError."""
    try:
        numbers = [float(part) for part in (PAPER if text == "paper" else text).split(",")]
    except ValueError:
        numbers = []
    is_valid = len(numbers) in (MAX_HEADS, MAX_HEADS + 1) and all(0 <= n < math.inf for n in numbers)
    if not is_valid or sum(numbers) <= 0:
        raise UserError(
            f"{text!r} is not a list of shares.",
            f"Write six numbers (1 to 6 arguments) or seven (0 to 6): {PAPER}.",
        )
    first = MAX_HEADS + 1 - len(numbers)
    return {first + n: number / sum(numbers) for n, number in enumerate(numbers)}


def balance_rows(rows: Sequence[Row], shares: Mapping[int, float], seed: int, tally: Tally) -> list[Row]:
    """Return rows in which each number of arguments has its share. Drop as few rows as possible, at random.

    More than six arguments count as six. Keep rows without a call, or without a share for their number of arguments.
    Raises UserError if a number of arguments with a share has no rows."""
    classes: dict[int, list[int]] = {count: [] for count, share in shares.items() if share}
    chosen = set(range(len(rows)))
    for index, row in enumerate(rows):
        if row.call is not None and (count := min(len(row.call.arguments), MAX_HEADS)) in shares:
            classes.setdefault(count, []).append(index)
            chosen.discard(index)
    if empty := [count for count, indices in classes.items() if not indices]:
        raise UserError(
            f"No row has a call of {empty[0]} arguments, whose share is {shares[empty[0]]:.0%}.",
            "Add such rows (rtcontrol data synthesise), or give other shares.",
        )
    total = min(len(indices) / shares[count] for count, indices in classes.items() if shares[count])
    rng = random.Random(seed)
    for count, indices in sorted(classes.items()):
        # Round down. The tiny addend keeps products that are integers except for a rounding error.
        chosen |= set(rng.sample(indices, min(len(indices), math.floor(total * shares[count] + 1e-9))))
    for index in sorted({*range(len(rows))} - chosen):
        tally.count_dropped(DroppedSample(OVER_SHARE, rows[index].id, "", rows[index].source))
        tally.rows[rows[index].source] -= 1
    return [row for index, row in enumerate(rows) if index in chosen]
