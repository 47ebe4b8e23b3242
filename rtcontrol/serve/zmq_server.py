"""The ZeroMQ transport of the server: one thread receives from the ROUTER socket, any thread may send.

A sending thread takes the socket's lock if it is free, and sends at once; else the message waits for the router's
thread. libzmq's file descriptor is edge-triggered, and any use of the socket may consume the edge: so a thread that has
sent checks for incoming messages, and wakes the router's thread.
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

MAX_WAITING = 16_384  # messages that wait to be sent; further ones are dropped and counted
LEAVE_S, LINGER_MS = 0.1, 300  # time for the last messages: libzmq loses some that are sent right before closing


class RouterConnection:
    """The connection of one DEALER socket, identified by libzmq's routing id."""

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
    """The server's ROUTER socket, bound to `endpoints`; `start` starts serving. Raises UserError if binding fails."""

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
        """Send a message after the waiting ones, or queue it for the router's thread. Any thread may call this."""
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
        """Send the waiting messages; drop and count those that a full or lost peer does not take. Needs the lock."""
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
        used = self._using.acquire(timeout=1.0)  # another thread may be sending
        self._flush()  # messages queued after the thread's last pass, such as the last bye
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
            except Exception:  # an error with one message must not end the service for all
                log.exception("the router failed with a message")
                continue
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _deliver(self, identity: bytes, key: str | None, parts: list[bytes]) -> None:
        connection = self.connections.get(identity)
        if connection is None and not self._guard.allowed(key):
            return  # a revoked client is still connected: it must not say hello again
        if connection is None:
            name = self._guard.name(key) or f"zmq-{next(self._numbers)}"
            connection = self.connections[identity] = RouterConnection(self, identity, key, name)
        self._sessions.take(connection, lambda: decode_msgpack(parts, self._sessions.options.limits))
