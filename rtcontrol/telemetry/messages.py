"""The messages of an MCAP file in the order in which they lie there, whoever wrote it last, and none without bounds."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Channels:
    """What the file said until now of its channels and their schemas."""

    channels: dict[int, Channel]
    schemas: dict[int, str]

    def define(self, channel: Channel) -> None:
        """Raises Damaged where the number is another channel's: whose message it is could not be told."""
        if (known := self.channels.setdefault(channel.id, channel)) != channel:
            raise Damaged(f"channel {channel.id} is {known.topic!r}, and later {channel.topic!r}")


class ReadBudget:
    """What may still be unpacked, of a file of so many bytes."""

    def __init__(self, size: int) -> None:
        self._size, self._left = size, ALWAYS + FOR_EACH_BYTE * size

    def spend(self, cost: int) -> None:
        """Raises Damaged where it is more than is left."""
        self._left -= cost
        if self._left < 0:
            most = (ALWAYS + FOR_EACH_BYTE * self._size) >> 20
            raise Damaged(f"its {self._size} bytes unpack to more than {most} MiB")


def messages(file: BinaryIO) -> Iterator[tuple[Channel, str | None, Message]]:
    """Each message with its channel and the name of its schema (None where it has none), chunked or not, in any of the
    format's compressions. The summary at the end is not looked at: the file may have none, or one that is wrong. What
    was cut short at its end is left out. Raises Damaged for the rest, before it unpacks more than `MOST_CHUNK`.
    """
    size = os.fstat(file.fileno()).st_size
    if (magic := file.read(len(MCAP0_MAGIC))) != MCAP0_MAGIC:
        raise Damaged("no MCAP file" if magic else "it is empty")
    told, budget = Channels({}, {}), ReadBudget(size)
    while len(prefix := file.read(Prefix.size)) == Prefix.size:
        code, length = Prefix.unpack(prefix)
        if code == Opcode.DATA_END:
            return
        if code not in (Opcode.CHUNK, Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE):
            if length > size:
                return
            file.seek(length, os.SEEK_CUR)  # attachments, metadata, indices, and what later versions add
            continue
        if length > MOST_CHUNK:
            raise Damaged(f"a part of it has {length >> 20} MiB, and none may have more than {MOST_CHUNK >> 20}")
        body = file.read(length)
        if len(body) < length:
            return
        if code == Opcode.CHUNK:
            try:
                data = _unpacked(Chunk.read(_stream(body)), budget)
            except Torn:
                if _over(file):
                    return
                raise
            for place, kind, end in _inside(data):
                yield from _taken(kind, data[place:end], told, budget)
        else:
            yield from _taken(code, body, told, budget)


def _taken(code: int, body: bytes, told: Channels, budget: ReadBudget) -> Iterator[tuple[Channel, str | None, Message]]:
    if code == Opcode.SCHEMA:
        schema = Schema.read(_stream(body))
        told.schemas[schema.id] = schema.name
    elif code == Opcode.CHANNEL:
        told.define(Channel.read(_stream(body)))
    elif code == Opcode.MESSAGE:
        message = Message.read(_stream(body), len(body))
        if (channel := told.channels.get(message.channel_id)) is None:
            raise Damaged(f"a message is of channel {message.channel_id}, which is none")
        if len(body) > MOST_MESSAGE:
            raise Damaged(f"a message has {len(body) >> 20} MiB, and none may have more than {MOST_MESSAGE >> 20}")
        containers = body.count(b"[") + body.count(b"{")
        budget.spend(len(body) + CONTAINER * containers + VALUE * body.count(b","))
        yield channel, told.schemas.get(channel.schema_id), message


def _inside(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each record in a chunk where its body begins, its opcode, and where it ends."""
    place = 0
    while place < len(data):
        if len(data) - place < Prefix.size:
            raise Damaged("a chunk ends amid a record")
        code, length = Prefix.unpack_from(data, place)
        place += Prefix.size
        if length > len(data) - place:
            raise Damaged("a chunk ends amid a record")
        yield place, code, place + length
        place += length


def _unpacked(chunk: Chunk, budget: ReadBudget) -> bytes:
    """What a chunk says that it holds is checked before anything is unpacked, and again by what comes out."""
    size = chunk.uncompressed_size
    if size > MOST_CHUNK:
        raise Damaged(f"a chunk says that it unpacks to {size >> 20} MiB, and none may to more than {MOST_CHUNK >> 20}")
    budget.spend(size)
    try:
        data = _decompressed(chunk, size + 1)
    except (EOFError, RuntimeError, zstandard.ZstdError) as error:
        raise Torn(f"a chunk cannot be unpacked: {error}") from None
    if len(data) > size:
        raise Damaged(f"a chunk says that it unpacks to {size} bytes, and it is more")
    if len(data) < size:
        raise Torn(f"a chunk says that it unpacks to {size} bytes, and it is {len(data)}")
    if chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc:
        raise Torn("a chunk's checksum is another")
    return data


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


def _over(file: BinaryIO) -> bool:
    """Whether nothing follows but the zeros that a file system leaves where it could not write any more."""
    return not any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 16), b""))


def _stream(body: bytes) -> ReadDataStream:
    return ReadDataStream(BytesIO(body))
