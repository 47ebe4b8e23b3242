"""Rows as somebody has them, read and checked against the tools, or from a function that knows what is right."""

from __future__ import annotations

import inspect
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtcontrol.agents import InvalidCall, Tools, remote_tool
from rtcontrol.agents.signatures import defined
from rtcontrol.loop import errors
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import HISTORY_LIMIT
from rtcontrol.models.checkpoint.training_metadata import comparable
from rtcontrol.models.data.row import raw_lines
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.rows import Row

LEAST_ROWS = 50
HEAVIEST = 1e6  # weight of a row
SHOWN = 8  # wrong rows that an error lists
EXAMPLE = '{"instruction": "...", "observation": "...", "call": {"name": "...", "arguments": {...}}}'
READ = "Write the text that the model is to read."


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


def read_files(files: Sequence[Path], tools: Tools | None, goal: str | None) -> tuple[Tools, list[Row]]:
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


def check(given: Iterable[tuple[str, Any]], tools: Tools | None, goal: str | None = None) -> tuple[Tools, list[Row]]:
    """Rows (with where each stands) as JSON text, as dicts, or as (observation, call) or (instruction, observation,
    call); a call may be a tool's name. A row without an instruction has the `goal`.

    Raises UserError that lists what is wrong, row by row, and what to do.
    """
    rows: list[Row] = []
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
    blind = [one for one in rows if not one.observation]
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


def _checked(row: Mapping[str, Any], tools: Tools, goal: str | None, where: str) -> Row:
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
    if (own := row.get("tools")) and not (isinstance(own, list) and _same_tools(json.dumps(own), tools)):
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
    others = tuple(c for a in allowed if (c := as_call(a, tools)) is not None)
    texts = str(told["instruction"]), str(told["observation"])
    return Row(*texts, call, shown[-HISTORY_LIMIT:], weight=float(weight), allowed=others, where=where)


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


@lru_cache(maxsize=64)
def _same_tools(own: str, tools: Tools) -> bool:
    """Rows repeat their tools: each text of them is read once."""
    try:
        given = Tools(json.loads(own))
    except UserError:
        return False
    return [*map(comparable, given.openai())] == [*map(comparable, tools.openai())]


def contradictions(rows: Sequence[Row]) -> tuple[float, str | None]:
    """Find rows whose question stands there with another call, too: the share of all rows that whoever answers each
    question with its commonest call gets right, and one sentence for people, None where there are none."""
    asked: dict[Any, list[Row]] = defaultdict(list)
    for one in rows:
        asked[one.question].append(one)
    count = questions = right = 0
    example = ""
    for same in asked.values():
        calls = [{_text(call) for call in (one.call, *one.allowed)} for one in same]
        best, hits = Counter(itertools.chain(*calls)).most_common(1)[0]
        right += hits
        if hits < len(same):
            questions, count = questions + 1, count + len(same)
            other = next(one for one, texts in zip(same, calls, strict=True) if best not in texts)
            example = example or f"{other.where}: {_text(other.call)}, elsewhere {best}"
    ceiling = right / max(len(rows), 1)
    if not questions:
        return ceiling, None
    return ceiling, (
        f"{count} rows contradict others: {questions} questions have two or more different calls "
        f"({example}). No model can be right in more than {ceiling:.1%} of the rows; name calls that are "
        "right too in `allowed`, or tell the states apart in the observation."
    )


def _text(call: Call | None) -> str:
    return "null" if call is None else call.text()


SITUATION = 120  # characters of a situation in an error
MOST_HELD = 10_000
TRIES = 50  # situations that were seen before, one after the other, until there are taken to be no more


