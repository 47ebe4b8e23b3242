"""Records as other programs leave them: rewritten with MCAP's own library, or made to do harm."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lz4.frame
import zstandard
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, Header, McapRecord, Message, Schema
from mcap.writer import MCAP0_MAGIC, CompressionType, IndexType, Writer

Found = tuple[Schema | None, Channel, Message]


def found_in(record: Path) -> list[Found]:
    with record.open("rb") as file:
        return [*make_reader(file).iter_messages()]


def rewritten(
    found: Iterable[Found],
    out: Path,
    more: Callable[[Writer, int], None] = lambda writer, i: None,
    library: str = "mcap-cli",
    **options: Any,
) -> Path:
    """The messages in a file of other channel and schema numbers; `more` may write between them."""
    with out.open("wb") as file:
        writer = Writer(file, **options)
        writer.start(library=library)
        for n in range(5):
            writer.register_schema(f"taken{n}", "jsonschema", b"{}")
        known: dict[int, int] = {}
        for i, (schema, channel, one) in enumerate(found):
            if channel.id not in known:
                named = writer.register_schema(schema.name, schema.encoding, schema.data) if schema else 0
                known[channel.id] = writer.register_channel(channel.topic, channel.message_encoding, named)
            writer.add_message(known[channel.id], one.log_time, one.data, one.publish_time, one.sequence)
            more(writer, i)
        writer.finish()
    return out


def scans(writer: Writer, i: int) -> None:
    """A topic of ROS 2 beside ours, in CDR, and one that is named as one of ours."""
    if i % 7 == 0:
        named = writer.register_schema("sensor_msgs/msg/LaserScan", "ros2msg", b"float32[] ranges")
        other = writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data")
        for topic, schema in (("/scan", named), ("/observation", other)):
            number = writer.register_channel(topic, "cdr", schema)
            writer.add_message(number, i, b"\0\1\0\0abc", i)


TOOLS: dict[str, dict[str, Any]] = {
    "lz4": {"compression": CompressionType.LZ4},
    "uncompressed, small chunks": {"compression": CompressionType.NONE, "chunk_size": 1000},
    "no indices": {
        "index_types": IndexType.NONE,
        "repeat_channels": False,
        "repeat_schemas": False,
        "use_statistics": False,
        "enable_crcs": False,
    },
    "merged, unchunked": {"more": scans, "use_chunking": False, "library": "ros2 bag; \x1b[31mlibmcap 9"},
}


def parts(*records: McapRecord) -> bytes:
    builder = RecordBuilder()
    for record in records:
        record.write(builder)
    return bytes(builder.end())


def file_of(*records: McapRecord | bytes) -> bytes:
    start = MCAP0_MAGIC + parts(Header("", "x"))
    return start + b"".join(one if isinstance(one, bytes) else parts(one) for one in records)


OURS = Schema(1, b"{}", "jsonschema", "rtcontrol.tick"), Channel(1, "/tick", "json", {}, 1)


def message(data: bytes, channel: int = 1) -> Message:
    return Message(channel, 0, data, 0, 0)


def packed(data: Iterable[bytes], size: int, kind: str = "zstd", says: int | None = None) -> Chunk:
    """A chunk of the pieces; `says`: another size than it has."""
    if kind == "zstd":
        compressor = zstandard.ZstdCompressor().compressobj()
        body = b"".join([*map(compressor.compress, data), compressor.flush()])
    else:
        frame = lz4.frame.LZ4FrameCompressor()
        body = b"".join([frame.begin(), *map(frame.compress, data), frame.flush()])
    return Chunk(kind, body, 0, 0, 0, size if says is None else says)


def bombs() -> dict[str, bytes]:
    """Small files that unpack to a GiB and more, each another way."""
    header = message(json.dumps({"header": {}}).encode())
    spaces = b'{"kind":' + b" " * ((1 << 24) - 100) + b"1}"
    many = [packed([parts(*OURS, message(spaces))], len(parts(*OURS, message(spaces))))] * 200
    deep = parts(*OURS, message(b"[" * 200_000))
    gib = [bytes(1 << 20)] * 1024
    return {
        "it says so": file_of(packed(gib, 1 << 30), header),
        "it says less": file_of(packed(gib, 1 << 30, says=1000), header),
        "lz4 says less": file_of(packed(gib, 1 << 30, "lz4", says=1000), header),
        "many chunks": file_of(*many),
        "deep": file_of(packed([deep], len(deep)), header),
        "a huge message": file_of(*OURS, message(spaces + bytes(1 << 20))),
        "a huge part": file_of(struct.pack("<BQ", Opcode.MESSAGE, 1 << 60) + bytes(1000)),
        "unknown compression": file_of(Chunk("xz", b"abc", 0, 0, 0, 3), header),
        "no such channel": file_of(message(b"{}", 7)),
        "in CDR": file_of(OURS[0], Channel(1, "/tick", "cdr", {}, 1), message(b"\0\1\0\0abc")),
    }
