"""Measured figures that no bench writes as JSON: a file kept by hand, each with its day, machine and command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.figure_table import Table, markdown

FILE = "by-hand.yaml"
NEEDED = {"id", "title", "measured", "machine", "command"}
ALLOWED = NEEDED | {"text", "values", "columns", "rows", "note"}


@dataclass(frozen=True)
class HandKept:
    """One measurement. `values` are its figures by name; texts and cells have them in already."""

    id: str
    title: str
    measured: str
    machine: str
    command: str
    text: str
    values: dict[str, str]
    table: Table | None

    def markdown(self) -> str:
        """As the page has it, with its conditions."""
        parts = [f"### {self.title}", *([self.text] if self.text else [])]
        if self.table is not None:
            parts.append(markdown([self.table]))
        parts.append(f"Measured: {self.measured}. Machine: {self.machine}. Command: `{self.command}`.")
        return "\n\n".join(parts)


def hand_kept(folder: Path) -> dict[str, HandKept]:
    """Entries of the folder's file by id; none where there is no file. Scalars are text, as they are written there."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        entries = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)
        return {entry["id"]: _entry(entry) for entry in entries}
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).", "Correct the entry.") from None


def _entry(entry: dict[str, Any]) -> HandKept:
    if missing := NEEDED - entry.keys():
        raise ValueError(f"{entry.get('id', 'an entry')} lacks {', '.join(sorted(missing))}")
    if unknown := entry.keys() - ALLOWED:
        raise ValueError(f"{entry['id']} has the unknown {', '.join(sorted(unknown))}")
    values = dict(entry.get("values", {}))
    table = None
    if "rows" in entry:
        rows = tuple(tuple(cell.format_map(values) for cell in row) for row in entry["rows"])
        table = Table("", tuple(entry["columns"]), rows, entry.get("note", ""))
        if any(len(row) != len(table.columns) for row in rows):
            raise ValueError(f"{entry['id']} has a row of another length than its columns")
    named = {name: entry[name] for name in sorted(NEEDED)}
    return HandKept(**named, text=entry.get("text", "").format_map(values), values=values, table=table)
