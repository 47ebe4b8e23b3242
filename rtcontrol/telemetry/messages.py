"""The messages of an MCAP file in the order in which they lie there, whoever wrote it last, and none without bounds."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

import lz4.frame
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, Message, Schema
from mcap.writer import MCAP0_MAGIC

# Ours are a hundredth of it: a chunk ends at 1 MiB, or with the message that went beyond.
MOST_CHUNK = 1 << 26
# Of one message. Of an event no more than half of it is written (`encoder.MOST_BYTES`).
MOST_MESSAGE = 1 << 24
# What a file unpacks to, and its JSON comes to in memory: so much, and so much more for each of its bytes. Ours come to
# a tenth of it.
ALWAYS, FOR_EACH_BYTE = 1 << 28, 1000
# In memory, beside its text: a list or an object, and one of its values.
CONTAINER, VALUE = 64, 16

Prefix = struct.Struct("<BQ")


class Damaged(ValueError):
    """The file is no record, or not as a record may be; the message says why."""


class Torn(Damaged):
    """Its bytes are not those that were written. At the end of the file it was cut short so: by a loss of power."""


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
        while len(prefix := self._file.read(Prefix.size)) == Prefix.size:
            code, length = Prefix.unpack(prefix)
            if code == Opcode.DATA_END:
                return
            if code not in (Opcode.CHUNK, Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE):
                if length > self._size:
                    return
                self._file.seek(length, os.SEEK_CUR)  # attachments, metadata, indices, and what later versions add
                continue
            if length > MOST_CHUNK:
                raise Damaged(f"a part of it has {length >> 20} MiB, and none may have more than {MOST_CHUNK >> 20}")
            body = self._file.read(length)
            if len(body) < length:
                return
            if code != Opcode.CHUNK:
                yield from self._read(code, body)
                continue
            try:
                data = self._unpacked(Chunk.read(_stream(body)))
            except Torn:
                if self._over():
                    return
                raise
            place = 0
            while place < len(data):
                if len(data) - place < Prefix.size:
                    raise Damaged("a chunk ends amid a record")
                code, length = Prefix.unpack_from(data, place)
                place += Prefix.size
                if length > len(data) - place:
                    raise Damaged("a chunk ends amid a record")
                yield from self._read(code, data[place : place + length])
                place += length

    def _read(self, code: int, body: bytes) -> Iterator[tuple[Channel, str | None, Message]]:
        if code == Opcode.SCHEMA:
            schema = Schema.read(_stream(body))
            self._schemas[schema.id] = schema.name
        elif code == Opcode.CHANNEL:
            one = Channel.read(_stream(body))
            if (known := self._channels.setdefault(one.id, one)) != one:  # whose message it is could not be told
                raise Damaged(f"channel {one.id} is {known.topic!r}, and later {one.topic!r}")
        elif code == Opcode.MESSAGE:
            message = Message.read(_stream(body), len(body))
            if (channel := self._channels.get(message.channel_id)) is None:
                raise Damaged(f"a message is of channel {message.channel_id}, which is none")
            if len(body) > MOST_MESSAGE:
                raise Damaged(f"a message has {len(body) >> 20} MiB, and none may have more than {MOST_MESSAGE >> 20}")
            containers = body.count(b"[") + body.count(b"{")
            self._spend(len(body) + CONTAINER * containers + VALUE * body.count(b","))
            yield channel, self._schemas.get(channel.schema_id), message

    def _unpacked(self, chunk: Chunk) -> bytes:
        """Check what a chunk says that it holds before anything is unpacked, and again by what comes out."""
        size = chunk.uncompressed_size
        if size > MOST_CHUNK:
            raise Damaged(
                f"a chunk says that it unpacks to {size >> 20} MiB, and none may to more than {MOST_CHUNK >> 20}"
            )
        self._spend(size)
        try:
            data = _decompressed(chunk, size + 1)
        except (EOFError, RuntimeError, zstandard.ZstdError) as error:
            raise Torn(f"a chunk cannot be unpacked: {error}") from None
        if len(data) > size:
            raise Damaged(f"a chunk says that it unpacks to {size} bytes, and it is more")
        if len(data) < size or (chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc):
            raise Torn(
                f"a chunk says that it unpacks to {size} bytes, and it is {len(data)}, or its checksum is another"
            )
        return data

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            most = (ALWAYS + FOR_EACH_BYTE * self._size) >> 20
            raise Damaged(f"its {self._size} bytes unpack to more than {most} MiB")

    def _over(self) -> bool:
        """Return whether nothing follows but the zeros that a file system leaves where it could not write any more."""
        return not any(block.strip(b"\0") for block in iter(lambda: self._file.read(1 << 16), b""))


def _decompressed(chunk: Chunk, most: int) -> bytes:
    if chunk.compression == "zstd":
        # `max_output_size` of the library's other ways is not kept where the frame itself says how large it is.
        unpacker = zstandard.ZstdDecompressor(max_window_size=MOST_CHUNK)
        found: bytes = unpacker.stream_reader(BytesIO(chunk.data), read_across_frames=True).read(most)
        return found
    if chunk.compression == "lz4":
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=most))
    if chunk.compression:
        raise Damaged(f"a chunk is compressed by {chunk.compression[:40]!r}, which MCAP does not have")
    return chunk.data


def _stream(body: bytes) -> ReadDataStream:
    return ReadDataStream(BytesIO(body))
