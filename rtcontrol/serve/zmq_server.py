"""The ZeroMQ transport of the server: one thread takes messages from the ROUTER socket, any thread sends.

A thread that sends takes the socket's lock if it is free, and sends at once; else the message waits for the router's
thread. libzmq's file descriptor signals an edge, which any use of the socket may consume: a thread that sent looks
whether there is something to take, and wakes the router's thread.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import zmq

from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.zmq_auth import ZmqAuth, bind
from rtcontrol_client.wire import Message, decode_msgpack, encode_msgpack

log = logging.getLogger("rtcontrol.serve")

MAX_WAITING = 16_384  # messages that wait to be sent; more are dropped, and counted
LEAVE_S, LINGER_MS = 0.1, 300  # for the last messages: libzmq loses some that are sent right before the close


class RouterConnection:
    """One DEALER, by the routing id that libzmq gave it."""

    def __init__(self, router: Router, identity: bytes, key: str | None, peer: str) -> None:
        self._router, self.identity, self.key, self.peer = router, identity, key, peer
        self.closed = False

    def send(self, message: Message) -> None:
        if not self.closed:
            self._router.send(self, encode_msgpack(message))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._router.connections.pop(self.identity, None)


class Router:
    """Binds `endpoints`; `start` begins to serve. Raises UserError where it cannot."""

    def __init__(self, sessions: SessionManager, endpoints: Sequence[str], keys: Path | None) -> None:
        self._sessions = sessions
        self._context = zmq.Context()
        self._guard = ZmqAuth(self._context, endpoints, keys)
        self._socket = self._guard.router(sessions.options.limits.max_message_bytes)
        self.connections: dict[bytes, RouterConnection] = {}
        self._numbers = itertools.count(1)  # for the log: a routing id would help to guess the next one
        self._waiting: deque[tuple[RouterConnection, list[bytes]]] = deque()  # to be sent
        self._using = threading.Lock()  # the socket
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="router", daemon=True)
        try:
            self.endpoints = [bind(self._socket, endpoint) for endpoint in endpoints]
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        self._thread.start()

    def send(self, connection: RouterConnection, parts: list[bytes]) -> None:
        """Send a message after those that wait, or let it wait for the router's thread; any thread."""
        if len(self._waiting) >= MAX_WAITING or self._socket.closed:
            self._sessions.dropped += 1
            return
        self._waiting.append((connection, parts))
        if not self._using.acquire(blocking=False):
            os.eventfd_write(self._wake, 1)
            return
        try:
            self._flush()
            if threading.current_thread() is not self._thread and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                os.eventfd_write(self._wake, 1)
        finally:
            self._using.release()

    def _flush(self) -> None:
        """Send what waits. What a full or lost peer does not take is dropped, and counted. The lock is held."""
        while self._waiting:
            connection, parts = self._waiting.popleft()
            try:
                self._socket.send_multipart([connection.identity, *parts], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                self._sessions.dropped += 1
                if error.errno == zmq.EHOSTUNREACH:
                    connection.close()
                    self._sessions.disconnected(connection)

    def drop_revoked(self) -> None:
        """Close the connections whose keys are not listed any more."""
        for connection in list(self.connections.values()):
            if not self._guard.allowed(connection.key):
                self._sessions.disconnected(connection, revoked=True)

    def close(self) -> None:
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join(5.0)
        used = self._using.acquire(timeout=1.0)  # a thread that sends just now uses the socket
        self._flush()  # what came after the thread's last look, such as the last bye
        if self.connections:
            time.sleep(LEAVE_S)
        self._socket.close(LINGER_MS)
        if used:
            self._using.release()
        self._guard.close()
        self._context.term()
        os.close(self._wake)

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(int(self._socket.getsockopt(zmq.FD)), select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while not self._stopping:
            try:
                with self._using:
                    self._flush()
                    message = self._guard.receive(self._socket)
                if message is not None:
                    self._deliver(*message)
                    continue
            except Exception:  # a fault with one message must not end the service to all
                log.exception("the router failed with a message")
                continue
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _deliver(self, identity: bytes, key: str | None, parts: list[bytes]) -> None:
        connection = self.connections.get(identity)
        if connection is None and not self._guard.allowed(key):
            return  # a revoked key's transport connection is still up: it must not say hello again on it
        if connection is None:
            name = self._guard.name(key) or f"zmq-{next(self._numbers)}"
            connection = self.connections[identity] = RouterConnection(self, identity, key, name)
        self._sessions.take(connection, lambda: decode_msgpack(parts, self._sessions.options.limits))
