"""The ZeroMQ side of the server: one thread takes messages in from the ROUTER socket, any thread sends.

The socket is used under a lock. Whoever sends takes the lock if it is free and sends at once, which spares the way over
another thread; otherwise the message is queued for the router's thread. libzmq's file descriptor signals an edge, which
any use of the socket may consume: whoever used it looks whether there is something to take in, and wakes the router's
thread.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from rtcontrol.hosts.decoder_link import router_socket
from rtcontrol.models.errors import UserError
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.zmq_auth import ZmqAuth
from rtcontrol_client.wire import Code, Limits, Message, WireError, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.endpoint import FORM, Endpoint

log = logging.getLogger("rtcontrol.serve")

HIGH_WATER = 64
HANDSHAKE_MS = 2_000
BACKLOG = 256
# Parts of one oversized message between two looks at what waits to be sent.
DISCARD = 4_096
# What may wait for the router's thread; more is lost, and counted.
MAX_WAITING = 16_384
# How long the last messages may take to leave. libzmq loses some of those that are sent right before the close.
LEAVE_S, LINGER_MS = 0.1, 300
RELEASE_S = 1.0  # whoever sends has so long to end


class RouterConnection:
    """One DEALER, by the routing id that libzmq gave it."""

    __slots__ = ("_router", "closed", "identity", "key", "peer")

    def __init__(self, router: Router, identity: bytes, key: str | None, peer: str) -> None:
        self._router, self.identity, self.key, self.peer = router, identity, key, peer
        self.closed = False

    def send(self, message: Message) -> None:
        """Encodes here, on the caller's thread."""
        if not self.closed:
            self._router.post(self, encode_msgpack(message))

    def close(self) -> None:
        self.closed = True
        self._router.forget(self)


