"""The ZeroMQ transport of the server: one thread takes messages from the ROUTER socket, any thread sends.

The socket is used under a lock. A thread that sends takes the lock if it is free and sends at once, which spares the
way over another thread; otherwise the message waits for the router's thread. libzmq's file descriptor signals an edge,
which any use of the socket may consume: a thread that sent looks whether there is something to take, and wakes the
router's thread.
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
from dataclasses import dataclass
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
MAX_WAITING = 16_384  # messages that wait to be sent; more are dropped, and counted
# How long the last messages may take to leave. libzmq loses some of those that are sent right before the close.
LEAVE_S, LINGER_MS = 0.1, 300
RELEASE_S = 1.0  # a thread that sends has so long to end


class RouterConnection:
    """One DEALER, by the routing id that libzmq gave it."""

    __slots__ = ("_router", "closed", "identity", "key", "peer")

    def __init__(self, router: Router, identity: bytes, key: str | None, peer: str) -> None:
        self._router, self.identity, self.key, self.peer = router, identity, key, peer
        self.closed = False

    def send(self, message: Message) -> None:
        if not self.closed:
            self._router.send(self, encode_msgpack(message))

    def close(self) -> None:
        self.closed = True
        self._router.forget(self)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message as it came: its parts are cut off at the limits, `count` and `size` are not."""

    identity: bytes
    key: str | None
    parts: list[bytes]
    count: int
    size: int

    def decode(self, limits: Limits) -> Message:
        """Return the message. Raises WireError."""
        if self.count > limits.max_parts or self.size > limits.max_message_bytes:
            problem = f"A message of {self.count} parts and {self.size} bytes."
            hint = f"At most {limits.max_parts} parts and {limits.max_message_bytes} bytes."
            raise WireError(Code.TOO_LARGE, problem, hint)
        return decode_msgpack(self.parts, limits)


