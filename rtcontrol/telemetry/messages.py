"""The messages of an MCAP file in the order in which they lie there, whoever wrote it last, and none without bounds."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO

import lz4.frame
import zstandard
from mcap.exceptions import EndOfFile
from mcap.records import Channel, Chunk, DataEnd, McapRecord, Message, Schema
from mcap.stream_reader import StreamReader, breakup_chunk
from mcap.writer import MCAP0_MAGIC

# Ours are a hundredth of it: a chunk ends at 1 MiB, or with the message that went beyond.
MOST_CHUNK = 1 << 26
# Of one message. Of an event no more than half of it is written (`encoder.MOST_BYTES`).
MOST_MESSAGE = 1 << 24
# What a file unpacks to: so much, and so much more for each of its bytes. Ours come to a tenth of it.
ALWAYS, FOR_EACH_BYTE = 1 << 28, 1000


class Damaged(ValueError):
    """The file is no record, or not as a record may be; the message says why."""


class Torn(Damaged):
    """Its bytes are not those that were written. At the end of the file it was cut short so: by a loss of power."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A file of which nothing is read at once that is larger than a part of a record may be."""

    file: BinaryIO

    def read(self, size: int) -> bytes:
        if size > MOST_CHUNK:
            raise Damaged(f"a part of it has {size >> 20} MiB, and none may have more than {MOST_CHUNK >> 20}")
        return self.file.read(size)


class Messages:
    """What a file said until now of its channels and their schemas, and what it may still unpack to."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size = file, os.fstat(file.fileno()).st_size
        self._channels: dict[int, Channel] = {}
        self._schemas: dict[int, str] = {}
        self._left = ALWAYS + FOR_EACH_BYTE * self._size

    def __iter__(self) -> Iterator[tuple[Channel, str | None, Message]]:
        """Yield each message with its channel and the name of its schema (None where it has none), chunked or not, in
        any of the format's compressions. The summary at the end is not looked at: the file may have none, or one that
        is wrong. What was cut short at its end is left out. Raises Damaged for the rest, before it unpacks more than
        `MOST_CHUNK`."""
        if (magic := self._file.read(len(MCAP0_MAGIC))) != MCAP0_MAGIC:
            raise Damaged("no MCAP file" if magic else "it is empty")
        bounded: Any = Bounded(self._file)
        try:
            for record in StreamReader(bounded, skip_magic=True, emit_chunks=True, record_size_limit=None).records:
                if isinstance(record, DataEnd):
                    return
                inner = self._unpacked(record) if isinstance(record, Chunk) else [record]
                for one in inner:
                    yield from self._read(one)
        except (EndOfFile, struct.error, Torn):
            if not self._over():
                raise

    def _read(self, record: McapRecord) -> Iterator[tuple[Channel, str | None, Message]]:
        if isinstance(record, Schema):
            self._schemas[record.id] = record.name
        elif isinstance(record, Channel):
            if (known := self._channels.setdefault(record.id, record)) != record:  # whose message is it?
                raise Damaged(f"channel {record.id} is {known.topic!r}, and later {record.topic!r}")
        elif isinstance(record, Message):
            if (channel := self._channels.get(record.channel_id)) is None:
                raise Damaged(f"a message is of channel {record.channel_id}, which is none")
            if (size := len(record.data)) > MOST_MESSAGE:
                raise Damaged(f"a message has {size >> 20} MiB, and none may have more than {MOST_MESSAGE >> 20}")
            yield channel, self._schemas.get(channel.schema_id), record

    def _unpacked(self, chunk: Chunk) -> list[McapRecord]:
        """Check what a chunk says that it holds before anything is unpacked, and again by what comes out."""
        size = chunk.uncompressed_size
        says = f"a chunk says that it unpacks to {size}"
        if size > MOST_CHUNK:
            raise Damaged(f"{says} bytes ({size >> 20} MiB), and none may to more than {MOST_CHUNK >> 20} MiB")
        self._left -= size
        if self._left < 0:
            most = (ALWAYS + FOR_EACH_BYTE * self._size) >> 20
            raise Damaged(f"its {self._size} bytes unpack to more than {most} MiB")
        try:
            data = _decompressed(chunk, size + 1)
        except (EOFError, RuntimeError, zstandard.ZstdError) as error:
            raise Torn(f"a chunk cannot be unpacked: {error}") from None
        if len(data) > size:
            raise Damaged(f"{says} bytes, and it is more")
        if len(data) < size or (chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc):
            raise Torn(f"{says} bytes, and it is {len(data)}, or its checksum is another")
        return breakup_chunk(Chunk("", data, 0, 0, 0, size))

    def _over(self) -> bool:
        """Return whether nothing follows but the zeros that a file system leaves where it could not write any more."""
        return not any(block.strip(b"\0") for block in iter(lambda: self._file.read(1 << 16), b""))


def _decompressed(chunk: Chunk, most: int) -> bytes:
    if chunk.compression == "zstd":
        # `max_output_size` of the library's other ways is not kept where the frame itself says how large it is.
        unpacker = zstandard.ZstdDecompressor(max_window_size=MOST_CHUNK)
        data: bytes = unpacker.stream_reader(BytesIO(chunk.data), read_across_frames=True).read(most)
        return data
    if chunk.compression == "lz4":
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=most))
    if chunk.compression:
        raise Damaged(f"a chunk is compressed by {chunk.compression[:40]!r}, which MCAP does not have")
    return chunk.data
