"""What a set of tools may take to read: counted before and while it is read, so that nobody's tools cost more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.errors import UserError

MAX_TOOLS = 128
MAX_LETTERS = 1 << 20  # of all names, descriptions and values
MAX_ENTRIES = 100_000  # of all maps and lists together
MAX_LEVELS = 256  # of maps and lists in each other
MAX_PATTERNS = 512  # regular expressions of all schemas together
MAX_PATTERN_ATOMS = 50_000  # of all patterns together, repetitions written out
MAX_ALTERNATIVES = 1_000  # of anyOf and oneOf that are not constants, of all schemas together
FEWER = "Give fewer or smaller tools."
REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]?", re.DOTALL)


def check_size(tools: Any) -> None:
    """UserError for definitions that are too many, too long, too many parts or nested too deeply to be read: takes no
    longer than it takes to walk over them once, and stops at the limit. What is no list of definitions passes."""
    if not isinstance(tools, list | tuple):
        return
    check_count(len(tools))
    letters = entries = 0
    grammar = GrammarSize()
    queue: list[tuple[Any, int, tuple[Any, ...]]] = [(tool, 0, (i,)) for i, tool in enumerate(tools)]
    while queue:
        part, level, path = queue.pop()
        if level > MAX_LEVELS:
            raise UserError(f"{_where(tools, path)}: its schema is nested too deeply.", "Describe a flatter value.")
        if isinstance(part, Mapping):
            letters += sum(len(key) for key in part if isinstance(key, str))
            grammar.add(part, tools, path)
            inside: Any = part.items()
        else:
            inside = enumerate(part) if isinstance(part, list | tuple) else ()
            letters += len(part) if isinstance(part, str) else 0
        entries += len(part) if isinstance(part, Mapping | list | tuple) else 0
        if letters > MAX_LETTERS or entries > MAX_ENTRIES:
            many = f"{MAX_LETTERS} characters" if letters > MAX_LETTERS else f"{MAX_ENTRIES} entries"
            raise UserError(f"{_where(tools, path)}: with the tools behind it, it has more than {many}.", FEWER)
        queue += [(value, level + 1, path if len(path) > 4 else (*path, key)) for key, value in inside]


class GrammarSize:
    """Count what makes a grammar slow to compile: patterns, their atoms, and alternatives."""

    def __init__(self) -> None:
        self.patterns = self.atoms = self.alternatives = 0

    def add(self, part: Mapping[Any, Any], tools: Any, path: tuple[Any, ...]) -> None:
        """Add one map of a schema. Raises UserError beyond a limit."""
        named = part.get("patternProperties")
        patterns = [part.get("pattern"), *(named if isinstance(named, Mapping) else ())]
        texts = [text for text in patterns if isinstance(text, str)]
        self.patterns += len(texts)
        self.atoms += sum(map(pattern_atoms, texts))
        for key in ("anyOf", "oneOf"):
            options = part.get(key)
            if isinstance(options, list | tuple):
                self.alternatives += sum(not (isinstance(one, Mapping) and "const" in one) for one in options)
        for count, limit, what in (
            (self.patterns, MAX_PATTERNS, "patterns"),
            (self.atoms, MAX_PATTERN_ATOMS, "characters in patterns, repetitions written out"),
            (self.alternatives, MAX_ALTERNATIVES, "alternatives"),
        ):
            if count > limit:
                told = f"{_where(tools, path)}: with the tools behind it, it has more than {limit} {what}."
                raise UserError(told, "Write fewer or simpler alternatives and patterns.")


def pattern_atoms(pattern: str) -> int:
    """Return how many characters and classes a pattern has when its counted repetitions are written out."""
    sums = [0]  # of each open group
    last = i = 0  # `last`: atoms of what a repetition would repeat
    while i < len(pattern):
        char = pattern[i]
        repeat = REPEAT.match(pattern, i) if char == "{" else None
        if repeat is not None:
            times = max(_count(repeat[1]), _count(repeat[2] or ""), 1)
            sums[-1] += last * (times - 1)
            last *= times
            i = repeat.end()
            continue
        if char == "(":
            sums.append(0)
        elif char == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif char not in "*+?|^$)":
            last = 1
            sums[-1] += 1
        group = CLASS.match(pattern, i)
        i = group.end() if group is not None else i + 1 + (char == "\\")
        if sums[-1] > MAX_PATTERN_ATOMS:
            break
    return sum(sums)


def _count(digits: str) -> int:
    return int(digits or 0) if len(digits) < 9 else MAX_PATTERN_ATOMS + 1


def _where(tools: Any, path: tuple[Any, ...]) -> str:
    tool = tools[path[0]]
    body = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    name = body.get("name") if isinstance(body, Mapping) else None
    where = f"Tool {str(name)[:64]}" if name else f"Tool {path[0] + 1}"
    at = path.index("properties") + 1 if "properties" in path else len(path)
    return f"{where}, parameter {str(path[at])[:64]}" if at < len(path) else where


def check_count(count: int) -> None:
    """UserError for more than MAX_TOOLS tools."""
    if count > MAX_TOOLS:
        raise UserError(f"{count} tools, and {MAX_TOOLS} are taken.", "Leave out those that are not needed here.")


@dataclass
class Room:
    """What is left for a set of tools that is being read: `parts` of its schemas, references written out; `values` that
    are listed; `checks` of listed values by parts of the rules that they stand under."""

    parts: int = 10_000
    values: int = 1 << 17
    checks: int = 20_000

    def take(self, where: str, *, parts: int = 0, values: int = 0) -> None:
        """Raises UserError where there is less."""
        self.parts, self.values = self.parts - parts, self.values - values
        if self.parts < 0:
            told = (
                f"{where}: its schema, and those before it, have more than {Room.parts} parts, references written out."
            )
            raise UserError(told, "Describe smaller values.")
        if self.values < 0:
            told = f"{where}: it, and those before it, list more than {Room.values} values."
            raise UserError(told, "Write coarser steps, nearer bounds or shorter lists.")

    def checked(self, checks: int) -> bool:
        """Take so many checks, False where there are fewer left: then the values are judged one by one, later."""
        if checks > self.checks:
            return False
        self.checks -= checks
        return True
