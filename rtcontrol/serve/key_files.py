"""CURVE key files: the server's key pair, and an allow-list with the public key of each client."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import zmq

from rtcontrol.models.errors import home_folder
from rtcontrol_client.wire.curve import SERVER, KeyFileError, KeyPair, load_pair, load_public

__all__ = ["KEY_NAME", "SERVER", "KeyFileError", "KeyPair", "load_pair", "load_public"]
KEY_NAME = re.compile(r"(?!.*\.key(_secret)?$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def default_folder() -> Path | None:
    """Return $XDG_CONFIG_HOME/rtcontrol/keys, or ~/.config/rtcontrol/keys; None if the home folder is unknown."""
    folder, base = home_folder(), os.environ.get("XDG_CONFIG_HOME")
    config = Path(base) if base else folder and folder / ".config"
    return config and config / "rtcontrol" / "keys"


def fingerprint(public: str) -> str:
    """Return the first 16 hexadecimal digits of the public key's SHA-256, by which people compare keys."""
    return hashlib.sha256(public.encode("ascii")).hexdigest()[:16]


def create_key_pair(folder: Path, name: str) -> KeyPair:
    """Create a key pair and write it into the folder. Raises KeyFileError if `name` is invalid or already in use."""
    if not KEY_NAME.fullmatch(name):
        raise KeyFileError(f"{name[:80]!r} is not a valid key name.", "Use 1 to 64 letters, digits, '.', '_' or '-'.")
    public, secret = (part.decode("ascii") for part in zmq.curve_keypair())
    head = f'metadata\ncurve\n    public-key = "{public}"\n'
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = f'# keep this file private\n{head}    secret-key = "{secret}"\n'
        _write_new(folder / f"{name}.key_secret", 0o600, private)
        _write_new(folder / f"{name}.key", 0o644, head)
    except FileExistsError as error:
        problem = f"A key named {name!r} already exists ({error.filename})."
        raise KeyFileError(problem, f"Choose another name, or run `rtcontrol keys revoke {name}` first.") from None
    except OSError as error:
        raise KeyFileError(f"The key could not be written ({error}).", "Choose another folder with --keys.") from None
    return KeyPair(public, secret)


def _write_new(path: Path, mode: int, text: str) -> None:
    """Write a new file with this mode, regardless of the umask. Raises FileExistsError if the file exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)


def client_keys(folder: Path) -> dict[str, str]:
    """Return the allow-list as a dict from client name to public key (Z85). Skip invalid key files."""
    keys: dict[str, str] = {}
    for path in sorted(folder.glob("*.key")):
        if path.stem != SERVER:
            try:
                keys[path.stem] = load_public(path)
            except KeyFileError:
                continue
    return keys
