"""A robot's camera for people to see: a topic of compressed images, forwarded as they are. No model reads them."""

from __future__ import annotations

import time
from collections.abc import Callable

from rtcontrol_client import Client, ClientError
from rtcontrol_client.ros2.errors import Unmappable
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.ros2.network import Input
from rtcontrol_client.ros2.parts import Topic
from rtcontrol_client.wire.pictures import PICTURES

SILENT_S = 10.0  # a camera that says nothing for so long is told of


def feed_of(mapper: Mapper, read: Callable[[Topic], Input]) -> PictureFeed | None:
    """Of the camera that the file names, if it names one."""
    spec, topic = mapper.config.picture, mapper.picture
    return None if spec is None or topic is None else PictureFeed(read(topic), topic.name, spec.hz)


class PictureFeed:
    """Hands the newest picture of a topic to a client, `hz` times a second at most. `trouble`: why the last one was not
    sent, or that none comes; `count`: how many were handed over."""

    def __init__(self, source: Input, name: str, hz: float) -> None:
        self.trouble: str | None = None
        self.count = 0
        self._source, self._name, self._every_s, self._due_s = source, name, 1.0 / hz, 0.0
        self._heard_s = time.monotonic()

    def forward(self, client: Client | None) -> None:
        """Where one is due, and the server takes any. Never blocks."""
        now = time.monotonic()
        if now < self._due_s or client is None or not client.connected:
            return
        self._due_s = now + self._every_s
        if PICTURES not in client.welcome.capabilities:
            self.trouble = f"{self._name}: pictures are not sent: the server is of before, and takes none."
            return
        try:
            polled = self._source.poll()
            if polled is None:
                if now > self._heard_s + SILENT_S:
                    self.trouble = f"{self._name}: no picture has come for {SILENT_S:g} s. Look at the camera's node."
                return
            self._heard_s = now
            message, t_ns = polled
            self.count += client.send_picture(bytes(message.data), t_ns=t_ns)
            self.trouble = None
        except Unmappable as error:
            self.trouble = f"{self._name}: pictures are not sent: {error}."
        except ClientError as error:
            what = error.what.rstrip(".")
            self.trouble = f"{self._name}: pictures of the format {message.format!r:.60} are not sent: {what}."
