"""The core's shell: one thread owns the ZeroMQ socket, connects, sends what is due, receives, ends what expired."""

from __future__ import annotations

import contextlib
import logging
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message

from rtcontrol_client.client.connect import ConnectRequest, NoServer, tools_hint
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.errors import ClientError
from rtcontrol_client.wire import LIMITS, Message, WireError, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.endpoint import CONNECT, FORM, Endpoint, EndpointError, check_client
from rtcontrol_client.wire.messages import Bye, Welcome

HIGH_WATER = 64
PICTURE_BUFFER = 1 << 18  # bytes that the system keeps of pictures: more would be old when it arrives
LINGER_MS = 200  # how long a last message may take to leave
UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
NO_KEY = zmq.EVENT_HANDSHAKE_FAILED_AUTH
NO_SERVER = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
GONE = zmq.EVENT_DISCONNECTED
EVENTS = UP | NO_KEY | NO_SERVER | GONE | zmq.EVENT_CLOSED
log = logging.getLogger(__name__)


class Link:
    """Carries a core over one DEALER, which is made again for each connection.

    `lock` guards the core. `changed` is called, without the lock, in the link's thread whenever something a user may
    wait for has changed. `wake` ends the thread's wait, from any thread. Raises ClientError: not an endpoint, no keys.
    """

    def __init__(self, endpoint: str, core: Core, changed: Callable[[], None]) -> None:
        self.core, self.lock = core, threading.Lock()
        try:
            check_client(endpoint)
        except EndpointError as error:
            raise ClientError(error.what, error.remedy) from None
        self._entry, named = endpoint, endpoint.startswith(CONNECT)
        core.connection.several = named
        self._keys, self._changed, self._closing = core.options.key_pairs(named), changed, False
        self._request: ConnectRequest | None = None
        self._address, self._server_key = "", None if self._keys is None else self._keys[1]
        self._ipv6 = True
        self._version = 0  # of the core when `changed` was called
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
        return self._address or self._entry

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
        why = ClientError("The client was closed.", "Connect again.")
        try:
            while not self._closing:
                self._turn()
        except Exception as error:  # an error of ours must end safe, not silently
            log.exception("The client's thread failed.")
            why = ClientError(f"The client failed ({type(error).__name__}: {error}).", "Report it.")
        with self.lock:
            try:
                if self.core.connection.open:
                    bye = Bye(session=self.core.token, reason="closed")
                    self._send([*self.core.due(time.monotonic_ns()), bye])
            except Exception as error:
                log.warning("The goodbye could not be sent (%s: %s).", type(error).__name__, error)
            finally:
                self.core.end(why, time.monotonic_ns())
        self._changed()
        self._release()

    def _turn(self) -> None:
        core = self.core
        events = list(self._events(core.connection.up))
        if any(why is not None for why in events):
            self._receive_all()  # what came before the connection was lost, such as a bye
        now_ns = time.monotonic_ns()
        with self.lock:
            for why in events:
                if why is None:
                    core.connected(now_ns)
                else:
                    core.lost(now_ns, why or core.connection.trouble)
            if self._request is not None:
                self._take_answer(self._request, now_ns)
            elif core.reconnects(now_ns):
                self._close_socket()
                self._open()
            core.expire(now_ns)
            self._send(core.due(now_ns))
            wait_ns = core.wake_ns(now_ns) - now_ns
        self._tell()
        # Rounded up: a timer that fires too early would spin.
        if self._wake_out.fileno() in dict(self._poller.poll(-(-wait_ns // 1_000_000))):
            with contextlib.suppress(BlockingIOError):
                while self._wake_out.recv(4096):
                    pass
        self._receive_all()
        self._tell()

    def _receive_all(self) -> None:
        """Take what has arrived: boundedly, so that a flood cannot keep a call active; no thread waits meanwhile."""
        for _ in range(HIGH_WATER):
            if not (parts := self._receive()):
                break
            now_ns = time.monotonic_ns()
            try:
                message = decode_msgpack(parts)
            except WireError as error:
                with self.lock:
                    self.core.tally.ignored[str(error.code)] += 1
                continue
            with self.lock:
                self.core.receive(message, now_ns)
                self.core.expire(time.monotonic_ns())

    def _tell(self) -> None:
        """Log what a new welcome warns of, each once; tell the client what has changed."""
        if (welcome := self.core.welcome) is not None and welcome is not self._welcome:
            self._welcome = welcome
            for warning in dict.fromkeys(welcome.warnings):
                if warning not in self._warned:  # a session is resumed again and again
                    log.warning("The server at %s warns: %s", self.address, warning)
            self._warned.update(welcome.warnings)
        if (version := self.core.version) != self._version:
            self._version = version
            self._changed()

    def _send(self, messages: list[Message]) -> None:
        for i, message in enumerate(messages):
            try:
                self._socket.send_multipart(encode_msgpack(message), zmq.NOBLOCK)
            except zmq.Again:
                self.core.unsent(messages[i:], time.monotonic_ns())
                return

    def _receive(self) -> list[bytes]:
        """Return one message's parts (of one with too many, as many as show that), or none."""
        parts: list[bytes] = []
        with contextlib.suppress(zmq.Again):
            while not parts or self._socket.rcvmore:
                part = self._socket.recv(zmq.NOBLOCK)
                if len(parts) <= LIMITS.max_parts:
                    parts.append(part)
        return parts

    # Sockets.

    def _open(self) -> None:
        if not self._entry.startswith(CONNECT):
            self._connect(self._entry)
            return
        # Request a server; meanwhile there is a socket without a connection.
        options = self.core.options
        lost = self._address if self.core.connection.unresponsive else ""
        headers = {"x-tools": tools_hint(options.tools, options.agent), "x-lost": lost}
        self._watch(self._context.socket(zmq.DEALER))
        keys = {"keys": self._keys is not None, "server_key": self._keys is not None and self._keys[1] is not None}
        given = {name: value for name, value in headers.items() if value}
        self._request = ConnectRequest(self._entry, given, self.wake, **keys)

    def _take_answer(self, request: ConnectRequest, now_ns: int) -> None:
        """Connect to the server that was named, if the answer is there; else wait for another request."""
        server = request.result
        if server is None:
            return
        self._request = None
        if isinstance(server, NoServer):
            self.core.connection.none_named(now_ns, server.why, server.retry_s)
            return
        if server.address != self._address:
            self.core.elsewhere()
        self.core.connection.dials(now_ns)
        self._close_socket()
        if self._keys is not None and self._keys[1] is None:
            self._server_key = server.key
        self._connect(server.address)

    def _connect(self, address: str) -> None:
        self._address, ipv6 = address, Endpoint.parse(address).ipv6
        # Of a name libzmq tries one address: that of IPv6 every other time.
        self._ipv6 = not self._ipv6 if ipv6 is None else ipv6
        socket = self._dealer(self._context, HIGH_WATER, LINGER_MS)
        socket.immediate = True
        socket.reconnect_ivl = -1  # the core does it, with a back-off, and knows when
        self._watch(socket)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            self._release()
            text = f"{address} cannot be used ({error.strerror})."
            raise ClientError(text, f"Write {FORM}.") from None

    def _watch(self, socket: zmq.Socket[bytes]) -> None:
        """Use this socket, and wait for it too."""
        self._socket = socket
        self._monitor: zmq.Socket[bytes] = socket.get_monitor_socket(EVENTS)
        self._poller = zmq.Poller()
        for each in (socket, self._monitor, self._wake_out.fileno()):
            self._poller.register(each, zmq.POLLIN)

    def _dealer(self, context: zmq.Context[zmq.Socket[bytes]], most: int, linger_ms: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket.ipv6, socket.linger, socket.sndhwm, socket.rcvhwm = self._ipv6, linger_ms, most, most
        socket.maxmsgsize, socket.handshake_ivl = LIMITS.max_message_bytes, 2000
        if self._keys is not None and self._server_key is not None:
            pair, socket.curve_serverkey = self._keys[0], self._server_key.encode()
            socket.curve_publickey, socket.curve_secretkey = pair.public.encode(), pair.secret.encode()
        return socket

    def picture_socket(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        """Return another connection to the same server, made again by itself, on which at most one message waits."""
        socket = self._dealer(context, 1, 0)
        socket.reconnect_ivl, socket.reconnect_ivl_max, socket.sndbuf = 100, 2000, PICTURE_BUFFER
        socket.heartbeat_ivl, socket.heartbeat_timeout = 2000, 6000  # a server that is silent is connected to again
        socket.connect(self._address)
        return socket

    def _close_socket(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _release(self) -> None:
        """Let go, once what was sent has left, or LINGER_MS is over."""
        self._monitor.close(linger=0)
        self._context.destroy()
        self._wake_in.close()
        self._wake_out.close()

    def _events(self, up: bool) -> Iterator[str | None]:
        """Yield what became of the connection, which was `up` or not: None: it is up; else why it is not."""
        while self._monitor.poll(0):
            kind = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if kind == UP:
                yield None
            elif kind == NO_KEY or (self._keys and not up and kind != zmq.EVENT_CLOSED):
                yield "the server does not accept this key, or has another key itself"
            elif kind & NO_SERVER:
                yield "the server wants a key, or does not speak rtcontrol's protocol"
            elif kind == GONE and not up:
                yield "the server closed the connection at once: it wants a key, or does not speak rtcontrol's protocol"
            else:
                yield "the connection was lost" if kind == GONE else ""
            up = kind == UP
