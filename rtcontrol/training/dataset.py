"""Rows as somebody has them, read and checked against the tools; and those that are kept apart."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtcontrol.agents import InvalidCall, Tools, remote_tool
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import HISTORY_LIMIT
from rtcontrol.models.checkpoint.tool_comparison import comparable
from rtcontrol.models.data.row import raw_lines
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.intervals import wilson
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.rows import Row
from rtcontrol.telemetry.record_reader import read_record, record_in, rows
from rtcontrol.training.model_size import Learner

LEAST_ROWS = 50
HEAVIEST = 1e6  # weight of a row
SHOWN = 8  # wrong rows that an error lists
EXAMPLE = '{"instruction": "...", "observation": "...", "call": {"name": "...", "arguments": {...}}}'
READ = "Write the text that the model is to read."
Question = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True)
class Taught:
    """One row with what only checks and scores need: other calls that are right, and where it stands."""

    row: Row
    allowed: tuple[Call, ...] = ()
    where: str = ""

    @property
    def question(self) -> Question:
        """What the model is asked: rows with the same question are the same state."""
        return (self.row.instruction, self.row.observation, self.row.history)


class Wrong(ValueError):
    """What is the matter with one row; the message ends with what to do."""


def tools_of(given: Any) -> Tools:
    """Tools as `fit` takes them: Tools, a list of functions, pydantic models or definitions, or names with
    descriptions, as {"LEFT": "Go left."}, of actions that take nothing. Raises UserError."""
    if isinstance(given, Tools):
        return given
    if isinstance(given, Mapping) and given and all(isinstance(v, str) for v in given.values()) and "name" not in given:
        return Tools([remote_tool({"name": name, "description": told}) for name, told in given.items()])
    if isinstance(given, Mapping | str) or not isinstance(given, Sequence):
        raise UserError(
            f"{str(given)[:80]!r} is no list of tools.",
            'Give a list of functions, pydantic models or definitions, or descriptions by name: {"LEFT": "Go left."}.',
        )
    return Tools(given)


def read_files(files: Sequence[Path], tools: Tools | None, goal: str | None) -> tuple[Tools, list[Taught]]:
    """All rows of JSONL files; `tools` None: those that the rows name. Raises UserError naming each wrong row's file
    and line."""
    return check(((f"{path}:{n}", given) for path in files for n, given in _lines(path)), tools, goal)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        for number, raw in raw_lines(path):
            yield number, raw.decode()
    except UnicodeError:
        what = f"{path} cannot be read (it is no UTF-8 text)."
        raise UserError(what, f"Give a file of rows, one a line: {EXAMPLE}.") from None


def check(given: Iterable[tuple[str, Any]], tools: Tools | None, goal: str | None = None) -> tuple[Tools, list[Taught]]:
    """Rows (with where each stands) as JSON text, as dicts, or as (observation, call) or (instruction, observation,
    call); a call may be a tool's name. A row without an instruction has the `goal`.

    Raises UserError that lists what is wrong, row by row, and what to do.
    """
    rows: list[Taught] = []
    wrong: list[str] = []
    count = 0
    for where, value in given:
        count += 1
        try:
            row = _parsed(value)
            if tools is None:
                tools = _named(row)
            rows.append(_checked(row, tools, goal, where))
        except Wrong as error:
            wrong.append(f"{where}: {error}")
    blind = [one for one in rows if not one.row.observation]
    if len(blind) < len(rows):  # where all are, the words alone decide: an interpreter's rows
        wrong += [f"{one.where}: its observation is empty. {READ}" for one in blind]
    if wrong:
        more = f"\n  and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        told = "\n  ".join(wrong[:SHOWN])
        raise UserError(
            f"{len(wrong)} of {count} rows cannot be learnt from:\n  {told}{more}\n",
            "Correct these rows or take them out; nothing was trained or written.",
        )
    if tools is None or len(rows) < LEAST_ROWS:
        raise UserError(
            f"There are {len(rows)} rows: too few to learn from and to hold some out.",
            f"Give at least {LEAST_ROWS}; a few thousand are a good start.",
        )
    return tools, rows


def _parsed(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise Wrong(f"no JSON ({error}). Write one object a line: {EXAMPLE}.") from None
    if isinstance(value, tuple | list) and len(value) in (2, 3):
        told, (seen, call) = value[:-2], value[-2:]
        value = {"observation": seen, "call": call} | ({"instruction": told[0]} if told else {})
    if isinstance(value, Row):
        value = asdict(value) | {"call": value.call, "history": list(value.history)}
    if not isinstance(value, Mapping):
        raise Wrong(f"a {type(value).__name__}, no row. Write {EXAMPLE}.")
    return value


def _named(row: Mapping[str, Any]) -> Tools:
    if not isinstance(given := row.get("tools"), list) or not given:
        raise UserError(
            "No tools: there is no --tools, and the rows have no field `tools`.",
            "Give --tools FILE.json (docs/fit.md).",
        )
    return tools_of(given)


def _checked(row: Mapping[str, Any], tools: Tools, goal: str | None, where: str) -> Taught:
    told = {name: row.get(name) for name in ("instruction", "observation")}
    if told["instruction"] is None:
        told["instruction"] = goal
        if goal is None:
            raise Wrong("no instruction. Write it in the row, or give one for all with --goal TEXT.")
    for name, text in told.items():
        if text == "" and name == "observation":
            continue  # of all rows, or of none: `check`
        if not isinstance(text, str) or not text.strip():
            found = "missing" if text is None else "empty" if isinstance(text, str) else f"a {type(text).__name__}"
            raise Wrong(f"its {name} is {found}. {READ}")
        _whole(name, text)
    if "call" not in row:
        raise Wrong("no call. Write the right call, or null where the call in force is to stay.")
    if (own := row.get("tools")) and not (isinstance(own, list) and _same_tools(own, tools)):
        raise Wrong("its tools are not those that are fitted. Fit rows of one set of tools at a time.")
    weight = row.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= HEAVIEST:
        raise Wrong(f"its weight is {weight!r:.20}. Write a number above 0, {HEAVIEST:g} at most, or leave it out.")
    history, allowed = row.get("history") or [], row.get("allowed") or []
    if not isinstance(history, list | tuple) or not isinstance(allowed, list | tuple):
        raise Wrong("its history or allowed is no list. Write lists of calls.")
    shown = tuple(h if isinstance(h, str) else (c.text() if (c := as_call(h, tools)) else "") for h in history)
    for text in shown:
        _whole("history", text)
    call = as_call(row["call"], tools)
    made = Row(str(told["instruction"]), str(told["observation"]), call, shown[-HISTORY_LIMIT:], weight=float(weight))
    return Taught(made, tuple(c for a in allowed if (c := as_call(a, tools)) is not None), where)


def _whole(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Wrong(f"its {name} holds half a character ({text!r:.40}). Write it as UTF-8 text.") from None


def as_call(given: Any, tools: Tools) -> Call | None:
    """A call as people write it: a `Call`, a dict, a tool's name, None. Raises Wrong for one that the tools refuse."""
    if given is None or isinstance(given, Call):
        call = given
    elif isinstance(given, str):
        call = Call(given)
    elif isinstance(given, Mapping) and isinstance(given.get("name"), str):
        arguments = given.get("arguments", {})
        if not isinstance(arguments, Mapping):
            raise Wrong(f"the arguments of its call are a {type(arguments).__name__}. Write an object by name.")
        call = Call(given["name"], dict(arguments))
    else:
        raise Wrong(f'{json.dumps(given, default=repr)[:60]} is no call. Write {{"name": ..., "arguments": ...}}.')
    if call is not None:
        try:
            tools.validate(call)
        except InvalidCall as error:
            raise Wrong(f"{error}. Correct the call, or the tool's definition.") from None
    return call


