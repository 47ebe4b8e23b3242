"""Access to the ROUTER socket: every client on loopback, or only the holders of listed CURVE keys.

Measured in libzmq 4.3.5: without `zap_domain`, bytes that are not ZMTP 3 reach the application as messages, and a CURVE
socket without an authenticator admits every key. Hence this module sets both.
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
from rtcontrol.serve.key_files import SERVER, KeyFileError, KeyPair, clients, default_folder, fingerprint, load_pair
from rtcontrol_client.wire.endpoint import FORM, Endpoint, EndpointError, is_local

DOMAIN = "rtcontrol"
REREAD_S = 0.25
HIGH_WATER, BACKLOG, HANDSHAKE_MS = 64, 256, 2_000
log = logging.getLogger(__name__)


class ZmqAuth:
    """The access control of the socket that is bound to these endpoints, one for each context. The allow-list is a
    folder of public keys, which is read again when a key is checked after more than REREAD_S.

    Raises UserError for an invalid endpoint, for one that other machines can reach without keys, and without a server
    key pair.
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
            if not clients(keys):
                log.warning("No client's key is in %s yet: no client can connect before `rtcontrol keys new`.", keys)
            quiet = logging.getLogger(f"{__name__}.zap")
            quiet.setLevel(logging.ERROR)  # pyzmq logs whole requests at DEBUG; ours names fingerprints
            # In its own thread: in an event loop the authenticator would stall handshakes while that loop is busy.
            self._auth = ThreadAuthenticator(context, log=quiet)
            self._auth.start()
            self._auth.configure_curve_callback(domain=DOMAIN, credentials_provider=self)

    def router(self, max_message_bytes: int) -> zmq.Socket[bytes]:
        """Return a ROUTER socket with access control, which is not bound yet."""
        _raise_file_limit()
        socket = router_socket(self._context)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = HIGH_WATER
        socket.maxmsgsize = max_message_bytes
        socket.handshake_ivl = HANDSHAKE_MS
        # No ZMTP heartbeats: libzmq 4.3.5 ends the process by an assertion when one falls due on a connection that is
        # closed while its queue is full. The protocol's own ping finds silent peers.
        socket.router_mandatory = 1
        socket.backlog = BACKLOG
        socket.zap_domain = DOMAIN.encode()
        if self._pair is not None:
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            socket.curve_server = True
            socket.curve_publickey = self._pair.public.encode()
            socket.curve_secretkey = self._pair.secret.encode()
        return socket

    def receive(self, socket: zmq.Socket[bytes]) -> tuple[bytes, str | None, list[bytes]] | None:
        """Return the routing id, the peer's key and the parts of the next message; None if no message waits."""
        try:
            if self._folder is None:
                identity, *parts = socket.recv_multipart(zmq.NOBLOCK)
                return identity, None, parts
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        key: str | None = None
        with contextlib.suppress(zmq.ZMQError):  # a frame without a user has no key
            key = str(frames[-1].get("User-Id"))
        identity, *parts = (frame.bytes for frame in frames)
        return identity, key, parts

    def allowed(self, key: str | None) -> bool:
        """Return whether the holder of this public key (Z85) may stay connected. Revoking takes effect within 0.25 s.
        Without keys every client may: the endpoint is local."""
        return self._folder is None or self.name(key) is not None

    def name(self, key: str | None) -> str | None:
        """Return the listed name of a public key, for logs."""
        if self._folder is None or not key:
            return None
        with self._lock:
            if time.monotonic() - self._read_s > REREAD_S:
                self._by_key = {key: name for name, key in clients(self._folder).items()}
                self._read_s = time.monotonic()
            return self._by_key.get(key)

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether this key is admitted; pyzmq's authenticator calls this method for each handshake."""
        public = key.decode("ascii", "replace")
        name = self.name(public)
        if name is None:
            log.warning("Refused a client whose key (fingerprint %s) is not listed.", fingerprint(public))
        return name is not None

    def close(self) -> None:
        if self._auth is not None:
            self._auth.stop()
            self._auth = None


def check_endpoint(endpoint: str, keyed: bool) -> None:
    """Raise UserError for an invalid address, or one that other machines can reach without keys."""
    try:
        Endpoint.parse(endpoint)
    except EndpointError as error:
        raise UserError(f"--bind {error.what}", error.remedy) from None
    if not keyed and not is_local(endpoint):
        problem = f"--bind {endpoint} can be reached from other machines, and there are no keys."
        hint = f"Make a key for each client (rtcontrol keys new NAME) and add --keys {default_folder() or 'FOLDER'}."
        raise UserError(problem, f"{hint} Or give --bind tcp://127.0.0.1:5555 and tunnel by ssh -L.")


def bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind the socket, and return its address. Raises UserError."""
    socket.ipv6 = Endpoint.parse(endpoint).ipv6_only
    # libzmq would take the path from the other server.
    if endpoint.startswith("ipc://") and _answers(endpoint.removeprefix("ipc://")):
        raise UserError(f"--bind {endpoint}: another server listens there.", "Stop it, or give another path.")
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise UserError(f"--bind {endpoint} failed ({error}).", f"Write {FORM}; is the port free?") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _answers(path: str) -> bool:
    """Return whether a process listens at a Unix socket. A socket that a dead process left refuses the connection."""
    with contextlib.suppress(OSError), sockets.socket(sockets.AF_UNIX) as peer:
        peer.settimeout(1.0)
        peer.connect(path)
        return True
    return False


def _raise_file_limit() -> None:
    """Raise the process's limit of open files to the maximum, so that many idle peers do not block others."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems have a lower bound than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
