"""Read records from MCAP files, including truncated files and files of other tools, at a bounded cost."""

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
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.events import CHANNELS, SCHEMA_VERSION, schema_name
from rtcontrol.telemetry.run_folder import older_parts, record_of

# The most bytes of a part of a file, packed or not, and of a message (at least twice what `events.MOST_BYTES` allows to
# write).
MOST_BYTES, MOST_MESSAGE = 1 << 26, 1 << 24
# The most bytes that a file may unpack to: a constant, plus a factor for each byte. Our files need a tenth of that.
ALWAYS, FOR_EACH_BYTE = 1 << 28, 1000
GIVE = "Give a run's folder (of a server, a session's in it), or a record.mcap."

# The time of writing (UTC in ns), and the event.
Stamped = tuple[int, dict[str, Any]]


def record_in(folder: Path) -> Path:
    """Return the record in a run's folder, or `folder` if it is a file. Raises UserError if there is none."""
    if folder.is_file():
        return folder
    if (record := record_of(folder)) is not None:
        return record
    raise UserError(f"No record at {folder}.", GIVE)


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of all remaining parts of a record in order, without a truncated event at the end.

    Raises UserError if there is no record, or if it is damaged before its end, of a later version, or of another
    program.
    """
    return (event for _, event in read_stamped(path))


def read_stamped(path: Path) -> Iterator[Stamped]:
    """Yield the events as `read_record` does, each with the time of writing (UTC in ns)."""
    parts = [*older_parts(path), path]
    for part in parts:
        try:
            if len(parts) > 1 and part.stat().st_size <= len(MCAP0_MAGIC):
                continue  # the newest part is empty because the disk was full
            with part.open("rb") as file:
                yield from _events(file, part)
        except OSError as error:
            if len(parts) > 1 and isinstance(error, FileNotFoundError):
                continue  # a live run has removed its oldest part meanwhile, or has not started the newest one
            raise UserError(f"No record at {path} ({error.strerror}).", GIVE) from error


def _events(file: BinaryIO, path: Path) -> Iterator[Stamped]:
    """Yield the events of one file, except for topics or schemas that other programs added."""
    header: Any = None
    try:
        for channel, schema, message in _messages(file):
            if channel.topic not in CHANNELS or schema not in (None, schema_name(channel.topic)):
                continue
            event = _event(message)
            if "header" in event:
                if header not in (None, event["header"]):
                    raise ValueError("it has several runs: give each one in its original file")
                header = event["header"]
            yield message.log_time, event
    except OSError:
        raise
    except Exception as error:
        raise UserError(f"{path} is not a record of a run ({type(error).__name__}: {error}).", GIVE) from error


def _event(message: Message) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(message.data)
    if (version := event.get("schema_version", SCHEMA_VERSION)) > SCHEMA_VERSION:
        raise ValueError(f"it has the format {version}, and this rtcontrol reads those up to {SCHEMA_VERSION}")
    return event


# -- MCAP -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BoundedFile:
    """A file wrapper that never reads more bytes at once than a part of a record may have."""

    file: BinaryIO

    def read(self, size: int) -> bytes:
        if size > MOST_BYTES:
            raise ValueError(f"a part of {size} bytes, and none may have more than {MOST_BYTES}")
        return self.file.read(size)


def _messages(file: BinaryIO) -> Iterator[tuple[Channel, str | None, Message]]:
    """Yield each message of an MCAP file with its channel and its schema's name (None without a schema).

    The summary at the end is not read, since it may be missing or wrong. A truncated message at the end is left out. No
    part of more than `MOST_BYTES` is unpacked.
    """
    if file.read(len(MCAP0_MAGIC)) != MCAP0_MAGIC:
        raise ValueError("it is not an MCAP file")
    channels: dict[int, Channel] = {}
    schemas: dict[int, str] = {}
    left = ALWAYS + FOR_EACH_BYTE * os.fstat(file.fileno()).st_size  # bytes that the file may still unpack to
    bounded: Any = BoundedFile(file)
    try:
        for record in StreamReader(bounded, skip_magic=True, emit_chunks=True, record_size_limit=None).records:
            if isinstance(record, DataEnd):
                return
            left -= record.uncompressed_size if isinstance(record, Chunk) else 0
            if left < 0:
                raise ValueError("it unpacks to too much for its size")
            for inner in _unpacked(record) if isinstance(record, Chunk) else [record]:
                if isinstance(inner, Schema):
                    schemas[inner.id] = inner.name
                elif isinstance(inner, Channel):
                    if channels.setdefault(inner.id, inner) != inner:
                        raise ValueError(f"channel {inner.id} is two")
                elif isinstance(inner, Message):
                    channel = channels[inner.channel_id]
                    if len(inner.data) > MOST_MESSAGE:
                        raise ValueError(f"a message of {len(inner.data)} bytes, and none may exceed {MOST_MESSAGE}")
                    yield channel, schemas.get(channel.schema_id), inner
    except (EndOfFile, struct.error, zstandard.ZstdError):
        # Only zeros may follow, from a file system that could not write any more.
        if any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 16), b"")):
            raise


def _unpacked(chunk: Chunk) -> list[McapRecord]:
    """Return the records of a chunk. Check the declared size before unpacking, and the real size afterwards."""
    size, data = chunk.uncompressed_size, chunk.data
    if size > MOST_BYTES or chunk.compression not in ("", "zstd"):
        raise ValueError(f"a chunk of {size} bytes, {chunk.compression[:40]!r}: at most {MOST_BYTES} are read, of zstd")
    if chunk.compression:
        # The library's other calls ignore `max_output_size` if the frame itself declares a size.
        unpacker = zstandard.ZstdDecompressor(max_window_size=MOST_BYTES)
        data = unpacker.stream_reader(BytesIO(data), read_across_frames=True).read(size + 1)
    if len(data) != size or (chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc):
        raise EndOfFile(f"a chunk should have {size} bytes, and has others")
    return breakup_chunk(Chunk("", data, 0, 0, 0, size))


# -- rows -------------------------------------------------------------------------------------------------------------

WAITED = 512  # how many ticks later a client's result or an answer may come


def rows(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a training row for each tick whose call acted in time and was executed, in the order in which ticks ended.

    `call` is null if the active call stayed. Each further call of a tick has a row, with earlier calls of the tick in
    the history. If the answer to an older observation decided a tick, the row has that observation.
    """
    header: Mapping[str, Any] = {}
    observed: dict[int, Mapping[str, Any]] = {}  # data of recent ticks
    called: dict[int, Mapping[str, Any]] = {}
    recent: dict[tuple[int, int], dict[str, Any]] = {}  # rows by tick and number of the call in it
    for event in events:
        if "observation" in event:
            observed[event["k"]] = event
            if len(observed) > WAITED:
                del observed[next(iter(observed))]
        elif "called" in event and event["why"] in ("fresh", "further"):
            called[event["k"]] = event
        elif "ack" in event and event["status"] != "executed" and event.get("why") != "safe":
            recent.pop((event["ack"], event.get("n", 0)), None)
        elif "kind" in event or "further" in event:
            k, n = event.get("further", event.get("k")), event.get("n", 0)
            seen = recent.get((k, n - 1)) if n else observed.get(event.get("answers", k))
            if (row := _row(event, seen, called.pop(k, None), header)) is not None:
                recent[k, n] = row
            if len(recent) > WAITED:
                yield recent.pop(next(iter(recent)))
        elif "header" in event:
            header = event["header"]
    yield from recent.values()


def _row(
    event: Mapping[str, Any],
    seen: Mapping[str, Any] | None,
    called: Mapping[str, Any] | None,
    header: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Return the row of a tick, or of a further call of one, where `seen` is the row of the call before."""
    kind = "call" if event.get("outcome") == "acted" else event.get("kind", event.get("outcome"))
    on_time = "cause" not in event and "over" not in event and kind in ("call", "null")
    if seen is None or not on_time or (called is not None) != (kind == "call"):
        return None
    history = list(seen["history"])
    if "further" in event:
        history = [*history, Call.from_dict(seen["call"]).text()][-header.get("history", 0) or None :]
    return {
        "instruction": seen["instruction"],
        "observation": seen["observation"],
        "tools": header.get("tools", []),
        "history": history,
        "call": None if called is None else {"name": called["called"], "arguments": called["arguments"]},
        "source": f"record:{header.get('model')}",
        "weight": 1.0,
    }
