"""Pictures of the client's world on their way to the server: on their own connection, so that no observation waits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import zmq

from rtcontrol_client.client.errors import checked
from rtcontrol_client.client.link import Link
from rtcontrol_client.client.values import instant
from rtcontrol_client.wire import encode_msgpack
from rtcontrol_client.wire.messages import Picture
from rtcontrol_client.wire.pictures import JPEG, MAX_PICTURES_HZ, PICTURES, format_of


def picture(data: Any, t_ns: int | None) -> Picture:
    """Return the file as a message without its session. Raises ClientError: not a picture, or too large; TypeError: not
    bytes."""
    file = memoryview(data).tobytes()
    with checked("picture"):
        form = format_of(file) or ("jpeg" if file[:2] == JPEG[:2] else "png")
        image = {"format": form, "data": file}
        return Picture.model_validate({"session": "-" * 16, "t_ns": instant(t_ns), "image": image})


class PictureSender:
    """Sends at once, or drops what finds no room; answers are not read. `counts`: `sent`, `dropped`. Thread-safe."""

    def __init__(self, link: Link) -> None:
        self.counts: Counter[str] = Counter()
        self._link, self._lock = link, threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._address, self._next_s = "", 0.0

    def send(self, message: Picture) -> bool:
        """Return whether it was sent: there is a session with a server that takes pictures, and room."""
        with self._lock:
            sent = self._wanted() and self._send(message)
            self.counts["sent" if sent else "dropped"] += 1
        return sent

    def close(self) -> None:
        """Drop what waits."""
        with self._lock:
            if self._context is not None:
                self._context.destroy(0)
            self._context, self._address = None, ""

    def _wanted(self) -> bool:
        core = self._link.core
        taken = core.session.welcome is not None and PICTURES in core.session.welcome.capabilities
        return core.connection.open and taken and time.monotonic() >= self._next_s

    def _send(self, message: Picture) -> bool:
        if self._address != self._link.address:  # the session's server is another one
            if self._context is not None:
                self._context.destroy(0)
            self._context, self._address = zmq.Context(), self._link.address
            self._socket = self._link.wires.picture_socket(self._context)
        assert self._socket is not None, "it has an address"
        message = message.model_copy(update={"session": self._link.core.session.token})
        try:
            self._socket.send_multipart(encode_msgpack(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._next_s = time.monotonic() + 1 / MAX_PICTURES_HZ
        return True
