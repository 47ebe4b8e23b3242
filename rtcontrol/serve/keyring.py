"""The server's key folder: its own CURVE pair, named `server`, and the allow-list: one `NAME.key` for each client."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import zmq

from rtcontrol.bridges.wire.curve import SERVER, KeyFileError, KeyPair, load_pair, load_public
from rtcontrol.models.errors import home

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