class Teacher:
    """A function (instruction, observation) -> call, or (observation) -> call, as a scripted expert. A call is a
    `Call`, a dict, the name of a tool without parameters, or None: leave the call in force."""

    def __init__(self, function: Callable[..., Any], tools: Tools) -> None:
        if not callable(function):
            raise UserError(f"The teacher is a {type(function).__name__}.", "Give a function of what is told and seen.")
        self._function, self._tools = function, tools
        try:
            needed = [
                p
                for p in inspect.signature(function).parameters.values()
                if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
            ]
        except (TypeError, ValueError):  # a function in C that does not tell
            needed = [None, None]  # type: ignore[list-item]
        if len(needed) not in (1, 2):
            remedy = "Write `def teacher(instruction, observation)`, or `def teacher(observation)`."
            raise UserError(f"{self.place}: the teacher takes {len(needed)} arguments.", remedy)
        self._alone = len(needed) == 1

    @property
    def place(self) -> str:
        """Where the function begins, as people look for it."""
        code = getattr(inspect.unwrap(self._function), "__code__", None)
        return "the teacher" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"

    def __call__(self, instruction: str, observation: str) -> Call | None:
        """What is right. Raises UserError where the function fails, or answers what the tools do not allow."""
        told = f'told "{instruction[:SITUATION]}", shown "{observation[:SITUATION]}"'
        try:
            answer = self._ask(instruction, observation)
        except Exception as error:
            raise UserError(
                f"The teacher failed, {told}: {errors.text(error)} ({errors.where(error) or self.place}).",
                "Correct it.",
            ) from error
        try:
            return as_call(answer, self._tools)
        except Wrong as error:
            raise UserError(f"The teacher ({self.place}) answered nonsense, {told}: {error}", "") from None

    def _ask(self, instruction: str, observation: str) -> Any:
        return self._function(*((observation,) if self._alone else (instruction, observation)))


class Situations:
    """What may be told and seen: a function of a random.Random that gives one, or any iterable of them. One is
    (instruction, observation), or an observation where there is a `goal`."""

    def __init__(self, given: Callable[[random.Random], Any] | Iterable[Any], goal: str | None) -> None:
        if isinstance(given, str) or not (callable(given) or isinstance(given, Iterable)):
            remedy = "Give a list, or a function of a random.Random that makes one."
            raise UserError(f"The situations are a {type(given).__name__}.", remedy)
        self._given, self._goal = given, goal

    @property
    def endless(self) -> bool:
        """Whether new ones are made when they are asked for."""
        return callable(self._given)

    def draw(self, rng: random.Random) -> Iterator[tuple[str, str]]:
        """(instruction, observation) one after the other. Raises UserError for what is none."""
        if not callable(self._given):
            yield from map(self._read, self._given)
            return
        while True:
            try:
                one = self._given(rng)
            except Exception as error:
                raise UserError(
                    f"The situations failed: {errors.text(error)} ({errors.where(error)}).", "Correct it."
                ) from error
            yield self._read(one)

    def _read(self, one: Any) -> tuple[str, str]:
        if isinstance(one, str) and self._goal is not None:
            one = self._goal, one
        if isinstance(one, tuple | list) and len(one) == 2 and all(is_text(part) for part in one):
            return one[0], one[1]
        place = f"{defined(self._given)}: " if callable(self._given) else ""
        raise UserError(
            f"{place}A situation is {repr(one)[:SITUATION]}.",
            "Give (instruction, observation), both text and not empty; or the observation, and a goal for all.",
        )


def is_text(given: Any) -> bool:
    """Words that a tokenizer takes: some, and no half characters."""
    return isinstance(given, str) and bool(given.strip()) and not any("\ud800" <= c <= "\udfff" for c in given)


class TeacherRows:
    """Fresh rows for ever, none of which asks what is held out."""

    def __init__(self, teacher: Teacher, situations: Situations, held: Iterable[Row]) -> None:
        self._teacher, self._situations = teacher, situations
        self._held = {(one.instruction, one.observation) for one in held}

    def rows(self, rng: random.Random) -> Iterator[Row]:
        """What may be told and seen, and what is right."""
        again = 0  # so many held-out ones in a row
        for told, seen in self._situations.draw(rng):
            again = again + 1 if (told, seen) in self._held else 0
            if again > MOST_HELD:
                raise UserError(
                    f"The situations ask only what is held out, {MOST_HELD:,} times now: nothing new comes.",
                    "Give a list of them, or a function that goes on drawing by its random.Random.",
                )
            if not again:
                yield Row(told, seen, self._teacher(told, seen))


def examples(teacher: Teacher, situations: Situations, count: int, rng: random.Random) -> list[Row]:
    """At most so many different situations with what is right."""
    found: dict[tuple[str, str], Row] = {}
    again = 0
    for told, seen in itertools.islice(situations.draw(rng), 20 * count):
        again = again + 1 if (told, seen) in found else 0
        if not again:
            found[told, seen] = Row(told, seen, teacher(told, seen), where=f"situation {len(found) + 1}")
        if len(found) >= count or (situations.endless and again > TRIES * (1 + len(found) // 20)):
            break
    return list(found.values())
