"""Pictures that a client sends, in the record at a rate of their own (foxglove.CompressedImage)."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from rtcontrol.envs.base import Environment
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_parts import RemotePicture, RemotePictures

# A second's worth at the most; they wait for the recorder's next turn, which is half a second away at most.
WAITING = 10


class ReceivedPictures:
    """At most `hz` a second, as they came; what is late is not made up for. `anchor_ns`: UTC minus CLOCK_MONOTONIC."""

    def __init__(self, pictures: RemotePictures, hz: float, anchor_ns: int) -> None:
        self._every_ns, self._due_ns, self._anchor_ns = round(1e9 / hz), 0, anchor_ns
        self._waiting: deque[RemotePicture] = deque(maxlen=WAITING)
        pictures.taken = self._take

    def _take(self, one: RemotePicture, now_ns: int) -> None:
        # On the transport's thread: what takes time is done on the recorder's.
        if now_ns >= self._due_ns:
            late = now_ns - self._due_ns > self._every_ns
            self._due_ns = (now_ns if late else self._due_ns) + self._every_ns
            self._waiting.append(one)

    def waiting(self) -> Iterator[dict[str, Any]]:
        """Yield those that came since the last time, in JSON's values."""
        while self._waiting:
            one = self._waiting.popleft()
            utc_ns = one.t_ns + self._anchor_ns
            timestamp = {"sec": utc_ns // 10**9, "nsec": utc_ns % 10**9}
            data = base64.b64encode(one.data).decode()
            yield {"timestamp": timestamp, "frame_id": "world", "data": data, "format": one.format}


def received(env: Environment, hz: float, header: Mapping[str, Any]) -> ReceivedPictures | None:
    """Return those of a world behind a wire, where pictures are wanted; `header`: the recorder's."""
    if not hz or not isinstance(env, RemoteEnvironment):
        return None
    return ReceivedPictures(env.pictures, hz, header["clock_anchor"]["utc_minus_monotonic_ns"])
