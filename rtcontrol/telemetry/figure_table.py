"""A table of measured figures, for the terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NOT_MEASURED = "not measured"
Document = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def ms(value: float | None) -> str:
    """Milliseconds with two digits after the point."""
    return NOT_MEASURED if value is None else f"{value:.2f}"


def markdown(shown: Sequence[Table]) -> str:
    """As a page has them."""
    parts = []
    for table in shown:
        lines = [
            *([f"**{table.title}**", ""] if table.title else []),
            _line(table.columns),
            _line(["---"] * len(table.columns)),
        ]
        lines += [_line(row) for row in table.rows]
        parts.append("\n".join([*lines, *(["", table.note] if table.note else [])]))
    return "\n\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
