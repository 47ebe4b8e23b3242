"""Reads records: MCAP files, also ones that were cut off, and the JSON lines of earlier versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mcap.writer import MCAP0_MAGIC

from rtcontrol.models.errors import UserError
from rtcontrol.record.channels import CHANNELS, SCHEMA_VERSION, schema_name
from rtcontrol.record.folder import older_parts, record_of
from rtcontrol.record.messages import MOST_MESSAGE, Damaged, messages

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
    while raw := file.readline(MOST_MESSAGE):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield None, line


def _messages(file: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events. What other programs added, on topics or of schemas that are not ours, is passed over."""
    header: Any = None
    began_ns = 0
    try:
        for channel, schema, message in messages(file):
            if channel.topic not in CHANNELS or schema not in (None, schema_name(channel.topic)):
                continue
            if channel.message_encoding != "json":
                raise Damaged(f"{channel.topic} is encoded as {channel.message_encoding[:40]!r}, no JSON")
            if not isinstance(event := json.loads(message.data), dict):
                raise Damaged(f"a message of {channel.topic} is no object")
            if "header" in event:
                if header not in (None, event["header"]):
                    raise Damaged("it holds several runs: give each as it was written")
                if header is not None and message.log_time == began_ns:  # of a later part it is another time
                    raise Damaged("it holds one run twice: give it as it was written")
                header, began_ns = event["header"], message.log_time
            yield message.log_time, event
    except OSError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, Damaged) else f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is no record of a run ({why}).", "Give a run's folder, or its record.mcap.") from error
