"""Load CURVE keys from ZeroMQ's certificate files: `NAME.key` (public key) and `NAME.key_secret` (both keys)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zmq.auth import load_certificate
from zmq.utils import z85

from rtcontrol_client.wire.errors import RemedyError

SERVER = "server"


class KeyFileError(RemedyError):
    """Raised for a key file that cannot be used. The error text never contains a key."""


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair in Z85; the repr does not show the secret key."""

    public: str
    secret: str = field(repr=False)


def is_key(text: Any) -> bool:
    """Return whether `text` is a key in Z85."""
    try:
        return isinstance(text, str) and len(text) == 40 and len(z85.decode(text.encode("ascii"))) == 32
    except Exception:  # z85 raises various exceptions for other texts
        return False


def load_public(path: Path) -> str:
    """Return the public key (Z85) from a certificate file. Raises KeyFileError."""
    return _load(path).public


def load_pair(path: Path) -> KeyPair:
    """Return the key pair from a `.key_secret` file. Raises KeyFileError, also if other users may read the file."""
    pair = _load(path)
    if not pair.secret:
        raise KeyFileError(f"{path} contains no secret key.", f"Use the file {path.stem}.key_secret.")
    if os.name == "posix" and (mode := path.stat().st_mode & 0o777) & 0o077:
        raise KeyFileError(f"{path} may be read by other users of this machine (mode {mode:o}).", f"chmod 600 {path}")
    return pair


def _load(path: Path) -> KeyPair:
    hint = "Create a key file: rtcontrol keys new NAME"
    try:
        if path.stat().st_size > 65_536:
            raise ValueError("too long")
        keys = [key.decode("ascii") for key in load_certificate(path) if key is not None]
        if not all(map(is_key, keys)):
            raise ValueError("not 40 characters of Z85")
        return KeyPair(*[*keys, ""][:2])
    except OSError as error:
        raise KeyFileError(f"The key file {path} cannot be read ({error.strerror}).", hint) from None
    except Exception as error:  # do not show the text of the exception, which may contain a secret key
        raise KeyFileError(f"{path} is not a ZeroMQ certificate ({type(error).__name__}).", hint) from None
