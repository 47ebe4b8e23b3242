"""A table of measured figures, for the terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

NOT_MEASURED = "not measured"
Document = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row. `main` is the column that another machine is compared in."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    main: str = ""

    def beside(self, other: Table | None, machine: str) -> Table:
        """With one more column: another machine's `main`, for the rows that it has."""
        if not self.main:
            return self
        known = {row[0]: row[other.columns.index(self.main)] for row in other.rows} if other else {}
        rows = tuple((*row, known.get(row[0], NOT_MEASURED)) for row in self.rows)
        return replace(self, columns=(*self.columns, f"{machine}: {self.main}"), rows=rows)


def ms(value: float | None) -> str:
    """Milliseconds with two digits after the point."""
    return NOT_MEASURED if value is None else f"{value:.2f}"


def conditions(result: Document) -> str:
    """What decided, and where."""
    info = result["info"]
    return f"{info['model']}, {info['dtype']} on {info['device']}, {result['threads']} thread(s)"


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
