"""Create the training rows of `fit`: check given rows against the tools, and label situations by a function."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rtcontrol.agents import InvalidCall, Tools, remote_tool
from rtcontrol.agents.signatures import location_of
from rtcontrol.loop import errors
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import HISTORY_LIMIT
from rtcontrol.models.data.row import ROW_FORMAT, Row, parse_json_value
from rtcontrol.models.errors import UserError

MIN_ROWS = 50
SHOWN = 8  # an error message lists at most this number of invalid rows
READ = "Write the text that the model must read."
SITUATION = 120  # error messages show at most this number of characters of a situation
CheckedRows = tuple[Tools, list[Row]]


def tools_of(value: Any) -> Tools:
    """Return `Tools` for any value that `fit` accepts: Tools; a list of functions, pydantic models or definitions; or a
    dict of names and descriptions, as {"LEFT": "Go left."}, for tools without arguments. Raises UserError."""
    if isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values()):
        value = [remote_tool({"name": name, "description": text}) for name, text in value.items()]
    return value if isinstance(value, Tools) else Tools(value)


def check_rows(values: Iterable[tuple[str, Any]], tools: Tools | None, goal: str | None = None) -> CheckedRows:
    """Check rows, and return the tools and the rows. `values`: pairs of a place and a row, which is a JSON text, a dict
    or a tuple ([instruction,] observation, call). A call may be a tool's name. `goal`: the default instruction.

    Raises UserError with a list of the invalid rows.
    """
    rows: list[Row] = []
    wrong: list[str] = []
    count = 0
    for where, value in values:
        count += 1
        try:
            line = _parse_row(value, where)
            if tools is None:
                tools = _tools_in_row(line)
            rows.append(_check_row(line, tools, goal, where))
        except UserError as error:
            wrong.append(str(error))
    without = [row for row in rows if not row.observation]
    if len(without) < len(rows):  # if no row has an observation, they are for an interpreter
        wrong += [f"{row.where}: its observation is empty. {READ}" for row in without]
    if wrong:
        more = f"\n  and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        listed = "\n  ".join(wrong[:SHOWN])
        raise UserError(
            f"{len(wrong)} of {count} rows are not valid for training:\n  {listed}{more}\n",
            "Correct or remove these rows. Nothing was trained or written.",
        )
    if tools is None or len(rows) < MIN_ROWS:
        raise too_few_error(len(rows), "rows")
    return tools, rows


def too_few_error(count: int, kind: str) -> UserError:
    """Return a UserError that says that there are too few rows or situations."""
    return UserError(
        f"There are only {count} {kind}: too few for training and for a held-out part.",
        f"Use at least {MIN_ROWS}; a few thousand are a good start.",
    )


def _parse_row(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str | bytes):
        value = parse_json_value(value.encode(errors="surrogatepass") if isinstance(value, str) else value, where)
    elif isinstance(value, tuple | list) and len(value) in (2, 3):
        value = dict(zip(("instruction", "observation", "call")[-len(value) :], value, strict=True))
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: a {type(value).__name__} is not a row.", f"Write {ROW_FORMAT}.")
    return dict(value)


def _tools_in_row(line: Mapping[str, Any]) -> Tools:
    tools = line.get("tools")
    if not isinstance(tools, list) or not tools:
        raise UserError(
            "No tools: no --tools, and no field `tools` in the rows.", "Give --tools FILE.json (docs/training.md)."
        )
    return tools_of(tools)


def _check_row(line: dict[str, Any], tools: Tools, goal: str | None, where: str) -> Row:
    line.pop("tools", None)  # ignore the row's tools: its call is checked against the fitted tools
    row = Row.from_dict(line, where, tools.schemas, goal)
    if not all(map(is_text, (row.instruction, row.observation or row.instruction, *row.history))):
        raise UserError(f"{where}: a text is empty, or has half a character (a lone surrogate).", READ)
    for call in (row.call, *row.allowed):
        _check_call(call, tools, where)
    return replace(row, tools=(), history=row.history[-HISTORY_LIMIT:])


def _check_call(call: Call | None, tools: Tools, where: str) -> None:
    try:
        if call is not None:
            tools.validate(call)
    except InvalidCall as error:
        raise UserError(f"{where}: {error}.", "Correct the call, or the tool's definition.") from None


def contradiction_notice(rows: Sequence[Row]) -> str | None:
    """Return a notice for the user if rows have the same question but different calls, else None."""
    questions: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        questions[row.question].append(row)
    count = contradictory = right = 0
    example = ""
    for same in questions.values():
        calls = [{_call_text(call) for call in (row.call, *row.allowed)} for row in same]
        best, hits = Counter(itertools.chain(*calls)).most_common(1)[0]
        right += hits
        if hits < len(same):
            contradictory += 1
            count += len(same)
            other = next(row for row, texts in zip(same, calls, strict=True) if best not in texts)
            example = example or f"{other.where}: {_call_text(other.call)}, elsewhere {best}"
    if not contradictory:
        return None
    return (
        f"{count} rows contradict others: {contradictory} questions have different calls "
        f"({example}). No model can be right in more than {right / len(rows):.1%} of the rows; list further right "
        "calls of a row in `allowed`, or make the observations of different states different."
    )


def _call_text(call: Call | None) -> str:
    return "null" if call is None else call.text()


def label_situation(function: Callable[[str, str], Any], tools: Tools, instruction: str, observation: str) -> Row:
    """Call a labelling function for a situation, and return a row with its call. The function may return a `Call`, a
    dict, the name of a tool without parameters, or None to keep the active call. Raises UserError."""
    place = f'The teacher ({location_of(function)}), instruction "{instruction[:SITUATION]}", '
    place += f'seeing "{observation[:SITUATION]}"'
    try:
        call = function(instruction, observation)
    except Exception as error:
        line = errors.location(error) or location_of(function)
        raise UserError(f"{place}: the function failed: {errors.message(error)} ({line}).", "Correct it.") from error
    fields = {"instruction": instruction, "observation": observation, "call": call}
    row = Row.from_dict(fields, place, tools.schemas)
    _check_call(row.call, tools, place)
    return Row(instruction, observation, row.call)


def iterate_situations(source: Any, goal: str | None, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield (instruction, observation) pairs from an iterable, or endlessly from a function of a random.Random. If
    there is a default instruction `goal`, `source` may yield observations only. Raises UserError for other values."""
    if not callable(source):
        yield from (_parse_situation(value, goal, "") for value in source)
        return
    while True:
        try:
            value = source(rng)
        except Exception as error:
            message = f"The situations failed: {errors.message(error)} ({errors.location(error)})."
            raise UserError(message, "Correct it.") from error
        yield _parse_situation(value, goal, f"{location_of(source)}: ")


