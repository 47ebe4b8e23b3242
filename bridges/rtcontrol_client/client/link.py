"""The one thread that owns the client's ZeroMQ socket: connects, sends what is due, hears, ends what expired."""

from __future__ import annotations

import contextlib
import logging
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message

from rtcontrol_client.client.connect import Enquiry, NoServer, tools_hint
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.errors import ClientError
from rtcontrol_client.wire import LIMITS, Message, WireError, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.endpoint import CONNECT, FORM, Endpoint, EndpointError, check_client
from rtcontrol_client.wire.messages import Bye, Welcome

HIGH_WATER = 64
SEND_BUFFER = 1 << 18  # bytes that the system keeps of what is sent beside: more would be old when it arrives
LINGER_MS = 200  # how long a last message may take to leave
UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
NO_KEY = zmq.EVENT_HANDSHAKE_FAILED_AUTH
NO_SERVER = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
GONE = zmq.EVENT_DISCONNECTED
EVENTS = UP | NO_KEY | NO_SERVER | GONE | zmq.EVENT_CLOSED
log = logging.getLogger(__name__)


class Link:
    """Carries a Core over one DEALER, which is made again for each connection.
    `lock` guards the core; `changed` is called, without the lock, in the link's thread whenever something a user may
    wait for has changed; `wake` ends the thread's wait, from any thread. What a welcome warns of is logged, each once.
    Raises ClientError: no endpoint, no keys."""

    def __init__(self, endpoint: str, core: Core, changed: Callable[[], None]) -> None:
        self.core, self.lock = core, threading.Lock()
        options = core.options
        try:
            check_client(endpoint)
        except EndpointError as error:
            raise ClientError(error.what, error.remedy) from None
        self._entry, named = endpoint, endpoint.startswith(CONNECT)
        self.core.connection.several = named
        self._keys, self._changed, self._closing = options.key_pairs(named), changed, False
        self._hint = tools_hint(options.tools, options.agent)
        self._enquiry: Enquiry | None = None
        self._where = ""  # the newest connection's address, as it was given or named
        self._opened = 0  # how many connections were made
        self._told = 0  # the version of the core that `changed` was called for
        self._welcome: Welcome | None = None  # whose warnings were logged
        self._warned: set[str] = set()
        # Its own, so that closing it waits for what is still to leave.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._wake_in, self._wake_out = sockets.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._open()
        self._thread = threading.Thread(target=self._run, name="rtcontrol-client", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where the newest connection goes."""
        return self._where or self._entry

    def wake(self) -> None:
        # A full pipe wakes as well; a closed one needs no waking.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def close(self) -> None:
        """Say bye and end the thread; takes milliseconds."""
        self._closing = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(0.5)

    def _run(self) -> None:
        why = ClientError("The client was closed.", "Connect anew.")
        try:
            while not self._closing:
                self._turn()
        except Exception as error:  # a fault of ours must end safe, not silently
            log.exception("The client's thread failed.")
            why = ClientError(f"The client failed ({type(error).__name__}: {error}).", "Report it.")
        with self.lock:
            try:
                if self.core.connection.open:
                    bye = Bye(session=self.core.token, reason="closed")
                    self._send([*self.core.due(time.monotonic_ns()), bye])
            except Exception as error:
                log.warning("No goodbye could be said (%s: %s).", type(error).__name__, error)
            finally:
                self.core.end(why, time.monotonic_ns())
        self._changed()
        self._release()

    def _turn(self) -> None:
        core = self.core
        events = list(self._events(core.connection.up))
        if any(why is not None for why in events):
            self._hear()  # what came before the connection was lost, such as a bye
        now_ns = time.monotonic_ns()
        with self.lock:
            for why in events:
                if why is None:
                    core.connected(now_ns)
                else:
                    core.lost(now_ns, why or core.connection.trouble)
            if self._enquiry is not None:
                self._named(now_ns)
            elif core.reconnects(now_ns):
                self._open()
            core.look(now_ns)
            self._send(core.due(now_ns))
            wait_ns = core.wake_ns(now_ns) - now_ns
        self._tell()
        # Rounded up: a timer that fires too early would spin.
        if self._wake_out.fileno() in dict(self._poller.poll(-(-wait_ns // 1_000_000))):
            with contextlib.suppress(BlockingIOError):
                while self._wake_out.recv(4096):
                    pass
        self._hear()
        self._tell()

    def _hear(self) -> None:
        """Take in what has arrived: boundedly, so that a flood cannot keep a call active; no thread waits meanwhile."""
        for _ in range(HIGH_WATER):
            if not (parts := self._receive()):
                break
            now_ns = time.monotonic_ns()
            try:
                message = decode_msgpack(parts)
            except WireError as error:
                with self.lock:
                    self.core.ignored[str(error.code)] += 1
                continue
            with self.lock:
                self.core.hear(message, now_ns)
                self.core.look(time.monotonic_ns())

    def _tell(self) -> None:
        if (welcome := self.core.welcome) is not None and welcome is not self._welcome:
            self._welcome = welcome
            for warning in dict.fromkeys(welcome.warnings):
                if warning not in self._warned:  # a session is resumed again and again
                    log.warning("The server at %s warns: %s", self.address, warning)
            self._warned.update(welcome.warnings)
        if (version := self.core.version) != self._told:
            self._told = version
            self._changed()

    def _send(self, messages: list[Message]) -> None:
        for i, message in enumerate(messages):
            try:
                self._socket.send_multipart(encode_msgpack(message), zmq.NOBLOCK)
            except zmq.Again:
                self.core.unsent(messages[i:], time.monotonic_ns())
                return

    def _receive(self) -> list[bytes]:
        """One message's parts (of one with too many, as many as show that), or none."""
        parts: list[bytes] = []
        with contextlib.suppress(zmq.Again):
            while not parts or self._socket.rcvmore:
                part = self._socket.recv(zmq.NOBLOCK)
                if len(parts) <= LIMITS.max_parts:
                    parts.append(part)
        return parts

    def _open(self) -> None:
        if hasattr(self, "_socket"):
            self._close_socket()
        self._opened += 1
        if self._entry.startswith(CONNECT):
            self._enquire()
            return
        self._connect(self._entry, None if self._keys is None else self._keys[1])

    def _enquire(self) -> None:
        """Request a server; meanwhile there is a socket without a connection."""
        lost = self._where if self.core.connection.unresponsive else ""
        headers = {name: value for name, value in (("x-tools", self._hint), ("x-lost", lost)) if value}
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._watch()
        given = self._keys is not None and self._keys[1] is not None
        self._enquiry = Enquiry(self._entry, headers, self.wake, keys=self._keys is not None, server_key=given)

    def _named(self, now_ns: int) -> None:
        """Connect to the server that was named, if the answer is there; else wait for another request."""
        if self._enquiry is None or (found := self._enquiry.result) is None:
            return
        self._enquiry = None
        if isinstance(found, NoServer):
            self.core.connection.none_named(now_ns, found.why, found.retry_s)
            return
        if found.address != self._where:
            self.core.elsewhere()
        self.core.connection.dials(now_ns)
        self._close_socket()
        own = None if self._keys is None else self._keys[1]
        self._connect(found.address, own or found.key)

    def _close_socket(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _connect(self, address: str, server_key: str | None) -> None:
        self._where, self._server_key = address, server_key
        rounds, where = self._opened - 1, Endpoint.parse(address)
        # Of a name libzmq tries one address: that of IPv6 every other time.
        self._ipv6 = bool(rounds % 2) if where.ipv6 is None else where.ipv6
        socket = self._dealer(self._context)
        socket.linger, socket.sndhwm, socket.rcvhwm = LINGER_MS, HIGH_WATER, HIGH_WATER
        socket.reconnect_ivl = -1  # core.py does it, with a back-off, and knows when
        self._socket = socket
        self._watch()
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            self._release()
            what = f"{address} cannot be used ({error.strerror})."
            raise ClientError(what, f"Write {FORM}.") from None

    def _watch(self) -> None:
        """Wait for the new socket, too."""
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(EVENTS)
        self._poller = zmq.Poller()
        for each in (self._socket, self._monitor, self._wake_out.fileno()):
            self._poller.register(each, zmq.POLLIN)

    def _dealer(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket.immediate, socket.ipv6 = True, self._ipv6
        socket.maxmsgsize, socket.handshake_ivl = LIMITS.max_message_bytes, 2000
        if self._keys is not None and self._server_key is not None:
            pair, socket.curve_serverkey = self._keys[0], self._server_key.encode()
            socket.curve_publickey, socket.curve_secretkey = pair.public.encode(), pair.secret.encode()
        return socket

    def beside(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes] | None:
        """Another connection to the same server, made again by itself, on which one message waits at most; None while
        there is no server. From any thread."""
        if self._enquiry is not None:
            return None
        socket = self._dealer(context)
        socket.linger, socket.sndhwm, socket.rcvhwm = 0, 1, 1
        socket.reconnect_ivl, socket.reconnect_ivl_max, socket.sndbuf = 100, 2000, SEND_BUFFER
        socket.heartbeat_ivl, socket.heartbeat_timeout = 2000, 6000  # a server that is silent is connected to again
        socket.connect(self._where)
        return socket

    def _release(self) -> None:
        """Let go, once what was sent has left, or LINGER_MS is over."""
        self._monitor.close(linger=0)
        self._context.destroy()
        self._wake_in.close()
        self._wake_out.close()

    def _events(self, up: bool) -> Iterator[str | None]:
        """What the connection, which was `up` or not, came to: None: it is there; else why it is not."""
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())
            kind = event["event"]
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
