"""Manage the ZeroMQ socket of a client, the socket's monitor, and a pipe that wakes the waiting thread."""

from __future__ import annotations

import contextlib
import socket as sockets
from collections.abc import Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message

from rtcontrol_client.wire import LIMITS
from rtcontrol_client.wire.curve import KeyPair
from rtcontrol_client.wire.endpoint import Endpoint

HIGH_WATER = 64
PICTURE_BUFFER = 1 << 18  # bytes of the send buffer for pictures; in a larger buffer, pictures would wait
LINGER_MS = 200  # maximum time to send the last messages when the client closes
UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
NO_KEY = zmq.EVENT_HANDSHAKE_FAILED_AUTH
NO_SERVER = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
GONE = zmq.EVENT_DISCONNECTED
EVENTS = UP | NO_KEY | NO_SERVER | GONE | zmq.EVENT_CLOSED
Keys = tuple[KeyPair, str]  # (the client's key pair, the server's public key)


class ClientSockets:
    """Manages a single DEALER socket at a time; `address` is the server address of the newest socket.

    Only one thread may use this object, except for `wake` and `picture_socket`.
    """

    def __init__(self) -> None:
        self.address = ""
        self._keys: Keys | None = None
        self._ipv6 = True
        # With a separate context, `close` can wait until the last messages are sent.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._wake_in, self._wake_out = sockets.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._use_socket(self._context.socket(zmq.DEALER))

    def reset(self) -> None:
        """Replace the socket by a new one that is not connected."""
        self._close_socket()
        self._use_socket(self._context.socket(zmq.DEALER))

    def connect(self, address: str, keys: Keys | None) -> None:
        """Replace the socket by one that connects to the address. Raises zmq.ZMQError."""
        self._close_socket()
        self.address, self._keys, ipv6 = address, keys, Endpoint.parse(address).ipv6
        # libzmq tries only one address of a host name, so alternate between IPv4 and IPv6 with each connection.
        self._ipv6 = not self._ipv6 if ipv6 is None else ipv6
        socket = self._dealer(self._context, HIGH_WATER, LINGER_MS)
        socket.immediate = True
        socket.reconnect_ivl = -1  # libzmq must not reconnect, because the core does
        self._use_socket(socket)
        socket.connect(address)

    def picture_socket(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        """Return a second socket for the same server. It reconnects automatically and queues at most one message."""
        socket = self._dealer(context, 1, 0)
        socket.reconnect_ivl, socket.reconnect_ivl_max, socket.sndbuf = 100, 2000, PICTURE_BUFFER
        socket.heartbeat_ivl, socket.heartbeat_timeout = 2000, 6000  # reconnect to a silent server
        socket.connect(self.address)
        return socket

    def _dealer(self, context: zmq.Context[zmq.Socket[bytes]], max_messages: int, linger_ms: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket.ipv6, socket.linger, socket.sndhwm, socket.rcvhwm = self._ipv6, linger_ms, max_messages, max_messages
        socket.maxmsgsize, socket.handshake_ivl = LIMITS.max_message_bytes, 2000
        if self._keys is not None:
            pair, server_key = self._keys
            socket.curve_serverkey = server_key.encode()
            socket.curve_publickey, socket.curve_secretkey = pair.public.encode(), pair.secret.encode()
        return socket

    def _use_socket(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._monitor: zmq.Socket[bytes] = socket.get_monitor_socket(EVENTS)
        self._poller = zmq.Poller()
        for each in (socket, self._monitor, self._wake_out.fileno()):
            self._poller.register(each, zmq.POLLIN)

    def _close_socket(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def close(self) -> None:
        """Close the socket when all messages are sent, or after LINGER_MS."""
        self._monitor.close(linger=0)
        self._context.destroy()
        self._wake_in.close()
        self._wake_out.close()

    def wake(self) -> None:
        """End the current or the next `wait`."""
        # Errors can be ignored: a full pipe also wakes the thread, and if the pipe is closed, the thread has ended.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def wait(self, max_wait_ns: int) -> None:
        """Wait for a message, a connection event or `wake`, but not longer than `max_wait_ns`."""
        # Round up to milliseconds, because after a timeout that is too short, the caller would wait repeatedly.
        if self._wake_out.fileno() in dict(self._poller.poll(-(-max_wait_ns // 1_000_000))):
            with contextlib.suppress(BlockingIOError):
                while self._wake_out.recv(4096):
                    pass

    def send(self, parts: list[bytes]) -> bool:
        """Send a message; return False if the send buffer is full."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(parts, zmq.NOBLOCK)
            return True
        return False

    def receive(self) -> list[bytes]:
        """Return the parts of the next message, or an empty list if there is none; drop parts above the limit."""
        parts: list[bytes] = []
        with contextlib.suppress(zmq.Again):
            while not parts or self._socket.rcvmore:
                part = self._socket.recv(zmq.NOBLOCK)
                if len(parts) <= LIMITS.max_parts:
                    parts.append(part)
        return parts

    def events(self, was_up: bool) -> Iterator[str | None]:
        """Yield for each event None if the connection is up, else why it is down. `was_up`: it was up before."""
        while self._monitor.poll(0):
            kind = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if kind == UP:
                yield None
            elif kind == NO_KEY or (self._keys and not was_up and kind != zmq.EVENT_CLOSED):
                yield "the server does not accept this client's key, or the client has another key of the server"
            elif kind & NO_SERVER or (kind == GONE and not was_up):
                yield "the server requires a key, or does not use rtcontrol's protocol"
            else:
                yield "the connection was lost" if kind == GONE else ""
            was_up = kind == UP
