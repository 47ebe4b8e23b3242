"""Events to the bytes of an MCAP file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from mcap.writer import CompressionType, Writer

from rtcontrol.record.channels import CHANNELS, schema, schema_name, topic_of

# Of a larger array only type and shape are written: a camera's pictures would fill the disk.
MOST_NUMBERS = 4096


def encoded(event: Mapping[str, Any]) -> bytes:
    """An event as JSON. Raises what a value raises that is none."""
    return json.dumps(event, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if (size := getattr(value, "size", None)) is not None and hasattr(value, "tolist"):
        return value.tolist() if size <= MOST_NUMBERS else {"dtype": str(value.dtype), "shape": list(value.shape)}
    return list(value) if isinstance(value, tuple | set | frozenset) else str(value)


class Encoder:
    """Events to the bytes of an MCAP file, a chunk for each `take`."""

    def __init__(self) -> None:
        self._out = ByteQueue()
        self._writer = Writer(self._out, compression=CompressionType.ZSTD)
        self._writer.start(profile="", library="rtcontrol")
        self._channels: dict[str, int] = {}
        for topic in CHANNELS:
            made = json.dumps(schema(topic), separators=(",", ":")).encode()
            number = self._writer.register_schema(schema_name(topic), "jsonschema", made)
            self._channels[topic] = self._writer.register_channel(topic, "json", number)

    def add(self, utc_ns: int, event: dict[str, Any]) -> None:
        try:
            data = encoded(event)
        except Exception as error:  # what a world shows may be anything
            data = encoded({**event, "data": {"unreadable": f"{type(error).__name__}: {error}"}})
        self._writer.add_message(self._channels[topic_of(event)], utc_ns, data, utc_ns)

    def take(self) -> bytes:
        """What came since the last time."""
        self._writer.flush()
        return self._out.take()

    def finish(self) -> bytes:
        """The end of the file: its index."""
        self._writer.finish()
        return self._out.take()


class ByteQueue(BytesIO):
    """Knows where it stands in the file, and holds only what was not taken."""

    def __init__(self) -> None:
        super().__init__()
        self._before = 0

    def tell(self) -> int:
        return self._before + super().tell()

    def take(self) -> bytes:
        data = self.getvalue()
        self._before += len(data)
        self.seek(0)
        self.truncate()
        return data
