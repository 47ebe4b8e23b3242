"""Limits for reading a set of tools, checked before and during reading."""

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
REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]?", re.DOTALL)


def check_size(tools: Any) -> None:
    """Raise UserError for definitions that are too many, too long, too large or nested too deeply to be read.

    It walks over them once and stops at the first limit. Anything but a list of definitions passes.
    """
    if not isinstance(tools, list | tuple):
        return
    check_count(len(tools))
    counts: dict[str, int] = dict.fromkeys(("characters", "entries", "patterns", "atoms", "alternatives"), 0)
    queue: list[tuple[Any, int, tuple[Any, ...]]] = [(tool, 0, (i,)) for i, tool in enumerate(tools)]
    while queue:
        part, level, path = queue.pop()
        if level > MAX_LEVELS:
            raise UserError(f"{_where(tools, path)}: its schema is nested too deeply.", "Describe a flatter value.")
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
    """Count what makes a grammar slow to compile: patterns, their atoms, and alternatives."""
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
        "characters": MAX_LETTERS,
        "entries": MAX_ENTRIES,
        "patterns": MAX_PATTERNS,
        "atoms": MAX_PATTERN_ATOMS,
        "alternatives": MAX_ALTERNATIVES,
    }
    for name, limit in limits.items():
        if counts[name] > limit:
            shown = "characters in patterns, repetitions written out" if name == "atoms" else name
            problem = f"{_where(tools, path)}: with the tools behind it, it has more than {limit} {shown}."
            raise UserError(problem, "Give fewer or smaller tools, simpler alternatives and patterns.")


def pattern_atoms(pattern: str) -> int:
    """Return how many characters and classes a pattern has when its counted repetitions are written out."""
    sums = [0]  # of each open group
    last = i = 0  # `last`: atoms of what a repetition would repeat
    while i < len(pattern) and sums[-1] <= MAX_PATTERN_ATOMS:
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
    """Raise UserError for more than MAX_TOOLS tools."""
    if count > MAX_TOOLS:
        raise UserError(f"{count} tools, and {MAX_TOOLS} are taken.", "Leave out those that are not needed here.")


@dataclass
class Room:
    """The remaining allowance for a set of tools: `parts` of its schemas with references written out; `values` that are
    listed; `checks` of listed values by parts of their rules."""

    parts: int = 10_000
    values: int = 1 << 17
    checks: int = 20_000

    def take(self, where: str, *, parts: int = 0, values: int = 0) -> None:
        """Use up parts and values. Raises UserError where too few are left."""
        self.parts -= parts
        self.values -= values
        if self.parts < 0:
            problem = (
                f"{where}: its schema, and those before it, have more than {Room.parts} parts, references written out."
            )
            raise UserError(problem, "Describe smaller values.")
        if self.values < 0:
            problem = f"{where}: it, and those before it, list more than {Room.values} values."
            raise UserError(problem, "Write coarser steps, nearer bounds or shorter lists.")

    def checked(self, checks: int) -> bool:
        """Use up checks; return False where too few are left, so that values are checked one by one later."""
        if checks > self.checks:
            return False
        self.checks -= checks
        return True