class Router:
    """Binds `endpoints`; `start` begins to serve. UserError where it cannot."""

    def __init__(self, admission: SessionManager, endpoints: Sequence[str], keys: Path | None) -> None:
        _raise_limit()
        self._admission, self._limits = admission, admission.options.limits
        self._context: zmq.Context[Any] = zmq.Context()
        self._guard = ZmqAuth.for_endpoints(self._context, endpoints, keys)
        self._socket = router_socket(self._context)
        self._connections: dict[bytes, RouterConnection] = {}
        # Names of connections in the log: a routing id would help to guess the next one.
        self._numbers = itertools.count(1)
        self._out: deque[tuple[RouterConnection, list[bytes]]] = deque()
        self._using = threading.Lock()  # the socket
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = self._closed = False
        self._thread = threading.Thread(target=self._serve, name="router", daemon=True)
        try:
            self._guard.apply(self._socket)
            _profile(self._socket, self._limits)
            self.endpoints = [self._attach(endpoint) for endpoint in endpoints]
        except BaseException:
            self._release()
            raise

    def start(self) -> None:
        self._thread.start()

    def post(self, connection: RouterConnection, parts: list[bytes]) -> None:
        """Send a message, or queue it for the router's thread; any thread. What waits goes first."""
        if self._closed:
            return
        gone = False
        if not self._out and self._using.acquire(blocking=False):
            try:
                if not self._out:
                    gone = not self._send(connection, parts)
                    if threading.current_thread() is not self._thread and self._arrived():
                        os.eventfd_write(self._wake, 1)
                    return
            finally:
                self._using.release()
                if gone:
                    self._lose(connection)
        if len(self._out) >= MAX_WAITING:
            self._admission.counts["dropped"] += 1
            return
        self._out.append((connection, parts))
        os.eventfd_write(self._wake, 1)

    def forget(self, connection: RouterConnection) -> None:
        if self._connections.get(connection.identity) is connection:
            self._connections.pop(connection.identity, None)

    def allowed(self, connection: object) -> bool:
        """Whether the holder of the connection's key may stay."""
        return not isinstance(connection, RouterConnection) or self._guard.allowed(connection.key)

    def close(self) -> None:
        """Send what waits, then end."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join(5.0)
        if not self._thread.is_alive():
            self._flush()  # its last look may have been before the last bye
        if self._connections:
            time.sleep(LEAVE_S)
        self._release()

    def _release(self) -> None:
        used = self._using.acquire(timeout=RELEASE_S)  # who sends just now uses the socket
        self._closed = True
        self._socket.close(LINGER_MS)
        if used:
            self._using.release()
        self._guard.close()
        self._context.term()
        os.close(self._wake)

    def _attach(self, endpoint: str) -> str:
        self._socket.ipv6 = Endpoint.parse(endpoint).ipv6_only
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise UserError(f"--bind {endpoint} failed ({error}).", f"Write {FORM}; is the port free?") from None
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _arrived(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    # -- the router's thread ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(int(self._socket.getsockopt(zmq.FD)), select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while not self._stopping:
            try:
                self._turn()
            except zmq.ContextTerminated:
                return
            except Exception:  # a fault with one message must not end the service to all
                log.exception("the router stumbled")
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _turn(self) -> None:
        """Take in and send until there is nothing of either."""
        self._flush()
        while True:
            with self._using:
                arrived = self._take()
            if arrived is None:
                if not self._out:
                    return
            else:
                self._hand_in(*arrived)
            self._flush()

    def _take(self) -> tuple[bytes, str | None, list[bytes], int, int] | None:
        """Take one message in: routing id, key, parts (cut off at the limits), their number and size."""
        socket, limits = self._socket, self._limits
        try:
            identity = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        parts: list[bytes] = []
        count = size = 0
        key: str | None = None
        part: bytes
        while socket.getsockopt(zmq.RCVMORE):
            if self._guard.keyed and not count:
                frame = socket.recv(zmq.NOBLOCK, copy=False)
                part = frame.bytes
                with contextlib.suppress(zmq.ZMQError):  # a frame without a user is nobody's
                    key = str(frame.get("User-Id"))
            else:
                part = socket.recv(zmq.NOBLOCK)
            count += 1
            size += len(part)
            if count <= limits.max_parts and size <= limits.max_message_bytes:
                parts.append(part)
            elif count % DISCARD == 0:
                self._flush_locked()
        return identity, key, parts, count, size

    def _hand_in(self, identity: bytes, key: str | None, parts: list[bytes], count: int, size: int) -> None:
        limits = self._limits
        connection = self._connections.get(identity)
        if connection is None:
            # A revoked key's transport connection is still up: it must not say hello again on it.
            if not self._guard.allowed(key):
                self._admission.counts["dropped"] += 1
                return
            name = self._guard.name(key) or f"zmq-{next(self._numbers)}"
            connection = self._connections[identity] = RouterConnection(self, identity, key, name)
        if not self._admission.admit(connection):
            return
        if count > limits.max_parts or size > limits.max_message_bytes:
            what = f"A message of {count} parts and {size} bytes."
            remedy = f"At most {limits.max_parts} parts and {limits.max_message_bytes} bytes."
            self._admission.refuse(connection, WireError(Code.TOO_LARGE, what, remedy))
            return
        try:
            message = decode_msgpack(parts, limits)
        except WireError as error:
            self._admission.refuse(connection, error)
        else:
            self._admission.receive(connection, message)

    def _flush(self) -> None:
        """Send what waits."""
        if self._out:
            with self._using:
                lost = self._flush_locked()
            for connection in lost:
                self._lose(connection)

    def _flush_locked(self) -> list[RouterConnection]:
        lost = []
        while self._out:
            connection, parts = self._out.popleft()
            if not self._send(connection, parts):
                lost.append(connection)
        return lost

    def _send(self, connection: RouterConnection, parts: list[bytes]) -> bool:
        """Whether the peer is still there. The lock is held."""
        socket = self._socket
        try:
            socket.send(connection.identity, zmq.NOBLOCK | zmq.SNDMORE)
            for part in parts[:-1]:
                socket.send(part, zmq.NOBLOCK | zmq.SNDMORE)
            socket.send(parts[-1], zmq.NOBLOCK)
        except zmq.Again:
            # It does not read: its pipe is full.
            self._admission.counts["dropped"] += 1
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._admission.counts["dropped"] += 1
            return False
        return True

    def _lose(self, connection: RouterConnection) -> None:
        """The peer is gone; the lock is not held."""
        if not connection.closed:
            connection.close()
            self._admission.disconnected(connection)


def _profile(socket: zmq.Socket[bytes], limits: Limits) -> None:
    """What must be set before bind."""
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = HIGH_WATER
    socket.maxmsgsize = limits.max_message_bytes
    socket.handshake_ivl = HANDSHAKE_MS
    # No ZMTP heartbeats: libzmq 4.3.5 ends the process by an assertion when one falls due on a connection that is
    # closed while its queue is full. The protocol's own ping finds silent peers.
    socket.router_mandatory = 1
    socket.backlog = BACKLOG


def _raise_limit() -> None:
    """Take as many files as the system lets this process have: a thousand idle peers are no reason to refuse others."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems have a lower bound than they tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