class Router:
    """Binds `endpoints`; `start` begins to serve. Raises UserError where it cannot."""

    def __init__(self, sessions: SessionManager, endpoints: Sequence[str], keys: Path | None) -> None:
        _raise_file_limit()
        self._sessions, self._limits = sessions, sessions.options.limits
        self._context: zmq.Context[Any] = zmq.Context()
        self._guard = ZmqAuth.for_endpoints(self._context, endpoints, keys)
        self._socket = router_socket(self._context)
        self._connections: dict[bytes, RouterConnection] = {}
        # Names of connections in the log: a routing id would help to guess the next one.
        self._numbers = itertools.count(1)
        self._waiting: deque[tuple[RouterConnection, list[bytes]]] = deque()  # to be sent
        self._using = threading.Lock()  # the socket
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = self._closed = False
        self._thread = threading.Thread(target=self._serve, name="router", daemon=True)
        try:
            self._guard.apply(self._socket)
            _profile(self._socket, self._limits)
            self.endpoints = [self._bind(endpoint) for endpoint in endpoints]
        except BaseException:
            self._release()
            raise

    def start(self) -> None:
        self._thread.start()

    def send(self, connection: RouterConnection, parts: list[bytes]) -> None:
        """Send a message after those that wait, or let it wait for the router's thread; any thread."""
        if self._closed:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._sessions.counts["dropped"] += 1
            return
        self._waiting.append((connection, parts))
        if not self._using.acquire(blocking=False):
            os.eventfd_write(self._wake, 1)
            return
        try:
            lost = self._flush()
            if threading.current_thread() is not self._thread and self._readable():
                os.eventfd_write(self._wake, 1)
        finally:
            self._using.release()
        self._lose(lost)

    def _flush(self) -> list[RouterConnection]:
        """Send what waits; return the connections whose peers are gone. What a full or lost peer does not take is
        dropped, and counted. The lock is held."""
        lost = []
        while self._waiting:
            connection, parts = self._waiting.popleft()
            try:
                self._socket.send_multipart([connection.identity, *parts], zmq.NOBLOCK)
            except zmq.Again:  # it does not read: its pipe is full
                self._sessions.counts["dropped"] += 1
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._sessions.counts["dropped"] += 1
                lost.append(connection)
        return lost

    def _lose(self, lost: list[RouterConnection]) -> None:
        """Forget connections whose peers are gone; the lock is not held."""
        for connection in lost:
            if not connection.closed:
                connection.close()
                self._sessions.disconnected(connection)

    def forget(self, connection: RouterConnection) -> None:
        if self._connections.get(connection.identity) is connection:
            self._connections.pop(connection.identity, None)

    def drop_revoked(self) -> None:
        """Close the connections whose keys are not listed any more."""
        for connection in list(self._connections.values()):
            if not self._guard.allowed(connection.key):
                self._sessions.disconnected(connection, revoked=True)

    def close(self) -> None:
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join(5.0)
        if self._using.acquire(timeout=RELEASE_S):  # what came after the thread's last look, such as the last bye
            self._flush()
            self._using.release()
        if self._connections:
            time.sleep(LEAVE_S)
        self._release()

    def _release(self) -> None:
        used = self._using.acquire(timeout=RELEASE_S)  # a thread that sends just now uses the socket
        self._closed = True
        self._socket.close(LINGER_MS)
        if used:
            self._using.release()
        self._guard.close()
        self._context.term()
        os.close(self._wake)

    def _bind(self, endpoint: str) -> str:
        self._socket.ipv6 = Endpoint.parse(endpoint).ipv6_only
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise UserError(f"--bind {endpoint} failed ({error}).", f"Write {FORM}; is the port free?") from None
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _readable(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    # -- the router's thread ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(int(self._socket.getsockopt(zmq.FD)), select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while not self._stopping:
            try:
                with self._using:
                    lost = self._flush()
                    arrival = self._receive(lost)
                self._lose(lost)
                if arrival is not None:
                    self._deliver(arrival)
                    continue
            except zmq.ContextTerminated:
                return
            except Exception:  # a fault with one message must not end the service to all
                log.exception("the router failed with a message")
                continue
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _receive(self, lost: list[RouterConnection]) -> Arrival | None:
        """Return the next message; None if there is none. `lost` takes connections as `_flush` returns them."""
        socket, limits = self._socket, self._limits
        try:
            identity = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        parts = list[bytes]()
        count = size = 0
        key: str | None = None
        while socket.getsockopt(zmq.RCVMORE):
            if self._guard.keyed and not count:
                frame = socket.recv(zmq.NOBLOCK, copy=False)
                part = frame.bytes
                with contextlib.suppress(zmq.ZMQError):  # a frame without a user has no key
                    key = str(frame.get("User-Id"))
            else:
                part = socket.recv(zmq.NOBLOCK)
            count += 1
            size += len(part)
            if count <= limits.max_parts and size <= limits.max_message_bytes:
                parts.append(part)
            elif count % DISCARD == 0:
                lost += self._flush()
        return Arrival(identity, key, parts, count, size)

    def _deliver(self, arrival: Arrival) -> None:
        connection = self._connections.get(arrival.identity)
        if connection is None:
            # A revoked key's transport connection is still up: it must not say hello again on it.
            if not self._guard.allowed(arrival.key):
                self._sessions.counts["dropped"] += 1
                return
            name = self._guard.name(arrival.key) or f"zmq-{next(self._numbers)}"
            connection = RouterConnection(self, arrival.identity, arrival.key, name)
            self._connections[arrival.identity] = connection
        self._sessions.take(connection, lambda: arrival.decode(self._limits))


def _profile(socket: zmq.Socket[bytes], limits: Limits) -> None:
    """Set what must be set before bind."""
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = HIGH_WATER
    socket.maxmsgsize = limits.max_message_bytes
    socket.handshake_ivl = HANDSHAKE_MS
    # No ZMTP heartbeats: libzmq 4.3.5 ends the process by an assertion when one falls due on a connection that is
    # closed while its queue is full. The protocol's own ping finds silent peers.
    socket.router_mandatory = 1
    socket.backlog = BACKLOG


def _raise_file_limit() -> None:
    """Take as many files as the system lets this process have: a thousand idle peers are no reason to refuse others."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems have a lower bound than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
