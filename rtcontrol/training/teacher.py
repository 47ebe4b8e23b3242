"""Rows from a function of the user's that knows what is right; its mistakes are told with its file and line."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rtcontrol.agents import Tools
from rtcontrol.agents.signatures import defined
from rtcontrol.loop.errors import text, where
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.rows import Row
from rtcontrol.training.dataset import Taught, Wrong, as_call

SHOWN = 120  # characters of a situation in an error
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
        told = f'told "{instruction[:SHOWN]}", shown "{observation[:SHOWN]}"'
        try:
            answer = self._ask(instruction, observation)
        except Exception as error:
            raise UserError(
                f"The teacher failed, {told}: {text(error)} ({where(error) or self.place}).", "Correct it."
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
                raise UserError(f"The situations failed: {text(error)} ({where(error)}).", "Correct it.") from error
            yield self._read(one)

    def _read(self, one: Any) -> tuple[str, str]:
        if isinstance(one, str) and self._goal is not None:
            one = self._goal, one
        if isinstance(one, tuple | list) and len(one) == 2 and all(is_text(part) for part in one):
            return one[0], one[1]
        place = f"{defined(self._given)}: " if callable(self._given) else ""
        raise UserError(
            f"{place}A situation is {repr(one)[:SHOWN]}.",
            "Give (instruction, observation), both text and not empty; or the observation, and a goal for all.",
        )


def is_text(given: Any) -> bool:
    """Words that a tokenizer takes: some, and no half characters."""
    return isinstance(given, str) and bool(given.strip()) and not any("\ud800" <= c <= "\udfff" for c in given)


class TeacherRows:
    """Fresh rows for ever, none of which asks what is held out."""

    def __init__(self, teacher: Teacher, situations: Situations, held: Iterable[Taught]) -> None:
        self._teacher, self._situations = teacher, situations
        self._held = {(one.row.instruction, one.row.observation) for one in held}

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


def examples(teacher: Teacher, situations: Situations, count: int, rng: random.Random) -> list[Taught]:
    """At most so many different situations with what is right."""
    found: dict[tuple[str, str], Taught] = {}
    again = 0
    for told, seen in itertools.islice(situations.draw(rng), 20 * count):
        again = again + 1 if (told, seen) in found else 0
        if not again:
            found[told, seen] = Taught(Row(told, seen, teacher(told, seen)), (), f"situation {len(found) + 1}")
        if len(found) >= count or (situations.endless and again > TRIES * (1 + len(found) // 20)):
            break
    return list(found.values())
