"""The host of a session whose decoder is in another process, and its socket to that process."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from rtcontrol.hosts.pool import PooledHost
from rtcontrol.hosts.protocol import (
    DeciderSource,
    DecisionReply,
    DecisionRequest,
    DecoderUnavailable,
    pack_request,
    unpack_reply,
)
from rtcontrol.hosts.sockets import FilePoll, WakeFile

log = logging.getLogger("rtcontrol.host")
NUMBERS = itertools.count()
READY_MS = 2_000
# This context is never terminated, because termination would wait until all sessions have closed their sockets.
_CONTEXT: zmq.Context[Any] = zmq.Context()
READY = b""


class DecoderLink:
    """A session's socket to one incarnation of the decoder's process. Only one thread at a time may use the link.

    Raises DecoderUnavailable if no socket can be opened."""

    def __init__(self, process_info: Mapping[str, Any], session_key: bytes, wake: WakeFile) -> None:
        self._wake = wake
        try:
            self._socket = sock = _CONTEXT.socket(zmq.DEALER)
            sock.linger = 0
            sock.immediate = 1  # drop messages while disconnected
            sock.reconnect_ivl, sock.reconnect_ivl_max = 20, 640
            sock.routing_id = b"%s/%d" % (session_key, next(NUMBERS))
            sock.curve_serverkey = process_info["key"]
            sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
            sock.connect(process_info["endpoint"])
        except zmq.ZMQError as error:  # there may be too many open files, so a retry may succeed
            hint = "Close some open files, or raise `ulimit -n`."
            raise DecoderUnavailable(f"The socket to the decoder cannot be opened ({error}).", hint) from None
        self.threads = [(int(process_info["pid"]), tid) for tid in process_info["tids"]]
        self._files = FilePoll([wake.fd, int(self._socket.getsockopt(zmq.FD))])

    def is_answering(self, timeout_ms: int) -> bool:
        """Send an empty message (READY), and return whether the process sends it back within the timeout."""
        if not self._socket.poll(timeout_ms, zmq.POLLOUT):
            return False
        self._socket.send(READY)
        return bool(self._socket.poll(timeout_ms)) and self._socket.recv() == READY

    def send(self, message: DecisionRequest | int) -> bool:
        """Send a request without its raw observation, or the number of a tick to cancel. Return False if there is no
        connection."""
        try:
            self._socket.send(pack_request(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_ns: int) -> DecisionReply | None:
        """Wait for the next reply, and return it. May return None before the timeout."""
        # The file descriptor of a ZeroMQ socket signals only changes of its state, so read before and after waiting.
        reply = self._next_reply()
        if reply is None and timeout_ns > 0 and self._files.wait(timeout_ns):
            reply = self._next_reply()
            if reply is None:
                self._wake.clear()
        return reply

    def close(self) -> None:
        self._socket.close(0)

    def _next_reply(self) -> DecisionReply | None:
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return unpack_reply(self._socket.recv())
        return None


class RayHost(PooledHost):
    """The host of one session of a `RayPool`. The pool's thread creates a link to each new process; the loop's thread
    uses the newest link."""

    def __init__(self, pool: Any, source: DeciderSource, session: str, owns_pool: bool = False) -> None:
        super().__init__(pool, source, session, owns_pool)
        self.key = b"%d" % next(NUMBERS)
        self.last_request: DecisionRequest | None = None
        self.wake_file = WakeFile()
        self._link: DecoderLink | None = None
        self._new_links: deque[DecoderLink] = deque()

    def submit(self, request: DecisionRequest) -> None:
        self._use_new_link()
        self.last_request = request
        if self._link is None or not self.up or not self._link.send(request):
            log.debug("tick %d was not sent: no connection", request.tick)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        self._use_new_link()
        if self._link is None:
            self.wake_file.files.wait(max(timeout_ns, 0))
            self.wake_file.clear()
            return None
        return self.record_reply(self._link.receive(timeout_ns))

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        link = self._new_links[-1] if self._new_links else self._link
        return () if link is None else link.threads

    def wake(self) -> None:
        self.wake_file.set()

    def cancel(self, tick: int) -> None:
        if self._link is not None:
            self._link.send(tick)

    def connect(self, process_info: Mapping[str, Any]) -> None:
        """Create a link to a new process. The next `submit` or `wait` uses this link. Raises DecoderUnavailable."""
        link = DecoderLink(process_info, self.key, self.wake_file)
        if not link.is_answering(READY_MS):
            link.close()
            raise DecoderUnavailable("The decoder's process does not answer at its socket.", "See `rtcontrol doctor`.")
        self._new_links.append(link)

    def close(self) -> None:
        super().close()
        self._use_new_link()
        if self._link is not None:
            self._link.close()
        self._link = None

    def _use_new_link(self) -> None:
        while self._new_links:
            if self._link is not None:
                self._link.close()
            self._link = self._new_links.popleft()
