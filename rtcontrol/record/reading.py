"""Reads records: MCAP files, also ones that were cut off, and the JSON lines of earlier versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mcap.records import Chunk, Message
from mcap.stream_reader import StreamReader, breakup_chunk
from mcap.writer import MCAP0_MAGIC

from rtcontrol.models.errors import UserError
from rtcontrol.record.folder import RECORDS

# A larger record in a file is damage: no chunk of ours is a tenth of it.
LARGEST = 1 << 28


def record_in(folder: Path) -> Path:
    """The record in a run's folder, or `folder` where it is a file. UserError where there is none."""
    if folder.is_file():
        return folder
    for name in RECORDS:
        if (folder / name).is_file():
            return folder / name
    if sessions := sorted(folder.glob("session-*")):
        raise UserError(f"{folder} is a server's.", f"Give the folder of a session, such as {sessions[-1]}.")
    raise UserError(f"No record at {folder}.", "Give a run's folder, or a record.mcap.")


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """The record's events in order; what was cut short at its end is left out. UserError where there is none, or where
    it is damaged in its midst or not ours."""
    return (event for _, event in read_stamped(path))


def read_stamped(path: Path) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """As `read_record`, each event with when it was written: UTC in ns; None in the JSON lines of earlier versions."""
    try:
        with path.open("rb") as file:
            yield from _lines(file) if path.suffix == ".jsonl" else _messages(file, path)
    except OSError as error:
        raise UserError(f"No record at {path} ({error.strerror}).", "Give a run's folder.") from error


def _lines(file: BinaryIO) -> Iterator[tuple[None, dict[str, Any]]]:
    for raw in file:
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield None, line


def _messages(file: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    records = StreamReader(file, emit_chunks=True, record_size_limit=LARGEST).records
    while True:
        try:
            record = next(records, None)
            if record is None:
                return
            inside = breakup_chunk(record, validate_crc=True) if isinstance(record, Chunk) else []
            events = [(m.log_time, json.loads(m.data)) for m in inside if isinstance(m, Message)]
        except Exception as error:
            if file.tell() > len(MCAP0_MAGIC) and not file.read(1):
                return  # cut short
            raise UserError(
                f"{path} is no record of a run ({type(error).__name__}: {error}).",
                "Give a run's folder, or its record.mcap.",
            ) from error
        yield from events
