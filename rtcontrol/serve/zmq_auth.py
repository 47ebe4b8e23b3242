"""Access control of the ROUTER socket: admit all clients of this machine, or only clients with listed CURVE keys.

This module always sets `zap_domain` and an authenticator. In libzmq 4.3.5, without `zap_domain`, bytes that are not
ZMTP 3 reach the application as messages, and a CURVE socket without an authenticator admits every key.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket as sockets
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import zmq
from zmq.auth.thread import ThreadAuthenticator

from rtcontrol.hosts.sockets import router_socket
from rtcontrol.models.errors import UserError
from rtcontrol.serve.key_files import SERVER, KeyFileError, KeyPair, client_keys, default_folder, fingerprint, load_pair
from rtcontrol_client.wire.endpoint import ENDPOINT_FORMS, Endpoint, EndpointError, is_local

DOMAIN = "rtcontrol"
REREAD_S = 0.25
# Maximum numbers of queued messages per client in libzmq. A received message may have 1 MiB, so queue only a few.
SENT_WAITING, RECEIVED_WAITING = 64, 2
BACKLOG, HANDSHAKE_MS = 256, 2_000
log = logging.getLogger(__name__)


class ZmqAuth:
    """The access control of a socket that will be bound to `endpoints`. A ZeroMQ context may have only one. `keys`: the
    folder with the allowed public keys. A check reads the folder again if the last reading is older than REREAD_S.

    Raises UserError if an endpoint is invalid, if other machines could use it without keys, or if the folder has no
    server key pair.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoints: Sequence[str], keys: Path | None) -> None:
        for endpoint in endpoints:
            check_endpoint(endpoint, keyed=keys is not None)
        self._context, self._folder, self._lock = context, keys, threading.Lock()
        self._by_key: dict[str, str] = {}
        self._read_s = -1.0
        self._pair: KeyPair | None = None
        self._auth: ThreadAuthenticator | None = None
        if keys is not None:
            try:
                self._pair = load_pair(keys / f"{SERVER}.key_secret")
            except KeyFileError as error:
                raise UserError(error.what, error.remedy) from None
            if not client_keys(keys):
                log.warning("%s has no client keys, so no client can connect. Run `rtcontrol keys new NAME`.", keys)
            quiet = logging.getLogger(f"{__name__}.zap")
            quiet.setLevel(logging.ERROR)  # pyzmq would log whole requests; `callback` logs only fingerprints of keys
            # A separate thread handles handshakes, so that they do not wait for other work.
            self._auth = ThreadAuthenticator(context, log=quiet)
            self._auth.start()
            self._auth.configure_curve_callback(domain=DOMAIN, credentials_provider=self)

    def create_router_socket(self, max_message_bytes: int) -> zmq.Socket[bytes]:
        """Return a new ROUTER socket with access control. The caller must bind the socket."""
        _raise_file_limit()
        socket = router_socket(self._context)
        socket.linger = 0
        socket.sndhwm, socket.rcvhwm = SENT_WAITING, RECEIVED_WAITING
        socket.maxmsgsize = max_message_bytes
        socket.handshake_ivl = HANDSHAKE_MS
        # ZMTP heartbeats are off: libzmq 4.3.5 aborts the process if a heartbeat is due on a connection that is closed
        # while its queue is full. The protocol's ping messages detect lost clients instead.
        socket.router_mandatory = 1
        socket.backlog = BACKLOG
        socket.zap_domain = DOMAIN.encode()
        if self._pair is not None:
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            socket.curve_server = True
            socket.curve_publickey = self._pair.public.encode()
            socket.curve_secretkey = self._pair.secret.encode()
        return socket

    def receive(self, socket: zmq.Socket[bytes]) -> tuple[bytes, str | None, list[zmq.Frame]] | None:
        """Return the next message's routing id, client key and frames, or None if no message is queued."""
        try:
            identity, *frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        key: str | None = None
        if self._folder is not None:
            with contextlib.suppress(zmq.ZMQError):  # a message without User-Id (the client's public key)
                key = str(frames[-1].get("User-Id"))
        return identity.bytes, key, frames

    def is_allowed(self, key: str | None) -> bool:
        """Return whether a client with this public key (Z85) may stay connected. A removed key file takes effect within
        0.25 s. If the server uses no keys, the endpoint is local and every client is allowed."""
        return self._folder is None or self.client_name(key) is not None

    def client_name(self, key: str | None) -> str | None:
        """Return the name of the client with this public key, or None if the key is not on the allow-list."""
        if self._folder is None or not key:
            return None
        with self._lock:
            if time.monotonic() - self._read_s > REREAD_S:
                self._by_key = {key: name for name, key in client_keys(self._folder).items()}
                self._read_s = time.monotonic()
            return self._by_key.get(key)

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether this key is on the allow-list. pyzmq's authenticator calls this method for each handshake."""
        public = key.decode("ascii", "replace")
        name = self.client_name(public)
        if name is None:
            log.warning("Refused a client: its key (fingerprint %s) is not on the allow-list.", fingerprint(public))
        return name is not None

    def close(self) -> None:
        if self._auth is not None:
            self._auth.stop()
            self._auth = None


def check_endpoint(endpoint: str, keyed: bool) -> None:
    """Raise UserError if the address is invalid, or if other machines could connect without keys (not `keyed`)."""
    try:
        Endpoint.parse(endpoint)
    except EndpointError as error:
        raise UserError(f"--bind {error.what}", error.remedy) from None
    if not keyed and not is_local(endpoint):
        problem = f"--bind {endpoint} can be reached from other machines, but --keys is missing."
        hint = f"Create a key for each client (rtcontrol keys new NAME) and add --keys {default_folder() or 'FOLDER'}."
        raise UserError(problem, f"{hint} Or use --bind tcp://127.0.0.1:5555 and a tunnel (ssh -L).")


def bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind the socket, and return its address. Raises UserError."""
    socket.ipv6 = Endpoint.parse(endpoint).ipv6_only
    # Check for another server first, because libzmq would silently take over the path of its socket.
    if endpoint.startswith("ipc://") and _has_listener(endpoint.removeprefix("ipc://")):
        raise UserError(f"--bind {endpoint}: another server listens there.", "Stop it, or give another path.")
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        hint = f"Use the form {ENDPOINT_FORMS}, and a port that is free."
        raise UserError(f"--bind {endpoint} failed ({error}).", hint) from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _has_listener(path: str) -> bool:
    """Return whether a process listens at a Unix socket. The socket file of a dead process refuses connections."""
    with contextlib.suppress(OSError), sockets.socket(sockets.AF_UNIX) as peer:
        peer.settimeout(1.0)
        peer.connect(path)
        return True
    return False


def _raise_file_limit() -> None:
    """Raise this process's limit of open files to its maximum, because idle connections need many files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems do not allow their reported maximum
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
