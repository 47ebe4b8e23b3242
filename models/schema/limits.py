"""Limit the size of tool definitions, so that hostile definitions cannot take much time or memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.errors import UserError, quoted_name

MAX_TOOLS = 128
MAX_CHARACTERS = 1 << 20  # total length of all names, descriptions and values
MAX_ENTRIES = 100_000  # total number of entries of all objects and lists
MAX_DEPTH = 256  # maximum nesting of objects and lists
MAX_PATTERNS = 512  # maximum number of regular expressions in all schemas
MAX_PATTERN_ATOMS = 50_000  # maximum number of characters and classes in all patterns, with repetitions expanded
MAX_COUNTED = 256  # larger counts of a repetition cost no more: its states only grow with the text
MAX_ALTERNATIVES = 1_000  # maximum number of alternatives (anyOf, oneOf) in all schemas, except constants
REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]?", re.DOTALL)


def check_size(tools: Any) -> None:
    """Raise UserError if tool definitions are too many, too large or nested too deeply. A value that is not a list is
    ignored here."""
    if not isinstance(tools, list | tuple):
        return
    check_count(len(tools))
    counts: dict[str, int] = dict.fromkeys(("characters", "entries", "patterns", "atoms", "alternatives"), 0)
    queue: list[tuple[Any, int, tuple[Any, ...]]] = [(tool, 0, (i,)) for i, tool in enumerate(tools)]
    while queue:
        part, level, path = queue.pop()
        if level > MAX_DEPTH:
            raise UserError(f"{_place_of(tools, path)}: its schema is nested too deeply.", "Use fewer levels.")
        if isinstance(part, Mapping):
            counts["characters"] += sum(len(key) for key in part if isinstance(key, str))
            _count_grammar(part, counts)
        elif isinstance(part, str):
            counts["characters"] += len(part)
        if not isinstance(part, Mapping | list | tuple):
            inside: Any = ()
        else:
            counts["entries"] += len(part)
            inside = part.items() if isinstance(part, Mapping) else enumerate(part)
        _check_counts(counts, tools, path)
        queue += [(value, level + 1, path if len(path) > 4 else (*path, key)) for key, value in inside]


def _count_grammar(part: Mapping[Any, Any], counts: dict[str, int]) -> None:
    """Add the patterns, their atoms, and the alternatives of a schema part to `counts`: grammars with many of them are
    slow to compile."""
    named = part.get("patternProperties")
    patterns = [part.get("pattern"), *(named if isinstance(named, Mapping) else ())]
    texts = [text for text in patterns if isinstance(text, str)]
    counts["patterns"] += len(texts)
    counts["atoms"] += sum(map(pattern_atoms, texts))
    for key in ("anyOf", "oneOf"):
        if isinstance(arms := part.get(key), list | tuple):
            counts["alternatives"] += sum(not (isinstance(arm, Mapping) and "const" in arm) for arm in arms)


def _check_counts(counts: Mapping[str, int], tools: Any, path: tuple[Any, ...]) -> None:
    limits = {
        "characters": MAX_CHARACTERS,
        "entries": MAX_ENTRIES,
        "patterns": MAX_PATTERNS,
        "atoms": MAX_PATTERN_ATOMS,
        "alternatives": MAX_ALTERNATIVES,
    }
    for name, limit in limits.items():
        if counts[name] > limit:
            unit = "characters in patterns, with repetitions expanded" if name == "atoms" else name
            problem = f"{_place_of(tools, path)}: together with the tools after it, it has more than {limit} {unit}."
            raise UserError(problem, "Give fewer or smaller tools, or simpler alternatives and patterns.")


def pattern_atoms(pattern: str) -> int:
    """Return how many characters and classes a pattern has, with counted repetitions such as `{3}` expanded."""
    sums = [0]  # number of atoms in each open group of the pattern
    last = i = 0  # `last` counts the atoms that a repetition at `i` would repeat
    while i < len(pattern) and sums[-1] <= MAX_PATTERN_ATOMS:
        char = pattern[i]
        repeat = REPEAT.match(pattern, i) if char == "{" else None
        if repeat is not None:
            times = min(max(_to_int(repeat[1]), _to_int(repeat[2] or ""), 1), MAX_COUNTED)
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
    return sum(sums)


def _to_int(digits: str) -> int:
    return int(digits or 0) if len(digits) < 9 else MAX_PATTERN_ATOMS + 1


def _place_of(tools: Any, path: tuple[Any, ...]) -> str:
    tool = tools[path[0]]
    body = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    name = body.get("name") if isinstance(body, Mapping) else None
    where = f"Tool {quoted_name(name)}" if name else f"Tool {path[0] + 1}"
    at = path.index("properties") + 1 if "properties" in path else len(path)
    return f"{where}, parameter {quoted_name(path[at])}" if at < len(path) else where


def check_count(count: int) -> None:
    """Raise UserError for more than MAX_TOOLS tools."""
    if count > MAX_TOOLS:
        raise UserError(f"There are {count} tools, more than {MAX_TOOLS}.", "Remove tools that are not needed here.")


@dataclass
class SchemaBudget:
    """What the schemas of a set of tools may still use: `parts` (subschemas after references are replaced by their
    targets), listed `values`, and `checks` (listed values times rules)."""

    parts: int = 10_000
    values: int = 1 << 17
    checks: int = 20_000

    def use(self, where: str, *, parts: int = 0, values: int = 0) -> None:
        """Subtract parts and values. Raises UserError, which names `where`, if too few remain."""
        self.parts -= parts
        self.values -= values
        if self.parts < 0:
            most = f"{SchemaBudget.parts} parts (references expanded)"
            raise UserError(f"{where}: its schema and those before it have more than {most}.", "Use smaller schemas.")
        if self.values < 0:
            problem = f"{where}: it and the parameters before it have more than {SchemaBudget.values} listed values."
            raise UserError(problem, "Use larger steps, narrower bounds or shorter lists.")

    def use_checks(self, checks: int) -> bool:
        """Subtract checks. Return False if too few remain, and values cannot be checked in advance."""
        if checks > self.checks:
            return False
        self.checks -= checks
        return True
