"""Read the records of runs from MCAP files, in limited memory. A file may be truncated or from another tool."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import zstandard
from mcap.exceptions import EndOfFile
from mcap.records import Channel, Chunk, DataEnd, McapRecord, Message, Schema
from mcap.stream_reader import StreamReader, breakup_chunk
from mcap.writer import MCAP0_MAGIC

from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError, open_input
from rtcontrol.telemetry.events import CHANNELS, SCHEMA_VERSION, schema_name
from rtcontrol.telemetry.run_folder import find_record, older_parts

# Maximum bytes of a chunk (packed or unpacked), and of a message (twice the recorder's limit `events.MAX_BYTES`).
MOST_BYTES, MAX_MESSAGE = 1 << 26, 1 << 24
# A file may unpack to UNPACKED_BASE bytes plus a multiple of its size. Real records need a tenth of that.
UNPACKED_BASE, UNPACKED_PER_BYTE = 1 << 28, 1000
HINT = "Specify the folder of a run (for a server: of one session), or a file record.mcap."

# (time at which the event was recorded in UTC ns, event)
TimedEvent = tuple[int, dict[str, Any]]


def record_path(folder: Path) -> Path:
    """Return the path of the record in a run's folder, or `folder` if it is a file. Raises UserError if none exists."""
    if folder.is_file():
        return folder
    if (record := find_record(folder)) is not None:
        return record
    raise UserError(f"{folder} has no record of a run.", HINT)


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a record in order, from all its existing files. A truncated last event is skipped.

    Raises UserError if the record does not exist, is damaged before its end, has a newer format version, or is from
    another program.
    """
    return (event for _, event in read_timed_events(path))


def read_timed_events(path: Path) -> Iterator[TimedEvent]:
    """Yield the events that `read_record` yields, each with the time at which it was recorded (UTC in ns)."""
    parts = [*older_parts(path), path]
    for part in parts:
        try:
            if len(parts) > 1 and part.stat().st_size <= len(MCAP0_MAGIC):
                continue  # skip an empty file, which remains when the disk was full
            with open_input(part, pipes=False) as file:
                yield from _events_of_file(file, part)
        except OSError as error:
            if len(parts) > 1 and isinstance(error, FileNotFoundError):
                continue  # a live run has just deleted its oldest file, or not yet created the newest
            raise UserError(f"The record {path} cannot be read ({error.strerror}).", HINT) from error


def _events_of_file(file: BinaryIO, path: Path) -> Iterator[TimedEvent]:
    """Yield the events of a file. Skip messages with the topic or schema of another program."""
    header: Any = None
    try:
        for channel, schema, message in _mcap_messages(file):
            if channel.topic not in CHANNELS or schema not in (None, schema_name(channel.topic)):
                continue
            event = _parse_event(message)
            if "header" in event:
                if header not in (None, event["header"]):
                    raise ValueError("it has several runs; use the original file of each run")
                header = event["header"]
            yield message.log_time, event
    except OSError:
        raise
    except Exception as error:
        raise UserError(f"{path} is not a record of a run ({type(error).__name__}: {error}).", HINT) from error


def _parse_event(message: Message) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(message.data)
    if (version := event.get("schema_version", SCHEMA_VERSION)) > SCHEMA_VERSION:
        raise ValueError(f"its format version is {version}; this rtcontrol reads versions up to {SCHEMA_VERSION}")
    return event


# -- MCAP -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BoundedFile:
    """A file whose `read` raises ValueError instead of reading more than `MOST_BYTES` at once."""

    file: BinaryIO

    def read(self, size: int) -> bytes:
        if size > MOST_BYTES:
            raise ValueError(f"it declares a part of {size} bytes; at most {MOST_BYTES} are allowed")
        return self.file.read(size)


def _mcap_messages(file: BinaryIO) -> Iterator[tuple[Channel, str | None, Message]]:
    """Yield each message of an MCAP file with its channel and its schema's name (None without a schema).

    Ignore the summary at the end of the file, because it may be missing or wrong, and skip a truncated last message.
    Raises ValueError if the file is not MCAP, or exceeds a limit.
    """
    if file.read(len(MCAP0_MAGIC)) != MCAP0_MAGIC:
        raise ValueError("it is not an MCAP file")
    channels: dict[int, Channel] = {}
    schemas: dict[int, str] = {}
    remaining = UNPACKED_BASE + UNPACKED_PER_BYTE * os.fstat(file.fileno()).st_size  # remaining bytes to unpack
    bounded: Any = BoundedFile(file)
    try:
        for record in StreamReader(bounded, skip_magic=True, emit_chunks=True, record_size_limit=None).records:
            if isinstance(record, DataEnd):
                return
            remaining -= record.uncompressed_size if isinstance(record, Chunk) else 0
            if remaining < 0:
                raise ValueError("it unpacks to too many bytes for its size")
            for inner in _unpack_chunk(record) if isinstance(record, Chunk) else [record]:
                if isinstance(inner, Schema):
                    schemas[inner.id] = inner.name
                elif isinstance(inner, Channel):
                    if channels.setdefault(inner.id, inner) != inner:
                        raise ValueError(f"channel {inner.id} is defined twice, and differently")
                elif isinstance(inner, Message):
                    channel = channels[inner.channel_id]
                    if len(inner.data) > MAX_MESSAGE:
                        raise ValueError(f"a message has {len(inner.data)} bytes; at most {MAX_MESSAGE} are allowed")
                    yield channel, schemas.get(channel.schema_id), inner
    except (EndOfFile, struct.error, zstandard.ZstdError):
        # Accept a file that ends in the middle of a record, as after a crash, if only zeros follow.
        if any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 16), b"")):
            raise


def _unpack_chunk(chunk: Chunk) -> list[McapRecord]:
    """Return the MCAP records in a chunk. Its declared size is checked before unpacking, its actual size afterwards."""
    size, data = chunk.uncompressed_size, chunk.data
    if size > MOST_BYTES or chunk.compression not in ("", "zstd"):
        raise ValueError(f"a chunk has {size} bytes, {chunk.compression[:40]!r}; the limits are {MOST_BYTES}, zstd")
    if chunk.compression:
        # Use a stream, because ZstdDecompressor.decompress() ignores `max_output_size` if the frame declares a size.
        unpacker = zstandard.ZstdDecompressor(max_window_size=MOST_BYTES)
        data = unpacker.stream_reader(BytesIO(data), read_across_frames=True).read(size + 1)
    if len(data) != size or (chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc):
        raise EndOfFile(f"the content of a chunk does not match its size of {size} bytes, or its checksum")
    return breakup_chunk(Chunk("", data, 0, 0, 0, size))


# -- training rows -----------------------------------------------------------------------------------------------------

ROW_WINDOW = 512  # a tick's row can change only during this number of later ticks


def training_rows(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a training row for each tick whose call was executed in time, in the order in which the ticks ended.

    A row's `call` is null if the model chose to keep the active call. A tick with several calls has a row per call,
    whose history ends with the tick's earlier calls. Each row has the observation for which the call was decided.
    """
    header: Mapping[str, Any] = {}
    observed: dict[int, Mapping[str, Any]] = {}  # by recent tick: its observation event
    called: dict[int, Mapping[str, Any]] = {}
    recent: dict[tuple[int, int], dict[str, Any]] = {}  # rows, by (tick, number of the call in the tick)
    for event in events:
        if "observation" in event:
            observed[event["k"]] = event
            if len(observed) > ROW_WINDOW:
                del observed[next(iter(observed))]
        elif "called" in event and event["why"] in ("fresh", "further"):
            called[event["k"]] = event
        elif "ack" in event and event["status"] != "executed" and event.get("why") != "safe":
            recent.pop((event["ack"], event.get("n", 0)), None)
        elif "kind" in event or "further" in event:
            k, n = event.get("further", event.get("k")), event.get("n", 0)
            context = recent.get((k, n - 1)) if n else observed.get(event.get("answers", k))
            if (row := _build_row(event, context, called.pop(k, None), header)) is not None:
                recent[k, n] = row
            if len(recent) > ROW_WINDOW:
                yield recent.pop(next(iter(recent)))
        elif "header" in event:
            header = event["header"]
    yield from recent.values()


def _build_row(
    event: Mapping[str, Any],
    context: Mapping[str, Any] | None,
    called: Mapping[str, Any] | None,
    header: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Return the training row of a call, or None if the call was not executed in time.
    `context`: the observation event of the tick or, for a second or later call, the row of the previous call."""
    kind = "call" if event.get("outcome") == "acted" else event.get("kind", event.get("outcome"))
    on_time = "cause" not in event and "over" not in event and kind in ("call", "null")
    if context is None or not on_time or (called is not None) != (kind == "call"):
        return None
    history = list(context["history"])
    if "further" in event:
        history = [*history, Call.from_dict(context["call"]).text()][-header.get("history", 0) or None :]
    return {
        "instruction": context["instruction"],
        "observation": context["observation"],
        "tools": header.get("tools", []),
        "history": history,
        "call": None if called is None else {"name": called["called"], "arguments": called["arguments"]},
        "source": f"record:{header.get('model')}",
        "weight": 1.0,
    }