def _parse_situation(value: Any, goal: str | None, place: str) -> tuple[str, str]:
    if isinstance(value, str) and goal is not None:
        value = goal, value
    if isinstance(value, tuple | list) and len(value) == 2 and all(map(is_text, value)):
        return value[0], value[1]
    raise UserError(
        f"{place}A situation is {repr(value)[:SITUATION]}, which is not valid.",
        "Use (instruction, observation) with texts that are not empty, or observations and a goal for all.",
    )


def is_text(value: Any) -> bool:
    """Return whether a value is text for a tokenizer: not blank, and without lone surrogates."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= c <= "\udfff" for c in value)


Label = Callable[[str, str], Row]
Sample = Callable[[random.Random], Iterator[tuple[str, str]]]


def endless_rows(label: Label, sample: Sample, held: Iterable[Row], rng: random.Random) -> Iterator[Row]:
    """Yield rows for new situations endlessly, without the situations of `held`, the held-out rows."""
    held_out = {(row.instruction, row.observation) for row in held}
    yield from (label(*situation) for situation in sample(rng) if situation not in held_out)


def distinct_rows(label: Label, situations: Iterator[tuple[str, str]], count: int) -> list[Row]:
    """Return rows for at most `count` different situations."""
    rows: dict[tuple[str, str], Row] = {}
    for situation in itertools.islice(situations, 4 * count):
        if situation not in rows:
            rows[situation] = replace(label(*situation), where=f"situation {len(rows) + 1}")
        if len(rows) == count:
            break
    return list(rows.values())
