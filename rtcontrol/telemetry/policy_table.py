"""The table of a policy server's drill, for the terminal and for a page."""

from __future__ import annotations

from rtcontrol.telemetry.figure_table import Document, Table

COLUMNS = ("fault", "injected", "acted", "the misses' causes")


def policy_faults(document: Document) -> list[Table]:
    """Of `rtcontrol drill --policy`."""
    rows = [
        (
            row["about"],
            str(row["injected"]),
            str(row["acted"]),
            ", ".join(f"`{c}` {n}" for c, n in _most(row["called"])),
        )
        for row in document["faults"]
    ]
    injected, acted = (str(sum(row[name] for row in document["faults"])) for name in ("injected", "acted"))
    return [Table("", COLUMNS, (*rows, ("all", injected, acted, "")))]


def _most(called: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(called.items(), key=lambda pair: -pair[1])
