"""Pictures of the world for the record, drawn from the observations on their way into it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any


class Pictures:
    """At most `hz` a second. `draw` makes a PNG file of an epoch and an observation's data; it raises for data that it
    cannot draw, and no picture is made."""

    def __init__(self, draw: Callable[[int, Mapping[str, Any]], bytes], hz: float) -> None:
        self._draw, self._every_ns = draw, round(1e9 / hz)
        self._due_ns = 0

    def of(self, utc_ns: int, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """The picture of an observation event (foxglove.CompressedImage), None where none is due."""
        if "observation" not in event or utc_ns < self._due_ns:
            return None
        late = utc_ns - self._due_ns > self._every_ns
        self._due_ns = (utc_ns if late else self._due_ns) + self._every_ns
        try:
            data = base64.b64encode(self._draw(event["epoch"], event["data"])).decode()
        except Exception:  # what a world shows may be anything
            return None
        timestamp = {"sec": utc_ns // 10**9, "nsec": utc_ns % 10**9}
        return {"timestamp": timestamp, "frame_id": "world", "data": data, "format": "png"}
