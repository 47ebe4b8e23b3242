"""Events to the bytes of an MCAP file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from mcap.writer import CompressionType, Writer

from rtcontrol.telemetry.channels import CHANNELS, schema, schema_name, topic_of

# Of a larger array only type and shape are written: a camera's pictures would fill the disk.
MOST_NUMBERS = 4096
# Of one event: readers take no larger message (`messages.MOST_MESSAGE`).
MOST_BYTES = 1 << 23


def encoded(event: Mapping[str, Any]) -> bytes:
    """An event as JSON. What a world shows, or a client says, may be anything: where JSON has no such value, it stands
    as text; and where one is larger than a record takes, how large it is."""
    try:
        made = _json(event)
    except Exception:
        event = {name: plain(value) for name, value in event.items()}
        made = _json(event)
    if len(made) > MOST_BYTES:
        made = _json({name: _outline(value) for name, value in event.items()})
    return made


def _outline(value: Any) -> Any:
    size, most = len(_json(value)), MOST_BYTES // 16
    if size <= most:
        return value
    return value[: most // 8] if isinstance(value, str) else {"unreadable": f"{size} bytes"}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False).encode()


def plain(value: Any) -> Any:
    """As JSON takes it, in containers of its own."""
    try:
        return _sound(value)
    except Exception as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def _sound(value: Any) -> Any:
    """The value as JSON takes it. Raises what a value raises that cannot even be text, or has no end."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _sound(one) for name, one in value.items()}
    return [_sound(one) for one in value] if isinstance(value, list) else _sound(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray):
        return [*value] if len(value) <= MOST_NUMBERS else {"dtype": "bytes", "shape": [len(value)]}
    if (shape := getattr(value, "shape", None)) is not None and hasattr(value, "tolist"):
        small = math.prod(shape) <= MOST_NUMBERS
        return value.tolist() if small else {"dtype": str(value.dtype), "shape": [*shape]}
    return [*value] if isinstance(value, tuple | set | frozenset) else str(value)


class Encoder:
    """Events to the bytes of an MCAP file, a chunk for each `take`."""

    def __init__(self) -> None:
        self.chunks = 0
        self._out = ByteQueue()
        self._writer = Writer(self._out, compression=CompressionType.ZSTD)
        self._writer.start(profile="", library="rtcontrol")
        self._channels: dict[str, int] = {}
        for topic in CHANNELS:
            made = json.dumps(schema(topic), separators=(",", ":")).encode()
            number = self._writer.register_schema(schema_name(topic), "jsonschema", made)
            self._channels[topic] = self._writer.register_channel(topic, "json", number)

    def add(self, utc_ns: int, event: dict[str, Any]) -> None:
        self._writer.add_message(self._channels[topic_of(event)], utc_ns, encoded(event), utc_ns)

    def take(self) -> bytes:
        """What came since the last time."""
        self.chunks += 1
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
