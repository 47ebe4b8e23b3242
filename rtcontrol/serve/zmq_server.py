"""The ZeroMQ transport of the server: one thread receives from the ROUTER socket, and any thread may send.

If the socket's lock is free, a thread sends its message at once; otherwise it enqueues the message for the router's
thread. libzmq's file descriptor is edge-triggered, so a send may consume the signal that a message has arrived.
Therefore a thread that has sent a message checks for received messages, and wakes the router's thread if there are any.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import zmq

from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.sessions import KEY_REVOKED
from rtcontrol.serve.zmq_auth import ZmqAuth, bind
from rtcontrol_client.wire import Message, decode_msgpack, encode_msgpack

log = logging.getLogger("rtcontrol.serve")

MAX_QUEUED = 16_384  # maximum messages in the send queue; further messages are dropped and counted
# Time to send the last messages before (s) and after (ms) closing the socket. Without LAST_SEND_S, libzmq loses some.
LAST_SEND_S, LINGER_MS = 0.1, 300


class ClientStream:
    """The TCP or Unix stream of a ZeroMQ connection, by its file descriptor, which belongs to libzmq. A ROUTER cannot
    disconnect a client, which could go on sending; libzmq closes a stream that was shut down."""

    def __init__(self, fd: int) -> None:
        self._fd, self._inode = fd, 0
        with contextlib.suppress(OSError):  # the file was closed meanwhile
            self._inode = os.fstat(fd).st_ino

    def shut(self) -> None:
        """Shut the stream down, unless its descriptor belongs to another file by now."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fd)) as stream:
            if os.fstat(stream.fileno()).st_ino == self._inode:
                stream.shutdown(socket.SHUT_RDWR)


class RouterConnection:
    """A connection to the DEALER socket of one client. `identity` is the routing id that libzmq assigns."""

    def __init__(self, router: Router, identity: bytes, key: str | None, peer: str, stream: ClientStream) -> None:
        self._router, self.identity, self.key, self.peer, self._stream = router, identity, key, peer, stream
        self.closed = False

    def send(self, message: Message) -> None:
        if not self.closed:
            self._router.send(self, encode_msgpack(message))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._router.connections.pop(self.identity, None)
            self._stream.shut()


class Router:
    """The server's ROUTER socket, bound to `endpoints`, and its thread. Raises UserError if binding fails."""

    def __init__(self, sessions: SessionManager, endpoints: Sequence[str], keys: Path | None) -> None:
        self._sessions = sessions
        self._context = zmq.Context()
        self._auth = ZmqAuth(self._context, endpoints, keys)
        self._socket = self._auth.create_router_socket(sessions.options.limits.max_message_bytes)
        self.connections: dict[bytes, RouterConnection] = {}
        self._numbers = itertools.count(1)  # logs show numbers, because a routing id would reveal the next
        self._send_queue: deque[tuple[RouterConnection, list[bytes]]] = deque()
        self._socket_lock = threading.Lock()
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
        """Enqueue a message, and send the queue if the socket is free. Any thread may call this."""
        if len(self._send_queue) >= MAX_QUEUED or self._socket.closed:
            self._sessions.dropped += 1
            return
        self._send_queue.append((connection, parts))
        if not self._socket_lock.acquire(blocking=False):
            os.eventfd_write(self._wake, 1)
            return
        try:
            self._flush()
            if threading.current_thread() is not self._thread and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                os.eventfd_write(self._wake, 1)
        finally:
            self._socket_lock.release()

    def _flush(self) -> None:
        """Send all queued messages. The caller must hold the socket's lock. Drop and count a message if the client's
        queue is full or the connection is lost."""
        while self._send_queue:
            connection, parts = self._send_queue.popleft()
            try:
                self._socket.send_multipart([connection.identity, *parts], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                self._sessions.dropped += 1
                if error.errno == zmq.EHOSTUNREACH:
                    connection.close()
                    self._sessions.disconnected(connection)

    def drop_revoked(self) -> None:
        """Close the connections whose keys are no longer on the allow-list."""
        for connection in list(self.connections.values()):
            if not self._auth.is_allowed(connection.key):
                self._sessions.disconnected(connection, KEY_REVOKED)

    def close(self) -> None:
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join(5.0)
        locked = self._socket_lock.acquire(timeout=1.0)  # wait for another thread that sends
        self._flush()  # send messages that were queued after the thread's last pass, such as byes
        if self.connections:
            time.sleep(LAST_SEND_S)
        self._socket.close(LINGER_MS)
        if locked:
            self._socket_lock.release()
        self._auth.close()
        self._context.term()
        os.close(self._wake)

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(int(self._socket.getsockopt(zmq.FD)), select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while not self._stopping:
            try:
                with self._socket_lock:
                    self._flush()
                    message = self._auth.receive(self._socket)
                if message is not None:
                    self._deliver(*message)
                    continue
            except Exception:  # a bad message must not end this thread
                log.exception("the router failed to process a message")
                continue
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _deliver(self, identity: bytes, key: str | None, frames: list[zmq.Frame]) -> None:
        connection = self.connections.get(identity)
        if connection is None and not self._auth.is_allowed(key):
            return  # the key of this connected client was revoked, so ignore its messages
        if connection is None:
            name = self._auth.client_name(key) or f"zmq-{next(self._numbers)}"
            stream = ClientStream(int(frames[-1].get(zmq.SRCFD)))
            connection = self.connections[identity] = RouterConnection(self, identity, key, name, stream)
        limits = self._sessions.options.limits
        size = sum(map(len, frames))
        self._sessions.receive(connection, lambda: decode_msgpack([frame.bytes for frame in frames], limits), size)