def _same_tools(own: Any, tools: Tools) -> bool:
    try:
        text = json.dumps(own)
    except TypeError:  # functions and classes, of rows given in Python
        return _alike(Tools(own), tools)
    try:
        return _same_text(text, tools)
    except UserError:
        return False


@lru_cache(maxsize=64)
def _same_text(own: str, tools: Tools) -> bool:
    """Rows repeat their tools: each text of them is read once."""
    return _alike(Tools(json.loads(own)), tools)


def _alike(own: Tools, tools: Tools) -> bool:
    return [*map(comparable, own.openai())] == [*map(comparable, tools.openai())]


@dataclass(frozen=True)
class Contradictions:
    """Rows that answer the same question differently: `rows` of them, over `questions`; whoever answers each question
    with its commonest call is right in the share `ceiling` of all rows."""

    rows: int
    questions: int
    ceiling: float
    example: str

    def message(self) -> str | None:
        """One sentence for people, None where there are none."""
        if not self.questions:
            return None
        return (
            f"{self.rows} rows contradict others: {self.questions} questions have two or more different calls "
            f"({self.example}). No model can be right in more than {self.ceiling:.1%} of the rows; name calls that are "
            "right too in `allowed`, or tell the states apart in the observation."
        )


def contradictions(rows: Sequence[Taught]) -> Contradictions:
    """Count rows whose question stands there with another call, too."""
    asked: dict[Question, list[Taught]] = defaultdict(list)
    for one in rows:
        asked[one.question].append(one)
    count = questions = right = 0
    example = ""
    for same in asked.values():
        votes: Counter[str] = Counter()
        for one in same:
            votes.update({_text(one.row.call), *map(_text, one.allowed)})
        best, hits = votes.most_common(1)[0]
        right += hits
        if hits < len(same):
            questions += 1
            count += len(same)
            if not example:
                first = next(one for one in same if _text(one.row.call) == best or best in map(_text, one.allowed))
                other = next(o for o in same if best not in (_text(o.row.call), *map(_text, o.allowed)))
                example = f"{first.where}: {_text(first.row.call)}; {other.where}: {_text(other.row.call)}"
    return Contradictions(count, questions, right / max(len(rows), 1), example)


