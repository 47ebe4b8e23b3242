"""Make records like other programs: rewritten with the MCAP library, or hostile."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import zstandard
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, Header, McapRecord, Message, Schema
from mcap.writer import MCAP0_MAGIC, CompressionType, IndexType, Writer

Entry = tuple[Schema | None, Channel, Message]


def entries_of(record: Path) -> list[Entry]:
    with record.open("rb") as file:
        return [*make_reader(file).iter_messages()]


def rewritten(
    entries: Iterable[Entry], out: Path, more: Callable[[Writer, int], None] = lambda writer, i: None, **options: Any
) -> Path:
    """Write the messages to a file with other channel and schema numbers; `more` may write between them."""
    with out.open("wb") as file:
        writer = Writer(file, **options)
        writer.start(library="ros2 bag; \x1b[31mlibmcap 9")
        for n in range(5):
            writer.register_schema(f"taken{n}", "jsonschema", b"{}")
        known: dict[int, int] = {}
        for i, (schema, channel, message) in enumerate(entries):
            if channel.id not in known:
                named = writer.register_schema(schema.name, schema.encoding, schema.data) if schema else 0
                known[channel.id] = writer.register_channel(channel.topic, channel.message_encoding, named)
            writer.add_message(
                known[channel.id], message.log_time, message.data, message.publish_time, message.sequence
            )
            more(writer, i)
        writer.finish()
    return out


def scans(writer: Writer, i: int) -> None:
    """Write a ROS 2 topic in CDR next to ours, and a topic with the name of one of ours."""
    if i % 7 == 0:
        named = writer.register_schema("sensor_msgs/msg/LaserScan", "ros2msg", b"float32[] ranges")
        other = writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data")
        for topic, schema in (("/scan", named), ("/observation", other)):
            number = writer.register_channel(topic, "cdr", schema)
            writer.add_message(number, i, b"\0\1\0\0abc", i)


TOOLS: dict[str, dict[str, Any]] = {
    "uncompressed, small chunks": {"compression": CompressionType.NONE, "chunk_size": 1000},
    "no indices": {
        "index_types": IndexType.NONE,
        "repeat_channels": False,
        "repeat_schemas": False,
        "use_statistics": False,
        "enable_crcs": False,
    },
    "merged, unchunked": {"more": scans, "use_chunking": False},
}


def parts(*records: McapRecord) -> bytes:
    builder = RecordBuilder()
    for record in records:
        record.write(builder)
    return bytes(builder.end())


def file_of(*records: McapRecord | bytes) -> bytes:
    start = MCAP0_MAGIC + parts(Header("", "x"))
    return start + b"".join(record if isinstance(record, bytes) else parts(record) for record in records)


OURS = Schema(1, b"{}", "jsonschema", "rtcontrol.tick"), Channel(1, "/tick", "json", {}, 1)


def message(data: bytes, channel: int = 1) -> Message:
    return Message(channel, 0, data, 0, 0)


def packed(data: Iterable[bytes], size: int) -> Chunk:
    """Return a chunk of the pieces that claims a size."""
    compressor = zstandard.ZstdCompressor().compressobj()
    body = b"".join([*map(compressor.compress, data), compressor.flush()])
    return Chunk("zstd", body, 0, 0, 0, size)


def chunk_of(data: bytes) -> Chunk:
    """Return a chunk with one message."""
    whole = parts(*OURS, message(data))
    return packed([whole], len(whole))


def spaces() -> bytes:
    """Return an event of 16 MiB that packs to nearly nothing."""
    return b'{"kind":' + b" " * ((1 << 24) - 100) + b"1}"


GIB = [bytes(1 << 20)] * 1024
HEADER = message(json.dumps({"header": {}}).encode())
# A part of the error text, and a small file that unpacks to a GiB or is not a record.
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "honest size": ("unpacks to too many", lambda: file_of(packed(GIB, 1 << 30), HEADER)),
    "false size": ("size of 1000 bytes, or its checksum", lambda: file_of(packed(GIB, 1000), HEADER)),
    "many chunks": ("unpacks to too many", lambda: file_of(*[chunk_of(spaces())] * 200)),
    "huge message": ("a message has 1", lambda: file_of(*OURS, message(spaces() + bytes(1 << 20)))),
    "deep": ("RecursionError", lambda: file_of(chunk_of(b"[" * 200_000), HEADER)),
    "huge part": ("a part of 1152921504606846", lambda: file_of(struct.pack("<BQ", Opcode.MESSAGE, 1 << 60), HEADER)),
    "unknown compression": ("'xz'", lambda: file_of(Chunk("xz", b"abc", 0, 0, 0, 3), HEADER)),
    "unknown channel": ("KeyError: 7", lambda: file_of(message(b"{}", 7))),
    "not JSON": ("UnicodeDecodeError", lambda: file_of(*OURS, message(b"\xff\1\0\0abc"))),
}
