"""Pictures of the world in the record, at a rate of their own (foxglove.CompressedImage)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rtcontrol.envs.base import Environment
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_pictures import RemotePicture, RemotePictures


class PictureSource(Protocol):
    """What gives the recorder's thread pictures."""

    def of(self, utc_ns: int, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """The picture that is due with this event, None where none is."""


class PictureRate:
    """At most `hz` a second; what is late is not made up for."""

    def __init__(self, hz: float) -> None:
        self._every_ns, self._due_ns = round(1e9 / hz), 0

    def due(self, utc_ns: int) -> bool:
        return utc_ns >= self._due_ns

    def took(self, utc_ns: int) -> None:
        late = utc_ns - self._due_ns > self._every_ns
        self._due_ns = (utc_ns if late else self._due_ns) + self._every_ns


class Pictures:
    """Drawn from what is observed. `draw` makes a PNG file of an epoch and an observation's data; it raises for data
    that it cannot draw, and no picture is made."""

    def __init__(self, draw: Callable[[int, Mapping[str, Any]], bytes], hz: float) -> None:
        self._draw, self._rate = draw, PictureRate(hz)

    def of(self, utc_ns: int, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """The picture of an observation event, None where none is due."""
        if "observation" not in event or not self._rate.due(utc_ns):
            return None
        self._rate.took(utc_ns)
        try:
            data = self._draw(event["epoch"], event["data"])
        except Exception:  # what a world shows may be anything
            return None
        return compressed_image(utc_ns, "png", data)


class ReceivedPictures:
    """Those that a client sent: the newest one, if it was not recorded yet. `anchor_ns`: UTC minus CLOCK_MONOTONIC."""

    def __init__(self, pictures: RemotePictures, hz: float, anchor_ns: int) -> None:
        self._pictures, self._rate, self._anchor_ns = pictures, PictureRate(hz), anchor_ns
        self._last: RemotePicture | None = None

    def of(self, utc_ns: int, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """The newest picture, None where it is recorded, or none is due."""
        newest = self._pictures.newest
        if newest is None or newest is self._last or not self._rate.due(utc_ns):
            return None
        self._rate.took(utc_ns)
        self._last = newest
        return compressed_image(newest.t_ns + self._anchor_ns, newest.format, newest.data)


def received(env: Environment, hz: float, header: Mapping[str, Any]) -> ReceivedPictures | None:
    """Of a world behind a wire, where pictures are wanted; `header`: the recorder's."""
    if not hz or not isinstance(env, RemoteEnvironment):
        return None
    return ReceivedPictures(env.pictures, hz, header["clock_anchor"]["utc_minus_monotonic_ns"])


def compressed_image(utc_ns: int, form: str, data: bytes) -> dict[str, Any]:
    """A file as a foxglove.CompressedImage, in JSON's values."""
    timestamp = {"sec": utc_ns // 10**9, "nsec": utc_ns % 10**9}
    return {"timestamp": timestamp, "frame_id": "world", "data": base64.b64encode(data).decode(), "format": form}
