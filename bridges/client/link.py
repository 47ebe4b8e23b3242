"""The one thread that owns the client's socket: connects, reconnects, sends what is due, hears, ends what expired."""

from __future__ import annotations

import contextlib
import logging
import random
import socket as sockets
import threading
import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from rtcontrol.bridges.client.errors import ClientError
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.client.talk import Talk
from rtcontrol.bridges.wire import LIMITS, Message, WireError, decode_msgpack, encode_msgpack
from rtcontrol.bridges.wire.messages import Bye

NOBODY = "nobody answers"
HIGH_WATER = 64
CONNECT_NS = 2_000_000_000  # a connection that does not come up in this time is tried anew
DOMAIN = b"rtcontrol"
LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
LOST |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
log = logging.getLogger(__name__)


class Link:
    """Carries a Talk over a DEALER. `lock` guards the talk; `changed` is called, without the lock, in the link's thread
    whenever something a user may wait for has changed."""

    def __init__(self, endpoint: str, options: Options, listens: bool, changed: Callable[[], None]) -> None:
        self.endpoint, self.options, self.listens = endpoint, options, listens
        self.talk = Talk(options)
        self.lock = threading.Lock()
        self.trouble = NOBODY  # why there is no connection, for people
        self._changed = changed
        self._keys = options.key_pairs()
        if listens and self._keys is not None:
            raise ClientError("A client that listens uses no keys.", "Listen on loopback, or let the server bind.")
        self._closing = False
        self._wake_in, self._wake_out = sockets.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._up = False
        self._attempts = 0
        self._retry_ns = self._opened_ns = 0
        self._open_socket()
        self._thread = threading.Thread(target=self._run, name="rtcontrol-client", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something is to be sent; from any thread."""
        # A full pipe wakes as well; a closed one needs no waking.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def begin_close(self) -> None:
        """Let the thread say bye and end; from any thread."""
        if not self._closing:
            self._closing = True
            self.wake()

    def close(self) -> None:
        """Say bye and end the thread; takes milliseconds."""
        self.begin_close()
        if threading.current_thread() is not self._thread:
            self._thread.join(0.09)

    def closed(self) -> bool:
        """Whether the thread has ended, but for the release of its socket."""
        with self.lock:
            return self._closing and self.talk.error is not None

    # The thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception as error:  # a fault of ours must end safe, not silently
            log.exception("The client's thread failed.")
            with self.lock:
                self.talk.end(ClientError(f"The client failed ({type(error).__name__}: {error}).", "Report it."))
            self._changed()
        finally:
            with self.lock:
                if self.talk.open:
                    self._send([Bye(session=self.talk.token, reason="closed")])
                self.talk.end(ClientError("The client was closed.", "Connect anew."))
            self._changed()
            self._close_socket(linger_ms=50)
            self._wake_in.close()
            self._wake_out.close()

    def _turn(self) -> None:
        now_ns = time.monotonic_ns()
        with self.lock:
            if self._up and (self.talk.silent(now_ns) or self.talk.astray):
                another = "the server has another session on this connection"
                self.trouble = another if self.talk.astray else "the server is silent"
                self._lose()
                if self.listens:
                    # The connection is still there: whoever hangs at its other end is greeted as soon as it goes on.
                    self._up = True
                    self.talk.connected()
            if not self._up and not self.listens and now_ns - self._opened_ns > CONNECT_NS:
                self._retry_ns = self._retry_ns or now_ns
            if self._retry_ns and now_ns >= self._retry_ns and self.talk.error is None:
                self._close_socket(linger_ms=0)
                self._open_socket()
            version = self.talk.version
            self.talk.look(now_ns)
            if self._up:
                self._send(self.talk.due(now_ns))
            wake_ns = min(self.talk.wake_ns(), now_ns + 500_000_000) if self._up else now_ns + 100_000_000
            if self.talk.rule.expires_ns is not None:
                wake_ns = min(wake_ns, self.talk.rule.expires_ns + 1)
            if self._retry_ns and self.talk.error is None:
                wake_ns = min(wake_ns, self._retry_ns)
            changed = version != self.talk.version
        if changed:
            self._changed()
        # Rounded up: a timer that fires too early would spin.
        ready = dict(self._poller.poll(max(0, -(-(wake_ns - now_ns) // 1_000_000))))
        if self._wake_out.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                while self._wake_out.recv(4096):
                    pass
        if self._monitor in ready:
            self._events()
        if self._socket in ready:
            self._hear()

    def _hear(self) -> None:
        changed = False
        # Bounded, so that a flood cannot keep what is in force from ending; read without the lock, so that nobody else
        # waits for that.
        for _ in range(HIGH_WATER):
            try:
                parts = _receive(self._socket)
            except zmq.Again:
                break
            now_ns = time.monotonic_ns()
            try:
                message = decode_msgpack(parts)
            except WireError as error:
                with self.lock:
                    self.talk.counts.ignored[str(error.code)] += 1
                continue
            with self.lock:
                version = self.talk.version
                self.talk.hear(message, now_ns)
                self.talk.look(time.monotonic_ns())
                changed |= version != self.talk.version
                # A welcome, not just a connection: else one that turns us away were asked ten times a second.
                self._attempts = 0 if self.talk.open else self._attempts
        if changed:
            self._changed()

    def _send(self, messages: list[Message]) -> None:
        for i, message in enumerate(messages):
            try:
                self._socket.send_multipart(encode_msgpack(message), zmq.NOBLOCK)
            except zmq.Again:
                self.talk.unsaid(messages[i:])
                return
            self.talk.pulse.said(time.monotonic_ns())

    def _events(self) -> None:
        while True:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            kind = event["event"]
            with self.lock:
                if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._up, self._retry_ns = True, 0
                    self.trouble = "the server says nothing"
                    self.talk.connected()
                elif kind & LOST:
                    if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH or (
                        self._keys and not self._up and kind & ~zmq.EVENT_CLOSED
                    ):
                        self.trouble = "the server does not accept this key, or has another key itself"
                    elif kind & (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
                        self.trouble = "the server wants a key, or is no rtcontrol server"
                    elif kind == zmq.EVENT_DISCONNECTED:
                        closed = "the server closed the connection at once: it wants a key, or is no rtcontrol server"
                        self.trouble = "the connection was lost" if self._up else closed
                    self._lose()

    def _lose(self) -> None:
        """There is no connection any more: greet the next peer, or connect anew after a growing, random pause."""
        self.talk.lost()
        if self.listens:
            # The socket stays: whoever connects next is greeted.
            self._up = False
            return
        if not self._retry_ns:
            first, most = self.options.backoff_s
            pause_s = min(most, first * 2 ** min(self._attempts, 20)) * random.uniform(0.5, 1.0)
            self._attempts += 1
            self._retry_ns = time.monotonic_ns() + int(pause_s * 1e9)
        self._up = False

    def _open_socket(self) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.RCVHWM, HIGH_WATER),
            (zmq.MAXMSGSIZE, LIMITS.max_message_bytes),
            (zmq.IMMEDIATE, 1),
            (zmq.RECONNECT_IVL, -1),  # we do it ourselves, with a back-off, and know when
            (zmq.HANDSHAKE_IVL, 2000),
        ):
            self._socket.setsockopt(option, value)
        if self._keys is not None:
            pair, server = self._keys
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
        elif self.listens:
            # Without it bytes that are no ZeroMQ would reach us as messages.
            self._socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        events = LOST | zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(events)
        self._poller = zmq.Poller()
        for what in (self._socket, self._monitor, self._wake_out.fileno()):
            self._poller.register(what, zmq.POLLIN)
        self._retry_ns, self._opened_ns = 0, time.monotonic_ns()
        try:
            if self.listens:
                self._socket.bind(self.endpoint)
            else:
                self._socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            self._close_socket(linger_ms=0)
            raise ClientError(
                f"{self.endpoint} cannot be used ({error.strerror}).", "Give one such as tcp://127.0.0.1:5555."
            ) from None

    def _close_socket(self, linger_ms: int) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=linger_ms)


def _receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    """One message's parts; of one with too many, as many as show that. Raises zmq.Again."""
    parts = [socket.recv(zmq.NOBLOCK)]
    while socket.getsockopt(zmq.RCVMORE):
        part = socket.recv(zmq.NOBLOCK)
        if len(parts) <= LIMITS.max_parts:
            parts.append(part)
    return parts