def _text(call: Call | None) -> str:
    return "null" if call is None else call.text()


def recorded(runs: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of runs' folders or records (`telemetry.record_reader`), each with where it stands. Raises UserError for
    a run without one, and for what is no record."""
    for run in runs:
        record, count = record_in(Path(run)), 0
        try:
            for count, row in enumerate(rows(read_record(record)), start=1):
                yield f"{record}, row {count}", row
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"{record} is no record of a run ({why}).", "Give a run's folder.") from error
        if not count:
            what = f"{record} has no observations with a call: no row."
            raise UserError(what, "Record with --record-observations yes, the default.")


SHARE = 0.1


MOST = 1_000


SAMPLE = 256  # of an evaluation on the way


Answer = Call | None | DecodeError


def split(rows: Sequence[Taught]) -> tuple[list[Taught], list[Taught]]:
    """(to learn from, to hold out): about a tenth of the different questions, whatever order they stand in. Rows that
    ask the same are on the same side, so what is held out was never seen. Raises UserError where all do."""
    order = sorted({one.question for one in rows}, key=lambda q: hashlib.sha256(repr(q).encode()).digest())
    if len(order) < 2:
        raise UserError(
            f"All {len(rows)} rows ask the same: there is nothing to tell apart, and nothing to hold out.",
            "Give rows that see or are told something else.",
        )
    held = set(order[: min(MOST, max(1, round(SHARE * len(order))))])
    sides: tuple[list[Taught], list[Taught]] = ([], [])
    for one in rows:
        sides[one.question in held].append(one)
    learnt, out = sides
    # The first of these are looked at while it trains: rows often stand by instruction, or by run.
    random.Random(0).shuffle(out)
    return learnt, out[:MOST]


@dataclass(frozen=True)
class Share:
    """So many of so many right."""

    right: int
    count: int

    @property
    def value(self) -> float:
        return self.right / max(self.count, 1)

    def message(self) -> str:
        """For people, with its Wilson interval at 95 %."""
        low, high = wilson(self.right, self.count)
        return f"{self.right} of {self.count} right ({self.value:.1%}, Wilson 95 % {low:.1%} to {high:.1%})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"right": self.right, "count": self.count, "wilson_95": [round(x, 4) for x in wilson(*self.pair)]}

    @property
    def pair(self) -> tuple[int, int]:
        return self.right, self.count


class HeldOut:
    """Asks the model in training."""

    def __init__(self, learner: Learner, rows: Sequence[Taught]) -> None:
        self.rows, self._plan = rows, learner.encoder.plan
        self.decide = TreeDecider(learner.model, learner.encoder)

    def answers(self, rows: Iterable[Row]) -> list[Answer]:
        """The model's call for each."""
        return self.decide(list(rows))

    def key(self, call: Answer) -> tuple[str | None, ...]:
        """Alike for calls that the heads write alike (1 and 1.0 of a number)."""
        if isinstance(call, DecodeError):
            return ("", "no call")
        return tuple(text for _, text in self._plan.head_values(call))

    def right(self, answer: Answer, row: Taught) -> bool:
        """Whether it is the row's call, or one of those that are right too."""
        return self.key(answer) in {self.key(row.row.call), *map(self.key, row.allowed)}
