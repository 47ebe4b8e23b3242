"""A session's host of a decoder that is in a process of its own, and its socket; waits for sockets that end."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import os
import pickle
import select
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from rtcontrol.hosts.pool import PooledHost
from rtcontrol.hosts.protocol import DeciderSource, DecisionReply, DecisionRequest, DecoderUnavailable

log = logging.getLogger("rtcontrol.host")

# For the process's life: to end a context is to wait for its sockets, which their sessions' threads must close.
_CONTEXT: zmq.Context[Any] = zmq.Context()
NUMBERS = itertools.count()
PING = b""


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
    """A session's socket to one life of the decoder's process. Made on one thread, then handed over for good to the
    loop's."""

    def __init__(self, life: Mapping[str, Any], session_key: bytes, wake: WakeFile) -> None:
        self._wake = wake
        try:
            self._socket = dealer(life["endpoint"], life["key"], b"%s/%d" % (session_key, next(NUMBERS)))
        except zmq.ZMQError as error:  # no descriptors left, say: it may be tried again
            raise DecoderUnavailable(
                f"No socket to the decoder ({error}).", "Close some, or raise `ulimit -n`."
            ) from None
        self.threads = [(int(life["pid"]), tid) for tid in life["tids"]]
        self._files = Files([wake.fd, int(self._socket.getsockopt(zmq.FD))])

    def ready(self, timeout_ms: int) -> bool:
        """A round trip; False when there is no answer in time."""
        if not self._socket.poll(timeout_ms, zmq.POLLOUT):
            return False
        self._socket.send(PING)
        return bool(self._socket.poll(timeout_ms)) and self._socket.recv() == PING

    def send(self, request: DecisionRequest) -> bool:
        """Everything but the raw observation; False when the process is cut off."""
        return self._send(request)

    def cancel(self, tick: int) -> None:
        self._send(tick)

    def receive(self, timeout_ns: int) -> DecisionReply | None:
        """The next reply within the time, or None (possibly early)."""
        # A socket's file only says that something changed, so the socket's state is asked before and after.
        reply = self._take()
        if reply is None and timeout_ns > 0 and self._files.wait(timeout_ns) and not self._wake.clear():
            reply = self._take()
        return reply

    def close(self) -> None:
        self._socket.close(0)

    def _send(self, message: DecisionRequest | int) -> bool:
        try:
            self._socket.send(pickle.dumps(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _take(self) -> DecisionReply | None:
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            reply: DecisionReply = pickle.loads(self._socket.recv())
            return reply
        return None


class RayHost(PooledHost):
    """One session's part of a `RayPool`, which it starts and ends where it is its `own`.

    Its loop's thread owns the link in use. The pool's thread keeps its `session`, under the pool's lock, and offers the
    link to each life of the process.
    """

    def __init__(self, pool: Any, source: DeciderSource, session: str, own: bool = False) -> None:
        super().__init__(pool, source, session, own, key=b"%d" % next(NUMBERS))
        self.last: DecisionRequest | None = None
        self.woken = WakeFile()
        self._link: DecoderLink | None = None
        self._offers: deque[DecoderLink] = deque()

    def submit(self, request: DecisionRequest) -> None:
        self._adopt()
        self.last = request
        if self._link is None or not self.session.up or not self._link.send(request):
            log.debug("tick %d was not sent: no connection", request.tick)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        self._adopt()
        if self._link is None:
            self.woken.files.wait(max(timeout_ns, 0))
            self.woken.clear()
            return None
        return self.noted(self._link.receive(timeout_ns))

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        link = self._offers[-1] if self._offers else self._link
        return () if link is None else link.threads

    def wake(self) -> None:
        self.woken.set()

    def cancel(self, tick: int) -> None:
        if self._link is not None:
            self._link.cancel(tick)

    def offer(self, link: DecoderLink) -> None:
        """Take a link to a process that is up, at the next use."""
        self._offers.append(link)

    def close(self) -> None:
        super().close()
        self._adopt()
        if self._link is not None:
            self._link.close()
        self._link = None

    def _adopt(self) -> None:
        while self._offers:
            if self._link is not None:
                self._link.close()
            self._link = self._offers.popleft()
