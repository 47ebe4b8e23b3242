"""The table of a fleet's drill, for the terminal and for a page."""

from __future__ import annotations

from rtcontrol.telemetry.figure_table import Document, Table

COLUMNS = (
    "fault",
    "found after, ms",
    "in between",
    "on time again after, ms",
    "ticks lost",
    "beyond ttl",
    "twice",
    "notes",
)


def fleet_faults(document: Document) -> list[Table]:
    """Of `rtcontrol drill --fleet`."""
    return [Table("", COLUMNS, tuple(_row(row) for row in document["faults"]))]


def _row(row: Document) -> tuple[str, ...]:
    if row["impossible"]:
        return (row["about"], *["-"] * (len(COLUMNS) - 2), f"not here: {row['impossible']}")
    found = "-" if row["found_ms"] is None else f"{row['found_ms']}: {row['found']}"
    between = "goes on"
    if row["held"] or row["safe"] or row["safe_ms"]:
        between = f"held {row['held']}, safe {row['safe']} ticks; safe for {row['safe_ms']} ms at most"
    again = "-" if row["again_ms"] is None else str(row["again_ms"])
    lost = f"{row['lost']} of {row['ticks']:,}"
    notes = "; ".join([*row["notes"], *(f"broken: {what}" for what in row["broken"])])
    return (row["about"], found, between, again, lost, str(row["beyond_ttl"]), str(row["twice"]), notes or "-")
