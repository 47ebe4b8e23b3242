"""Show the report in a terminal, and make tables of measured figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rtcontrol.telemetry.report import PARTS, TITLES, lines
from rtcontrol_client.console import printable, throughout


def show(report: dict[str, Any], console: Console) -> None:
    """Print the lines of the report and the table of times."""
    shown = throughout(report)
    for label, value, hint in lines(shown):
        text = Text.assemble((label, "bold"), f": {value}", (f" ({hint})" if hint else "", "dim"))
        console.print(text, soft_wrap=True)
    table = Table("ms", *(part.replace("_", ".") for part in PARTS), box=None, pad_edge=False)
    for name, title in TITLES.items():
        if shown[name]["p50"] is not None:
            table.add_row(title, *(f"{shown[name][part]:.3f}" for part in PARTS))
    console.print(table)


class Terminal(Console):
    """A rich console that escapes control characters except line ends, in tables and bars too, so that only rich sets
    colours and moves the cursor."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_escaped(text), **options)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_escaped(segment.text), segment.style)


def _escaped(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


NOT_MEASURED = "not measured"
Document = dict[str, Any]


@dataclass(frozen=True)
class FigureTable:
    """A table of cells as text, whose first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def ms(value: float | None) -> str:
    """Return milliseconds with two digits after the point."""
    return NOT_MEASURED if value is None else f"{value:.2f}"


def markdown(shown: Sequence[FigureTable]) -> str:
    """Return tables as Markdown text for a page."""
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
