"""Who may reach the ROUTER socket: everybody on loopback, or the holders of listed CURVE keys; garbage never.

Measured in libzmq 4.3.5: without `zap_domain` bytes that are no ZMTP 3 reach the application as messages, and a CURVE
socket without an authenticator admits every key. Hence both are set here, in one place.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import zmq
from zmq.auth.thread import ThreadAuthenticator

from rtcontrol.models.errors import UserError, home
from rtcontrol_client.wire.curve import SERVER, KeyFileError, KeyPair, load_pair, load_public
from rtcontrol_client.wire.endpoint import Endpoint, EndpointError, is_local

__all__ = ["NAME", "SERVER", "KeyFileError", "KeyPair", "load_pair", "load_public"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def default_folder() -> Path | None:
    """$XDG_CONFIG_HOME/rtcontrol/keys, or ~/.config/rtcontrol/keys; None where nobody knows a home."""
    own, base = home(), os.environ.get("XDG_CONFIG_HOME")
    config = Path(base) if base else own and own / ".config"
    return config and config / "rtcontrol" / "keys"


def fingerprint(public: str) -> str:
    """What people compare: 16 hexadecimal digits of the SHA-256 of the public key."""
    return hashlib.sha256(public.encode("ascii")).hexdigest()[:16]


def check_name(name: str) -> None:
    """Raises KeyFileError: no name for a key."""
    if not NAME.fullmatch(name) or name.endswith((".key", ".key_secret")):
        raise KeyFileError(f"{name[:80]!r} is no name for a key.", "Use 1 to 64 letters, digits, '.', '_' or '-'.")


def create(folder: Path, name: str) -> KeyPair:
    """Write a new pair `name` into the folder (made with mode 0700). Raises KeyFileError: bad name, name in use."""
    check_name(name)
    public_file, secret_file = folder / f"{name}.key", folder / f"{name}.key_secret"
    public, secret = (part.decode("ascii") for part in zmq.curve_keypair())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, mode, text in (
            (secret_file, 0o600, _text("secret: keep it to its owner", public, secret)),
            (public_file, 0o644, _text("public", public)),
        ):
            # The mode is there from the first byte on, whatever the umask; an existing file is never replaced.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
                file.write(text)
    except FileExistsError as error:
        raise KeyFileError(
            f"There is a key {name!r} already ({error.filename}).",
            f"Choose another name, or revoke it first: rtcontrol keys revoke {name}",
        ) from None
    except OSError as error:
        raise KeyFileError(f"The key could not be written ({error}).", "Choose another folder with --keys.") from None
    return KeyPair(public, secret)


def _text(kind: str, public: str, secret: str | None = None) -> str:
    lines = [f"#   rtcontrol CURVE key ({kind})", "metadata", "curve", f'    public-key = "{public}"']
    if secret:
        lines.append(f'    secret-key = "{secret}"')
    return "\n".join(lines) + "\n"


def clients(folder: Path) -> dict[str, str]:
    """The allow-list: name -> public key (Z85). Files that are no certificates are left out: they let nobody in."""
    keys: dict[str, str] = {}
    try:
        paths = sorted(folder.glob("*.key"))
    except OSError:
        return {}
    for path in paths:
        if path.stem != SERVER:
            try:
                keys[path.stem] = load_public(path)
            except KeyFileError:
                continue
    return keys


DOMAIN = "rtcontrol"
REREAD_S = 0.25
log = logging.getLogger(__name__)


class ZmqAuth:
    """Applies the rule to a socket before it is bound, and watches the allow-list while it is open: the folder's public
    keys, read again when asked and older than REREAD_S."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path | None) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._by_key: dict[str, str] = {}
        self._read_s = -1.0
        self._pair: KeyPair | None = None
        self._auth: ThreadAuthenticator | None = None
        if folder is not None:
            try:
                self._pair = load_pair(folder / f"{SERVER}.key_secret")
            except KeyFileError as error:
                raise UserError(error.what, error.remedy) from None
            if not clients(folder):
                log.warning("No client's key is in %s yet: nobody can connect until `rtcontrol keys new NAME`.", folder)
            quiet = logging.getLogger(f"{__name__}.zap")
            quiet.setLevel(logging.ERROR)  # pyzmq logs whole requests at DEBUG; ours names fingerprints
            # In its own thread: one in an event loop stalls every handshake while that loop is busy.
            self._auth = ThreadAuthenticator(context, log=quiet)
            self._auth.start()
            self._auth.configure_curve_callback(domain=DOMAIN, credentials_provider=self)

    @classmethod
    def for_endpoints(
        cls, context: zmq.Context[zmq.Socket[bytes]], endpoints: Sequence[str], keys: Path | None
    ) -> ZmqAuth:
        """Return the guard for a socket that will be bound to these; one for each context.

        Raises UserError: an endpoint that is none, or is beyond this machine and no keys; a folder without a server's
        key pair.
        """
        for endpoint in endpoints:
            try:
                Endpoint.parse(endpoint)
            except EndpointError as error:
                raise UserError(f"--bind {error.what}", error.remedy) from None
            if keys is None and not is_local(endpoint):
                raise UserError(
                    f"--bind {endpoint} can be reached from other machines, and there are no keys.",
                    "Make a key for each client (rtcontrol keys new NAME) and add --keys "
                    f"{default_folder() or 'FOLDER'}. Or give --bind tcp://127.0.0.1:5555 and tunnel by ssh -L.",
                )
        return cls(context, keys)

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Set the socket's security options; call it before bind."""
        socket.zap_domain = DOMAIN.encode()
        if self._pair is not None:
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            socket.curve_server = True
            socket.curve_publickey = self._pair.public.encode()
            socket.curve_secretkey = self._pair.secret.encode()

    @property
    def keyed(self) -> bool:
        """Whether clients need keys."""
        return self._folder is not None

    def allowed(self, key: str | None) -> bool:
        """Return whether the holder of this public key (Z85) may stay; a revoked one may not, within 0.25 s. Without
        keys everybody may: the endpoint is local."""
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
        """Return whether the holder comes in: pyzmq's authenticator calls it for each handshake."""
        public = key.decode("ascii", "replace")
        name = self.name(public)
        if name is None:
            log.warning("Refused a client whose key (fingerprint %s) is not listed.", fingerprint(public))
        else:
            log.info("Admitted %s (fingerprint %s).", name, fingerprint(public))
        return name is not None

    def close(self) -> None:
        if self._auth is not None:
            self._auth.stop()
            self._auth = None
