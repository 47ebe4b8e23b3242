"""Read records: MCAP files, also ones that were cut off or that other tools wrote, each at a bounded cost."""

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

# Of a part of a file, packed or not; of a message (of an event half of it is written at most: `events.MOST_BYTES`).
MOST_BYTES, MOST_MESSAGE = 1 << 26, 1 << 24
# What a file unpacks to: so much, and so much more for each of its bytes. Ours come to a tenth of it.
ALWAYS, FOR_EACH_BYTE = 1 << 28, 1000
GIVE = "Give a run's folder (of a server, a session's in it), or a record.mcap."

# When it was written (UTC in ns), and the event.
Stamped = tuple[int, dict[str, Any]]


def record_in(folder: Path) -> Path:
    """Return the record in a run's folder, or `folder` if it is a file. Raises UserError if there is none."""
    if folder.is_file():
        return folder
    if (record := record_of(folder)) is not None:
        return record
    raise UserError(f"No record at {folder}.", GIVE)


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of all parts that are left, in order; what was cut short at the end is left out.

    Raises UserError if there is none, or it is damaged in its midst, of a later version, or not ours.
    """
    return (event for _, event in read_stamped(path))


def read_stamped(path: Path) -> Iterator[Stamped]:
    """Yield as `read_record`, each event with when it was written: UTC in ns."""
    parts = [*older_parts(path), path]
    for part in parts:
        try:
            if len(parts) > 1 and part.stat().st_size <= len(MCAP0_MAGIC):
                continue  # the newest, whose first bytes a full disk did not take
            with part.open("rb") as file:
                yield from _events(file, part)
        except OSError as error:
            if len(parts) > 1 and isinstance(error, FileNotFoundError):
                continue  # a live run removed its oldest part meanwhile, or has not started the newest
            raise UserError(f"No record at {path} ({error.strerror}).", GIVE) from error


def _events(file: BinaryIO, path: Path) -> Iterator[Stamped]:
    """Yield the events of one file, without what other programs added: topics or schemas that are not ours."""
    header: Any = None
    try:
        for channel, schema, message in _messages(file):
            if channel.topic not in CHANNELS or schema not in (None, schema_name(channel.topic)):
                continue
            event = _event(message)
            if "header" in event:
                if header not in (None, event["header"]):
                    raise ValueError("it holds several runs: give each as it was written")
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
    """A file that is never asked for more bytes at once than a part of a record may have."""

    file: BinaryIO

    def read(self, size: int) -> bytes:
        if size > MOST_BYTES:
            raise ValueError(f"a part of {size} bytes, and none may have more than {MOST_BYTES}")
        return self.file.read(size)


def _messages(file: BinaryIO) -> Iterator[tuple[Channel, str | None, Message]]:
    """Yield each message of an MCAP file with its channel and its schema's name (None without a schema).

    The summary at the end is not read: the file may have none, or one that is wrong. What was cut short at the end is
    left out. No part of more than `MOST_BYTES` is unpacked.
    """
    if file.read(len(MCAP0_MAGIC)) != MCAP0_MAGIC:
        raise ValueError("it is not an MCAP file")
    channels: dict[int, Channel] = {}
    schemas: dict[int, str] = {}
    left = ALWAYS + FOR_EACH_BYTE * os.fstat(file.fileno()).st_size  # bytes that it may still unpack to
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
        # The zeros of a file system that could not write any more may follow, and nothing else.
        if any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 16), b"")):
            raise


def _unpacked(chunk: Chunk) -> list[McapRecord]:
    """Return a chunk's records; its size is checked before it is unpacked, and again by what comes out."""
    size, data = chunk.uncompressed_size, chunk.data
    if size > MOST_BYTES or chunk.compression not in ("", "zstd"):
        raise ValueError(f"a chunk of {size} bytes, {chunk.compression[:40]!r}: at most {MOST_BYTES} are read, of zstd")
    if chunk.compression:
        # `max_output_size` of the library's other calls is ignored where the frame itself says how large it is.
        unpacker = zstandard.ZstdDecompressor(max_window_size=MOST_BYTES)
        data = unpacker.stream_reader(BytesIO(data), read_across_frames=True).read(size + 1)
    if len(data) != size or (chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc):
        raise EndOfFile(f"a chunk should have {size} bytes, and has others")
    return breakup_chunk(Chunk("", data, 0, 0, 0, size))


# -- rows -------------------------------------------------------------------------------------------------------------

WAITED = 512  # a client's result of a call, or an answer, comes this many ticks later at the most


def rows(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row of each tick whose call acted in time and was carried out, in the order in which ticks ended.

    `call` is null where the active one stayed. Each further call of a tick has a row, with those before it in its
    history. Where the answer to an older observation decided a tick, the row has that observation.
    """
    header: Mapping[str, Any] = {}
    observed: dict[int, Mapping[str, Any]] = {}  # by recent ticks
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
