"""Rows from records of runs: what a model flew, or a person by keyboard, and was carried out in time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.record.reading import read_record, record_in
from rtcontrol.record.rows import rows


def recorded(runs: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of runs' folders or records (`rtcontrol.record.rows`), each with where it stands. Raises UserError for a
    run without one, and for what is no record."""
    for run in runs:
        record, count = record_in(Path(run)), 0
        try:
            for count, row in enumerate(rows(read_record(record)), start=1):
                yield f"{record}, row {count}", row
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"{record} is no record of a run ({why}).", "Give a run's folder.") from error
        if not count:
            what = f"{record} has no observations with a call: no row."
            raise UserError(what, "Record with --record-observations yes, the default.")
