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
from rtcontrol.record.channels import SCHEMA_VERSION
from rtcontrol.record.folder import older_parts, record_of

# A larger record in a file is damage: no chunk of ours is a tenth of it.
LARGEST = 1 << 28
# When it was written (UTC in ns; None where the record does not say), and the event.
Stamped = tuple[int | None, dict[str, Any]]


def record_in(folder: Path) -> Path:
    """The record in a run's folder, or `folder` where it is a file. UserError where there is none."""
    if folder.is_file():
        return folder
    if (record := record_of(folder)) is not None:
        return record
    if sessions := sorted(folder.glob("session-*")):
        raise UserError(f"{folder} is a server's.", f"Give the folder of a session, such as {sessions[-1]}.")
    raise UserError(f"No record at {folder}.", "Give a run's folder, or a record.mcap.")


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """The record's events in order, all parts that are left, each from its header on; what was cut short at its end is
    left out. UserError where there is none, where it is damaged in its midst, of a later version, or not ours."""
    return (event for _, event in read_stamped(path))


def read_stamped(path: Path) -> Iterator[Stamped]:
    """As `read_record`, each event with when it was written: UTC in ns; None in the JSON lines of earlier versions."""
    parts = [*older_parts(path), path]
    for part in parts:
        try:
            if len(parts) > 1 and part.stat().st_size <= len(MCAP0_MAGIC):
                continue  # the newest, whose beginning a full disk did not take
            with part.open("rb") as file:
                yield from _known(_lines(file) if part.suffix == ".jsonl" else _messages(file, part), part)
        except FileNotFoundError as error:
            if len(parts) == 1:
                raise UserError(f"No record at {path} ({error.strerror}).", "Give a run's folder.") from error
            # The oldest part of a live run was removed meanwhile, or the newest not yet begun.
        except OSError as error:
            raise UserError(f"No record at {path} ({error.strerror}).", "Give a run's folder.") from error


def _known(events: Iterator[Stamped], path: Path) -> Iterator[Stamped]:
    for stamp, event in events:
        version = event.get("schema_version", SCHEMA_VERSION)
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise UserError(
                f"{path} has the format {version}, and this rtcontrol reads those up to {SCHEMA_VERSION}.",
                "Read it with the rtcontrol that wrote it, or a later one.",
            )
        yield stamp, event


def _lines(file: BinaryIO) -> Iterator[tuple[None, dict[str, Any]]]:
    for raw in file:
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield None, line


def _messages(file: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if file.read(len(MCAP0_MAGIC)) != MCAP0_MAGIC:
        raise UserError(f"{path} is no record of a run (no MCAP file).", "Give a run's folder, or its record.mcap.")
    file.seek(0)
    records = StreamReader(file, emit_chunks=True, record_size_limit=LARGEST).records
    while True:
        try:
            record = next(records, None)
            if record is None:
                return
            inside = breakup_chunk(record, validate_crc=True) if isinstance(record, Chunk) else []
            events = [(m.log_time, json.loads(m.data)) for m in inside if isinstance(m, Message)]
            if not all(isinstance(event, dict) for _, event in events):
                raise ValueError("its messages are no objects")
        except Exception as error:
            if file.tell() > len(MCAP0_MAGIC) and not file.read(1):
                return  # cut short
            raise UserError(
                f"{path} is no record of a run ({type(error).__name__}: {error}).",
                "Give a run's folder, or its record.mcap.",
            ) from error
        yield from events
