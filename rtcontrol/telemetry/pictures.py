"""Pictures of the world in the record, at a rate of their own (foxglove.CompressedImage)."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from rtcontrol.envs.base import Environment
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_pictures import RemotePicture, RemotePictures

# A second's worth at the most; they wait for the recorder's next turn, which is half a second away at most.
WAITING = 10


class PictureSource(Protocol):
    """What gives the recorder's thread pictures."""

    def of(self, utc_ns: int, event: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
        """Those that are to be recorded with this event, each a foxglove.CompressedImage."""


class PictureRate:
    """At most `hz` a second; what is late is not made up for."""

    def __init__(self, hz: float) -> None:
        self._every_ns, self._due_ns = round(1e9 / hz), 0

    def due(self, now_ns: int) -> bool:
        """Whether one is due; it is taken then."""
        if now_ns < self._due_ns:
            return False
        late = now_ns - self._due_ns > self._every_ns
        self._due_ns = (now_ns if late else self._due_ns) + self._every_ns
        return True


class Pictures:
    """Drawn from what is observed. `draw` makes a PNG file of an epoch and an observation's data; it raises for data
    that it cannot draw, and no picture is made."""

    def __init__(self, draw: Callable[[int, Mapping[str, Any]], bytes], hz: float) -> None:
        self._draw, self._rate = draw, PictureRate(hz)

    def of(self, utc_ns: int, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The picture of an observation event, where one is due."""
        if "observation" not in event or not self._rate.due(utc_ns):
            return []
        try:
            data = self._draw(event["epoch"], event["data"])
        except Exception:  # what a world shows may be anything
            return []
        return [compressed_image(utc_ns, "png", data)]


class ReceivedPictures:
    """Those that a client sent, as they came. `anchor_ns`: UTC minus CLOCK_MONOTONIC."""

    def __init__(self, pictures: RemotePictures, hz: float, anchor_ns: int) -> None:
        self._rate, self._anchor_ns = PictureRate(hz), anchor_ns
        self._waiting: deque[RemotePicture] = deque(maxlen=WAITING)
        pictures.taken = self._take

    def _take(self, one: RemotePicture, now_ns: int) -> None:
        # On the transport's thread: what takes time is done on the recorder's.
        if self._rate.due(now_ns):
            self._waiting.append(one)

    def of(self, utc_ns: int, event: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Those that came since the last event."""
        while self._waiting:
            one = self._waiting.popleft()
            yield compressed_image(one.t_ns + self._anchor_ns, one.format, one.data)


def received(env: Environment, hz: float, header: Mapping[str, Any]) -> ReceivedPictures | None:
    """Of a world behind a wire, where pictures are wanted; `header`: the recorder's."""
    if not hz or not isinstance(env, RemoteEnvironment):
        return None
    return ReceivedPictures(env.pictures, hz, header["clock_anchor"]["utc_minus_monotonic_ns"])


def compressed_image(utc_ns: int, form: str, data: bytes) -> dict[str, Any]:
    """A file as a foxglove.CompressedImage, in JSON's values."""
    timestamp = {"sec": utc_ns // 10**9, "nsec": utc_ns % 10**9}
    return {"timestamp": timestamp, "frame_id": "world", "data": base64.b64encode(data).decode(), "format": form}
