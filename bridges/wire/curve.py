"""CURVE key files in ZeroMQ's certificate format: `NAME.key` (public) and `NAME.key_secret` (public and secret, 0600).

A folder of a server holds its own pair, named `server`, and the allow-list: one `NAME.key` for each client.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.auth import load_certificate
from zmq.utils import z85

SERVER = "server"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeyFileError(Exception):
    """A key file that cannot be used: `what` and `remedy`, in sentences. No key is ever in them."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}")
        self.what, self.remedy = what, remedy


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair in Z85; the secret is never shown."""

    public: str
    secret: str = field(repr=False)


def default_folder() -> Path:
    """$XDG_CONFIG_HOME/rtcontrol/keys, or ~/.config/rtcontrol/keys."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "rtcontrol" / "keys"


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
    lines = [
        f"#   rtcontrol CURVE key ({kind})",
        "metadata",
        "curve",
        f'    public-key = "{public}"',
    ]
    if secret:
        lines.append(f'    secret-key = "{secret}"')
    return "\n".join(lines) + "\n"


def load_public(path: Path) -> str:
    """The public key (Z85) of a certificate file. Raises KeyFileError."""
    return _load(path)[0]


def load_pair(path: Path) -> KeyPair:
    """The pair of a `.key_secret` file. Raises KeyFileError, also where others than its owner may read it."""
    public, secret = _load(path)
    if secret is None:
        raise KeyFileError(f"{path} holds no secret key.", f"Give the {path.stem}.key_secret file.")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise KeyFileError(
            f"{path} may be read by other users of this machine (mode {path.stat().st_mode & 0o777:o}).",
            f"chmod 600 {path}",
        )
    return KeyPair(public, secret)


def _load(path: Path) -> tuple[str, str | None]:
    try:
        if path.stat().st_size > 65_536:
            raise ValueError("too long")
        public, secret = load_certificate(path)
        for key in (public, secret):
            if key is not None and (len(key) != 40 or len(z85.decode(key)) != 32):
                raise ValueError("a key is no 40 characters of Z85")
    except FileNotFoundError:
        raise KeyFileError(f"There is no key file {path}.", "Make one: rtcontrol keys new NAME") from None
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read ({error.strerror}).", "Give a readable key file.") from None
    except Exception as error:  # whatever a damaged file provokes; its text is not repeated: it may hold a secret
        raise KeyFileError(
            f"{path} is no ZeroMQ certificate ({type(error).__name__}).", "Make a new one: rtcontrol keys new NAME"
        ) from None
    return public.decode("ascii"), secret.decode("ascii") if secret else None


def clients(folder: Path) -> dict[str, str]:
    """The allow-list: name -> public key (Z85). Files that are no certificates are left out: they let nobody in."""
    found: dict[str, str] = {}
    try:
        paths = sorted(folder.glob("*.key"))
    except OSError:
        return {}
    for path in paths:
        if path.stem != SERVER:
            try:
                found[path.stem] = load_public(path)
            except KeyFileError:
                continue
    return found
