"""Send pictures of the client's world on a separate connection, so that they do not delay observations."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import zmq

from rtcontrol_client.client.errors import wrap_errors
from rtcontrol_client.client.link import Link
from rtcontrol_client.client.values import capture_ns
from rtcontrol_client.wire import encode_msgpack
from rtcontrol_client.wire.messages import Picture
from rtcontrol_client.wire.pictures import JPEG, MAX_PICTURES_HZ, PICTURES, detect_format


def picture_message(data: Any, t_ns: int | None) -> Picture:
    """Return a picture message whose session is set later. Raises ClientError if `data` is not a picture file or is too
    large, and TypeError if it is not bytes."""
    file = memoryview(data).tobytes()
    with wrap_errors("picture"):
        form = detect_format(file) or ("jpeg" if file[:2] == JPEG[:2] else "png")
        image = {"format": form, "data": file}
        return Picture.model_validate({"session": "-" * 16, "t_ns": capture_ns(t_ns), "image": image})


class PictureSender:
    """Sends each picture immediately or drops it; `counts` has the numbers of `sent` and `dropped` pictures.
    Thread-safe."""

    def __init__(self, link: Link) -> None:
        self.counts: Counter[str] = Counter()
        self._link, self._lock = link, threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._address, self._next_send_s = "", 0.0

    def send(self, message: Picture) -> bool:
        """Send a picture; return False if this is not possible immediately, or if the server accepts no pictures."""
        with self._lock:
            sent = self._is_accepted() and self._send(message)
            self.counts["sent" if sent else "dropped"] += 1
        return sent

    def close(self) -> None:
        """Close the connection and drop pictures that are not sent yet."""
        with self._lock:
            if self._context is not None:
                self._context.destroy(0)
            self._context, self._address = None, ""

    def _is_accepted(self) -> bool:
        core = self._link.core
        accepts_pictures = core.session.welcome is not None and PICTURES in core.session.welcome.capabilities
        return core.connection.is_open and accepts_pictures and time.monotonic() >= self._next_send_s

    def _send(self, message: Picture) -> bool:
        if self._address != self._link.address:  # the session is now at another server
            if self._context is not None:
                self._context.destroy(0)
            self._context, self._address = zmq.Context(), self._link.address
            self._socket = self._link.wires.picture_socket(self._context)
        assert self._socket is not None, "the socket was made with the address"
        message = message.model_copy(update={"session": self._link.core.session.token})
        try:
            self._socket.send_multipart(encode_msgpack(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._next_send_s = time.monotonic() + 1 / MAX_PICTURES_HZ
        return True
