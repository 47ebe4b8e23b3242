"""Run a client's core on a thread, which owns the socket: it connects, sends, receives, and ends expired calls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import zmq

from rtcontrol_client import clock
from rtcontrol_client.client.connect import ConnectRequest, NoServer, hash_of_tools
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.errors import ClientError
from rtcontrol_client.client.wires import HIGH_WATER, ClientSockets
from rtcontrol_client.wire import Message, WireError, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.endpoint import ENDPOINT_FORMS, HTTP_SCHEMES, EndpointError, check_client
from rtcontrol_client.wire.messages import Bye

log = logging.getLogger(__name__)


class Link:
    """Connects a core to the server, with a new socket for each connection.

    `lock` protects the core. The link's thread calls `on_change`, without the lock, after each change for which a user
    may wait. Raises ClientError if `endpoint` is not valid, or a key file cannot be used.
    """

    def __init__(self, endpoint: str, core: Core, on_change: Callable[[], None]) -> None:
        self.core, self.lock = core, threading.Lock()
        try:
            check_client(endpoint)
        except EndpointError as error:
            raise ClientError(error.what, error.remedy) from None
        self._endpoint, named = endpoint, endpoint.startswith(HTTP_SCHEMES)
        core.connection.has_several_servers = named
        self._keys, self._on_change, self._closing = core.options.key_pairs(named), on_change, False
        self._request: ConnectRequest | None = None
        self._version = 0  # the core's version at the last call of `on_change`
        self._logged_warnings: set[str] = set()
        self.wires = ClientSockets()
        self.wake = self.wires.wake
        self._open_connection()
        self._thread = threading.Thread(target=self._run, name="rtcontrol-client", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The server's address in the current or last connection."""
        return self.wires.address or self._endpoint

    def close(self) -> None:
        """Send a bye message and end the thread, which takes milliseconds."""
        self._closing = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(0.5)

    def _run(self) -> None:
        why = ClientError("The client was closed.", "Connect again.")
        try:
            while not self._closing:
                self._run_once()
        except Exception as error:  # a bug: log it, and make the safe call active
            log.exception("The client's thread failed.")
            why = ClientError(f"The client failed ({type(error).__name__}: {error}).", "Report this bug.")
        with self.lock:
            try:
                if self.core.connection.is_open:
                    bye = Bye(session=self.core.session.token, reason="closed")
                    self._send([*self.core.due_messages(clock.now_ns()), bye])
            except Exception as error:
                log.warning("The bye message could not be sent (%s: %s).", type(error).__name__, error)
            finally:
                self.core.end(why, clock.now_ns())
        self._on_change()
        self.wires.close()

    def _run_once(self) -> None:
        core = self.core
        events = list(self.wires.events(core.connection.is_up))
        if any(why is not None for why in events):
            self._receive_all()  # first process messages that arrived before the connection was lost, such as a bye
        now_ns = clock.now_ns()
        with self.lock:
            for why in events:
                if why is None:
                    core.on_connected(now_ns)
                else:
                    core.on_lost(now_ns, why or core.connection.problem)
            if self._request is not None:
                self._use_response(self._request, now_ns)
            elif core.should_reconnect(now_ns):
                self._open_connection()
            core.expire(now_ns)
            self._send(core.due_messages(now_ns))
            wait_ns = core.wake_ns(now_ns) - now_ns
        self._report_changes()
        self.wires.wait(wait_ns)
        self._receive_all()
        self._report_changes()

    def _receive_all(self) -> None:
        """Handle received messages, but at most HIGH_WATER, so that a flood of messages cannot delay expiry."""
        for _ in range(HIGH_WATER):
            if not (parts := self.wires.receive()):
                break
            now_ns = clock.now_ns()
            try:
                message = decode_msgpack(parts)
            except WireError as error:
                with self.lock:
                    self.core.tally.ignored[str(error.code)] += 1
                continue
            with self.lock:
                self.core.receive(message, now_ns)
                self.core.expire(clock.now_ns())

    def _report_changes(self) -> None:
        """Log new warnings of the welcome message, and notify the client if the core has changed."""
        if (version := self.core.version) == self._version:
            return
        self._version = version
        for warning in [] if self.core.session.welcome is None else self.core.session.welcome.warnings:
            if warning not in self._logged_warnings:  # each resumed session repeats the warnings
                log.warning("The server at %s warns: %s", self.address, warning)
                self._logged_warnings.add(warning)
        self._on_change()

    def _send(self, messages: list[Message]) -> None:
        for i, message in enumerate(messages):
            if not self.wires.send(encode_msgpack(message)):
                self.core.requeue_messages(messages[i:], clock.now_ns())
                return

    def _open_connection(self) -> None:
        """Connect to the server, or request a server's address from the /connect URL."""
        if not self._endpoint.startswith(HTTP_SCHEMES):
            self._connect(self._endpoint, None)
            return
        options = self.core.options
        lost = self.wires.address if self.core.connection.is_unresponsive else ""
        headers = {"x-tools": hash_of_tools(options.tools, options.agent), "x-lost": lost}
        self.wires.reset()
        keys = {"keys": self._keys is not None, "server_key": self._keys is not None and self._keys[1] is not None}
        nonempty_headers = {name: value for name, value in headers.items() if value}
        self._request = ConnectRequest(self._endpoint, nonempty_headers, self.wake, **keys)

    def _use_response(self, request: ConnectRequest, now_ns: int) -> None:
        """If the /connect request has a response, connect to the server that it names, or retry later."""
        server = request.result
        if server is None:
            return
        self._request = None
        if isinstance(server, NoServer):
            self.core.connection.on_no_server(now_ns, server.why, server.retry_s)
            return
        if server.address != self.wires.address:
            self.core.forget_server()
        self.core.connection.start_connecting(now_ns)
        self._connect(server.address, server.key)

    def _connect(self, address: str, named_key: str | None) -> None:
        pair, server_key = self._keys or (None, None)
        server_key = server_key or named_key
        try:
            self.wires.connect(address, None if pair is None or server_key is None else (pair, server_key))
        except zmq.ZMQError as error:
            self.wires.close()
            raise ClientError(f"{address} cannot be used ({error.strerror}).", f"Write {ENDPOINT_FORMS}.") from None
