"""Text of others, as it may stand in a line for people: on a terminal, in a log, in a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unicodedata import category

# Control, format (among them what turns the direction of text), lone surrogates, separators of lines and paragraphs.
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
# The tab, and what joins letters and emojis, or keeps them apart.
KEPT = "\t\u200c\u200d"


def printable(text: str, limit: int | None = None) -> str:
    """`text` in one line, in which nothing moves a cursor, colours, or turns the direction: such characters stand
    escaped, ESC as `\\x1b`. Of a longer one the first `limit` characters, with their number."""
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(c if c in KEPT or category(c) not in HIDDEN else c.encode("unicode_escape").decode() for c in text)


def throughout(value: Any) -> Any:
    """`value` with every text in it, and in its lists and mappings, as `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {throughout(key): throughout(inner) for key, inner in value.items()}
    return [throughout(inner) for inner in value] if isinstance(value, list | tuple) else value
