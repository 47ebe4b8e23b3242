"""Pictures of the client's world, on their way to the server: beside the session, so that nothing of it waits."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import zmq

from rtcontrol_client.client.errors import ClientError, checked
from rtcontrol_client.client.link import Link
from rtcontrol_client.client.values import instant
from rtcontrol_client.wire import encode_msgpack
from rtcontrol_client.wire.messages import Picture
from rtcontrol_client.wire.pictures import JPEG, MAX_PICTURES_HZ, PICTURES, format_of

log = logging.getLogger(__name__)
ROOM_MS = 200  # so long one waits for a connection, or for room on it


def picture(data: Any, t_ns: int | None) -> Picture:
    """The file as a message; its session is the sender's to fill in. Raises ClientError: it is none, or too large."""
    try:
        file = memoryview(data).tobytes()
    except (TypeError, ValueError, BufferError):
        what = f"A picture of the type {type(data).__name__}, which shows no bytes."
        raise ClientError(what, "Give a JPEG or PNG file's bytes.") from None
    with checked("picture"):
        form = format_of(file) or ("jpeg" if file[:2] == JPEG[:2] else "png")
        image = {"format": form, "data": file}
        return Picture.model_validate({"session": "-" * 16, "t_ns": instant(t_ns), "image": image})


class PictureSender:
    """Sends the newest of what it is given, by its own thread and connection. What cannot be sent is dropped, and what
    the server says of it is not read. `counts`: `sent`, `dropped`."""

    def __init__(self, link: Link) -> None:
        self.counts: Counter[str] = Counter()
        self._link, self._condition = link, threading.Condition()
        self._newest: Picture | None = None
        self._thread: threading.Thread | None = None
        self._closing = False

    @property
    def wanted(self) -> bool:
        """Whether there is a session, with a server that takes pictures."""
        core = self._link.core
        return core.connection.open and core.welcome is not None and PICTURES in core.welcome.capabilities

    def give(self, one: Picture) -> bool:
        """Whether it will be sent, unless a newer one comes before, or there is no room."""
        with self._condition:
            taken = self.wanted and not self._closing
            self.counts["dropped"] += (not taken) + (taken and self._newest is not None)
            if taken:
                self._newest = one
                self._condition.notify_all()
            if taken and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rtcontrol-pictures", daemon=True)
                self._thread.start()
        return taken

    def close(self) -> None:
        """What waits is dropped."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()  # its own: the link's ends with the link
        socket: zmq.Socket[bytes] | None = None
        where = ""
        try:
            while self._await():
                if socket is None or where != self._link.address:  # the session went to another server
                    context.destroy(0)
                    context, where = zmq.Context(), self._link.address
                    socket = self._link.beside(context)
                went = socket is not None and self._send(socket)
                with self._condition:
                    self.counts["sent" if went else "dropped"] += 1
                    self._condition.wait_for(lambda: self._closing, 1 / MAX_PICTURES_HZ)
        except Exception:  # the session continues without pictures
            log.exception("Pictures are sent no more.")
            with self._condition:
                self._closing = True
        finally:
            context.destroy(0)

    def _await(self) -> bool:
        """Wait for a picture; False at the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._newest is not None)
            return not self._closing

    def _send(self, socket: zmq.Socket[bytes]) -> bool:
        """Send the newest one, if there is room soon."""
        there = socket.poll(ROOM_MS, zmq.POLLOUT)
        with self._condition:
            newest, self._newest = self._newest, None
        if not there or newest is None:
            return False
        message = newest.model_copy(update={"session": self._link.core.token})
        try:
            socket.send_multipart(encode_msgpack(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True
