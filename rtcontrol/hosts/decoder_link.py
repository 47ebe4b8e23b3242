"""Sockets: of a session to a decoder's process, and of those whom any may connect to; waits for them that end."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import select
from collections.abc import Sequence
from typing import Any

import msgpack
import zmq

from rtcontrol.hosts.messages import PING, pack_request, unpack_reply
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, DecoderUnavailable

# For the process's life: to end a context is to wait for its sockets, which their sessions' threads must close.
_CONTEXT: zmq.Context[Any] = zmq.Context()
NUMBERS = itertools.count()


def router_socket(context: zmq.Context[Any]) -> zmq.Socket[bytes]:
    """Return a new ROUTER that numbers its peers from a random start.

    libzmq 4.3.5 gives each peer a number that counts up from two values of the C library's rand(), which it never
    seeds. A peer that claims the next number as its own id ends the process by an assertion, so rand() is seeded here.
    """
    # PyDLL keeps the interpreter's lock: no Python thread uses rand() between the two lines.
    ctypes.PyDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))
    return context.socket(zmq.ROUTER)


def dealer(endpoint: str, curve_key: bytes, identity: bytes = b"") -> zmq.Socket[bytes]:
    """Connected socket that keeps nothing for a peer that is not there; `identity` is what a ROUTER knows it by."""
    sock: zmq.Socket[bytes] = _CONTEXT.socket(zmq.DEALER)
    sock.linger = 0
    sock.immediate = 1
    sock.reconnect_ivl, sock.reconnect_ivl_max = 20, 640
    if identity:
        sock.routing_id = identity
    sock.curve_serverkey = curve_key
    sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
    sock.connect(endpoint)
    return sock


class _Poll(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class Files:
    """Waits for files to be readable, to the microsecond: poll() counts in whole milliseconds, and select() knows no
    descriptors above 1023."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = (_Poll * len(files))(*(_Poll(fd, select.POLLIN, 0) for fd in files))
        self._ppoll = ctypes.CDLL(None).ppoll

    def wait(self, timeout_ns: int) -> bool:
        """Whether one is readable within the time; a signal ends the wait."""
        timeout = _Timespec(*divmod(timeout_ns, 1_000_000_000))
        return bool(self._ppoll(self._files, len(self._files), ctypes.byref(timeout), None) > 0)


class WakeFile:
    """A file that is readable after `set` until `clear`; any thread may call them."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.files = Files([self.fd])

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is full: it is set
            os.eventfd_write(self.fd, 1)

    def clear(self) -> bool:
        """Whether it was set."""
        with contextlib.suppress(BlockingIOError):
            return os.eventfd_read(self.fd) > 0
        return False

    def __del__(self) -> None:
        os.close(self.fd)


class DecoderLink:
    """A session's sockets to one life of the decoder's process: one DEALER a lane. Made on one thread, then handed over
    for good to the loop's."""

    def __init__(self, answer: dict[str, Any], session_key: bytes, wake: WakeFile) -> None:
        self._wake = wake
        identity = b"%s/%d" % (session_key, next(NUMBERS))
        try:
            self._lanes = [dealer(endpoint, answer["key"], identity) for endpoint in answer["lanes"]]
        except zmq.ZMQError as error:  # no descriptors left, say: it may be tried again
            raise DecoderUnavailable(
                f"No socket to the decoder ({error}).", "Close some, or raise `ulimit -n`."
            ) from None
        self.threads = [(int(answer["pid"]), tid) for tid in answer["tids"]]
        self._files = Files([wake.fd, *(int(lane.getsockopt(zmq.FD)) for lane in self._lanes)])
        self._waiting: list[int | None] = [None] * len(self._lanes)

    def ready(self, timeout_ms: int) -> bool:
        """A round trip on every lane; False when there is no answer in time."""
        for lane in self._lanes:
            if not lane.poll(timeout_ms, zmq.POLLOUT):
                return False
            lane.send(PING)
            if not lane.poll(timeout_ms):
                return False
            lane.recv()
        return True

    def send(self, request: DecisionRequest) -> bool:
        """On an idle lane, else on the one that has waited longest (it answers the newest); False when it is cut."""
        waiting = self._waiting
        i = waiting.index(None) if None in waiting else min(range(len(waiting)), key=lambda n: waiting[n] or 0)
        try:
            self._lanes[i].send(pack_request(request), zmq.NOBLOCK)
        except zmq.Again:
            return False
        waiting[i] = request.tick
        return True

    def cancel(self, tick: int) -> None:
        if tick in self._waiting:
            with contextlib.suppress(zmq.Again):
                self._lanes[self._waiting.index(tick)].send(msgpack.packb(tick), zmq.NOBLOCK)

    def receive(self, timeout_ns: int) -> DecisionReply | None:
        """The next reply within the time, or None (possibly early)."""
        # A socket's file only says that something changed, so the sockets' state is asked before and after.
        reply = self._take()
        if reply is None and timeout_ns > 0 and self._files.wait(timeout_ns) and not self._wake.clear():
            reply = self._take()
        return reply

    def _take(self) -> DecisionReply | None:
        for i, lane in enumerate(self._lanes):
            if int(lane.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                body = lane.recv()
                if body != PING:
                    reply = unpack_reply(body)
                    if self._waiting[i] == reply.tick:
                        self._waiting[i] = None
                    return reply
        return None

    def close(self) -> None:
        for lane in self._lanes:
            lane.close(0)
