"""CURVE key files in ZeroMQ's certificate format: `NAME.key` (public) and `NAME.key_secret` (with the secret, 0600)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from zmq.auth import load_certificate
from zmq.utils import z85

SERVER = "server"


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
