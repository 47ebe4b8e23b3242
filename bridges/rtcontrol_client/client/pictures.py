"""Pictures of the client's world, on their way to the server: beside the session, so that nothing of it waits."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any

import zmq

from rtcontrol_client.client.core import Core
from rtcontrol_client.client.errors import ClientError, checked
from rtcontrol_client.client.link import Link
from rtcontrol_client.client.values import plain
from rtcontrol_client.wire import Code, WireError, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.messages import ErrorMessage, Picture
from rtcontrol_client.wire.pictures import JPEG, MAX_PICTURES_HZ, PICTURES, format_of

log = logging.getLogger(__name__)
ROOM_S = 10.0  # so long one waits for a connection, or for room on it; then that is made anew
ASTRAY = 10  # so many pictures that belong to no session are told of: another server may answer at this address
LOOK_MS = 20  # so often a newer one, or the end, is looked for meanwhile


def picture(data: Any, t_ns: int | None) -> Picture:
    """The file as a message; its session is the sender's to fill in. Raises ClientError: it is none, or too large."""
    now_ns = time.monotonic_ns()
    try:
        file = memoryview(data).tobytes()
    except (TypeError, ValueError, BufferError):
        what = f"A picture of the type {type(data).__name__}, which shows no bytes."
        raise ClientError(what, "Give a JPEG or PNG file's bytes.") from None
    with checked("picture"):
        fields = {"session": "-" * 16, "t_ns": now_ns if t_ns is None else plain(t_ns, "t_ns")}
        if isinstance(fields["t_ns"], int | float) and fields["t_ns"] > now_ns:
            raise ClientError(f"t_ns={fields['t_ns']} lies in the future.", "Use time.monotonic_ns() at the capture.")
        form = format_of(file) or ("jpeg" if file[:2] == JPEG[:2] else "png")
        return Picture.model_validate({**fields, "image": {"format": form, "data": file}})


class PictureSender:
    """Sends the newest of what it is given, by its own thread and connection. What cannot be sent is dropped. `counts`:
    `sent`, `dropped`, `refused`."""

    def __init__(self, link: Link[Core]) -> None:
        self.counts: Counter[str] = Counter()
        self._link, self._condition = link, threading.Condition()
        self._newest: Picture | None = None
        self._thread: threading.Thread | None = None
        self._closing = self._told_of_thread = False
        self._refusals: set[str] = set()  # that were logged
        self._astray = "", 0  # a session's token, and how many of its pictures no session was found for

    @property
    def wanted(self) -> bool:
        """Whether there is a session, with a server that takes pictures."""
        core = self._link.core
        return core.connection.open and core.welcome is not None and PICTURES in core.welcome.capabilities

    def give(self, one: Picture) -> bool:
        """Whether it will be sent, unless a newer one comes before, or there is no room."""
        with self._condition:
            taken = self.wanted and not self._closing and self._begun()
            self.counts["dropped"] += (not taken) + (taken and self._newest is not None)
            if taken:
                self._newest = one
                self._condition.notify_all()
        return taken

    def _begun(self) -> bool:
        """Whether the thread is there. Where none is to be had the session goes on without pictures."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="rtcontrol-pictures", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._told_of_thread:
                    log.warning("Pictures are not sent: %s. Let this process have one more.", error)
                self._told_of_thread = True
                return False
            self._thread = thread
        return True

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
                if socket is not None and where != self._link.address:  # the session went to another server
                    socket.close(0)
                    socket = None
                where = self._link.address
                socket = socket or self._link.beside(context)
                went = socket is not None and self._send(socket)
                if socket is not None and not went:
                    socket.close(0)
                    socket = None
                with self._condition:
                    self.counts["sent" if went else "dropped"] += 1
                    self._condition.wait_for(lambda: self._closing, 1 / MAX_PICTURES_HZ)
        except Exception:  # the session goes on without pictures
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

    def _take(self) -> Picture:
        with self._condition:
            newest, self._newest = self._newest, None
        assert newest is not None, "it was awaited, and nobody else takes it"
        return newest.model_copy(update={"session": self._link.core.token})

    def _send(self, socket: zmq.Socket[bytes]) -> bool:
        """The newest one as soon as there is room."""
        end = time.monotonic() + ROOM_S
        while not socket.poll(LOOK_MS, zmq.POLLOUT):
            if self._closing or time.monotonic() > end:
                self._take()
                return False
        self._hear(socket)
        try:
            socket.send_multipart(encode_msgpack(self._take()), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _hear(self, socket: zmq.Socket[bytes]) -> None:
        """What the server said of pictures before."""
        while socket.poll(0):
            try:
                told = decode_msgpack(socket.recv_multipart(zmq.NOBLOCK))
            except (WireError, zmq.Again):
                continue
            if not isinstance(told, ErrorMessage):
                continue
            self.counts["refused"] += 1 + told.dropped
            # A session that is not known any more is found on its own connection, too, and greeted anew.
            if told.code in (Code.SESSION, Code.STATE):
                token = self._link.core.token
                before = self._astray[1] if self._astray[0] == token else 0
                self._astray = token, before + 1
                if before + 1 < ASTRAY:
                    continue
            if told.code not in self._refusals:
                self._refusals.add(told.code)
                log.warning("The server does not take a picture (%s): %s %s", told.code, told.message, told.remedy)
