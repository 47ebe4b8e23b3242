"""One ZeroMQ DEALER, used by one thread; `wake` is for the others."""

from __future__ import annotations

import contextlib
import socket as sockets
from collections.abc import Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message

from rtcontrol.bridges.client.errors import ClientError
from rtcontrol.bridges.wire import LIMITS, curve

HIGH_WATER = 64
LINGER_MS = 200  # how long a last message may take to leave
UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
NO_KEY = zmq.EVENT_HANDSHAKE_FAILED_AUTH
NO_SERVER = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
GONE = zmq.EVENT_DISCONNECTED
EVENTS = UP | NO_KEY | NO_SERVER | GONE | zmq.EVENT_CLOSED


class Dealer:
    """`open` makes the socket anew (a client that listens binds it once). Raises ClientError: no endpoint."""

    def __init__(self, endpoint: str, keys: tuple[curve.KeyPair, str] | None, listens: bool) -> None:
        self._endpoint, self._keys, self._listens = endpoint, keys, listens
        self._context = zmq.Context()  # its own, so that closing it waits for what is still to leave
        self._socket: zmq.Socket[bytes] | None = None
        self._wake_in, self._wake_out = sockets.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self.open()

    def open(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)
        socket = self._socket = self._context.socket(zmq.DEALER)
        socket.linger, socket.sndhwm, socket.rcvhwm, socket.immediate = LINGER_MS, HIGH_WATER, HIGH_WATER, True
        socket.maxmsgsize, socket.handshake_ivl = LIMITS.max_message_bytes, 2000
        socket.reconnect_ivl = -1  # core.py does it, with a back-off, and knows when
        if self._keys is not None:
            pair, socket.curve_serverkey = self._keys[0], self._keys[1].encode()
            socket.curve_publickey, socket.curve_secretkey = pair.public.encode(), pair.secret.encode()
        elif self._listens:
            socket.zap_domain = b"rtcontrol"  # without it bytes that are no ZeroMQ would reach us as messages
        self._monitor: zmq.Socket[bytes] = socket.get_monitor_socket(EVENTS)
        self._poller = zmq.Poller()
        for each in (socket, self._monitor, self._wake_out.fileno()):
            self._poller.register(each, zmq.POLLIN)
        try:
            if self._listens:
                socket.bind(self._endpoint)
            else:
                socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            self.close()
            what = f"{self._endpoint} cannot be used ({error.strerror})."
            raise ClientError(what, "Give one such as tcp://127.0.0.1:5555.") from None

    def close(self) -> None:
        """Let go, once what was sent has left, or LINGER_MS is over."""
        self._monitor.close(linger=0)
        self._context.destroy()
        self._wake_in.close()
        self._wake_out.close()

    def wake(self) -> None:
        """End a `wait`; from any thread."""
        # A full pipe wakes as well; a closed one needs no waking.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def wait(self, timeout_ms: int) -> None:
        """Until there is something to `receive`, or of `events`."""
        if self._wake_out.fileno() in dict(self._poller.poll(timeout_ms)):
            with contextlib.suppress(BlockingIOError):
                while self._wake_out.recv(4096):
                    pass

    def events(self, up: bool) -> Iterator[str | None]:
        """What the connection, which was `up` or not, came to: None: it is there; else why it is not."""
        while self._monitor.poll(0):
            kind = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if kind == UP:
                yield None
            elif kind == NO_KEY or (self._keys and not up and kind != zmq.EVENT_CLOSED):
                yield "the server does not accept this key, or has another key itself"
            elif kind & NO_SERVER:
                yield "the server wants a key, or is no rtcontrol server"
            elif kind == GONE and not up:
                yield "the server closed the connection at once: it wants a key, or is no rtcontrol server"
            else:
                yield "the connection was lost" if kind == GONE else ""
            up = kind == UP

    def send(self, parts: list[bytes]) -> bool:
        """Whether there was room for it."""
        assert self._socket is not None
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[bytes] | None:
        """One message's parts (of one with too many, as many as show that), or None."""
        assert self._socket is not None
        parts: list[bytes] = []
        with contextlib.suppress(zmq.Again):
            while not parts or self._socket.rcvmore:
                part = self._socket.recv(zmq.NOBLOCK)
                if len(parts) <= LIMITS.max_parts:
                    parts.append(part)
        return parts or None
