"""Print the report in a terminal, and format tables of measured figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rtcontrol.telemetry.report import INSTRUCTION_COLUMNS, STATISTICS, TIME_TITLES, instruction_rows, report_lines
from rtcontrol_client.console import printable, printable_values


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the lines of the report, and the tables of instructions and times."""
    shown = printable_values(report)
    for label, value, hint in report_lines(shown):
        text = Text.assemble((label, "bold"), f": {value}", (f" ({hint})" if hint else "", "dim"))
        console.print(text, soft_wrap=True)
    if shown["misses"]:
        console.print("`rtcontrol report FOLDER --format html` shows each tick, and why it was late.", soft_wrap=True)
    if rows := instruction_rows(shown):
        instructions = Table(*INSTRUCTION_COLUMNS, box=None, pad_edge=False)
        for row in rows:
            instructions.add_row(*map(Text, row))
        console.print(instructions)
    table = Table("ms", *(part.replace("_", ".") for part in STATISTICS), box=None, pad_edge=False)
    for name, title in TIME_TITLES.items():
        if shown[name]["p50"] is not None:
            table.add_row(title, *(f"{shown[name][part]:.3f}" for part in STATISTICS))
    console.print(table)


class Terminal(Console):
    """A rich console that escapes control characters (except line ends), because a printed text must not set colours or
    move the cursor."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_escape_control_characters(text), **options)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_escape_control_characters(segment.text), segment.style)


def _escape_control_characters(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


NOT_MEASURED = "not measured"
Document = dict[str, Any]


@dataclass(frozen=True)
class FigureTable:
    """A table of measured figures. All cells are text, and the first column has the names of the rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def ms_text(value: float | None) -> str:
    """Return milliseconds as text with two decimals, or `not measured` for None."""
    return NOT_MEASURED if value is None else f"{value:.2f}"


def format_markdown(tables: Sequence[FigureTable]) -> str:
    """Return tables as Markdown text."""
    parts = []
    for table in tables:
        lines = [
            *([f"**{table.title}**", ""] if table.title else []),
            _markdown_row(table.columns),
            _markdown_row(["---"] * len(table.columns)),
        ]
        lines += [_markdown_row(row) for row in table.rows]
        parts.append("\n".join([*lines, *(["", table.note] if table.note else [])]))
    return "\n\n".join(parts)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
