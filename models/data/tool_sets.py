"""Sets of tools that a file of rows stores once: a line {"tool_set": HASH, "tools": [...]}, and rows that name it.

Design, section 9: a row's `tools` are schemas, or the hash of a set stored once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rtcontrol.models.errors import UserError

Definitions = tuple[Mapping[str, Any], ...]
NAME = re.compile(r"[0-9a-f]{16,64}")
WRITTEN = 32  # digits of a name
FORM = '{"tool_set": HASH, "tools": [...]}'


def set_hash(tools: Sequence[Mapping[str, Any]]) -> str:
    """The sha256 of definitions in their order, as JSON without spaces or characters beyond ASCII."""
    return hashlib.sha256(json.dumps([dict(tool) for tool in tools], separators=(",", ":")).encode()).hexdigest()


class StoredToolSets:
    """Those that the lines of one file gave so far. Rows of a set share its definitions."""

    def __init__(self) -> None:
        self._found: dict[str, Definitions] = {}

    def take(self, value: Any, where: str) -> bool:
        """Whether a line's value is a set, and no row; a set is kept. Raises UserError naming `where` (FILE:LINE) for
        one that is no set of tools, or has others than its hash says."""
        if not isinstance(value, Mapping) or "tool_set" not in value or "instruction" in value:
            return False
        name = value["tool_set"]
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UserError(
                f"{where}: tool_set is {short(name)}.",
                "It must be the sha256 of its tools in hexadecimal digits, the first 16 of them or more.",
            )
        if not isinstance(tools := value.get("tools"), list):
            raise UserError(f"{where}: tools is {short(tools)}.", f"Write {FORM}.")
        found = definitions(tools, where)
        if not (own := set_hash(found)).startswith(name):
            raise UserError(
                f"{where}: the tools of the set {name} have the hash {own[: len(name)]}: they are others.",
                "Restore them, or write their hash there and in the set's rows.",
            )
        self._found.setdefault(name, found)
        return True

    def of(self, name: str, where: str) -> Definitions:
        """The set that a row names. Raises UserError naming `where` (FILE:LINE)."""
        if name not in self._found:
            raise UserError(f"{where}: no line before it gives the tool set {name}.", f"Write one: {FORM}.")
        return self._found[name]


class SetWriter:
    """Writes rows with each set of tools once, before the first row of it."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def lines(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Of a row as `DataRow.to_dict` gives it."""
        name = set_hash(row["tools"])[:WRITTEN]
        head = [] if name in self._written else [{"tool_set": name, "tools": row["tools"]}]
        self._written.add(name)
        return [*head, {**row, "tools": name}]


def definitions(tools: Sequence[Any], where: str) -> Definitions:
    """OpenAI-style definitions, each with a name. Raises UserError naming `where` (FILE:LINE)."""
    for tool in tools:
        body = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(body, Mapping) or not isinstance(body.get("name"), str) or not body["name"]:
            raise UserError(
                f"{where}: {short(tool)} is no tool.", "Write OpenAI-style function definitions, with names."
            )
    return tuple(dict(tool) for tool in tools)


def short(value: Any) -> str:
    """A value as an error shows it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text[:77] + "..." if len(text) > 80 else text) if isinstance(value, str) else text[:80]
