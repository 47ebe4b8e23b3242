"""The type of a camera's compressed images, read without a number a byte."""

from __future__ import annotations

import struct
from typing import Any

COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
DEFINITION = "std_msgs/Header header\nstring format\nuint8[] data"
PLAIN_CDR = (0, 1, 6, 7)  # encapsulations of a final type without members' headers (DDS-XTypes 1.3, table 60)


def read_bytes_whole(cls: Any) -> None:
    """Let the class of a CompressedImage read the file as bytes: cyclonedds makes a number of each byte, which takes
    milliseconds of a tick for a large one."""
    usual = cls.deserialize

    def deserialize(data: bytes, has_header: bool = True, use_version_2: bool | None = None) -> Any:
        kind = int.from_bytes(data[:2], "big")
        if not has_header or kind not in PLAIN_CDR:
            return usual(data, has_header=has_header, use_version_2=use_version_2)
        order, made = "<" if kind & 1 else ">", cls()
        made.header.stamp.sec, made.header.stamp.nanosec = struct.unpack_from(f"{order}iI", data, 4)
        frame, at = _octets(data, 12, order)
        form, at = _octets(data, at, order)
        made.header.frame_id, made.format = (text.rstrip(b"\0").decode() for text in (frame, form))
        made.data, _ = _octets(data, at, order)
        return made

    cls.deserialize = deserialize


def _octets(data: bytes, at: int, order: str) -> tuple[bytes, int]:
    """What stands behind its length, and where the next length is. Raises ValueError: it is cut off."""
    at += -at % 4
    try:
        (length,) = struct.unpack_from(f"{order}I", data, at)
    except struct.error:
        raise ValueError("it is cut off") from None
    if len(data) < (end := at + 4 + length):
        raise ValueError("it is cut off")
    return data[at + 4 : end], end
