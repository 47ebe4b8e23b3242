"""Devices that were paired: each has an access token of its own, which the server keeps only as a keyed hash."""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rtcontrol.models.errors import UserError

MOST = 64
SUFFIX = ".paired"
LINE = re.compile(r"([0-9a-f]{64}) (\d{4}-\d\d-\d\d) (.{1,80})")


@dataclass(frozen=True)
class Device:
    """One of the list: its name, the day when it was paired (ISO 8601), and the hash of its token."""

    name: str
    since: str
    digest: str


class DevicesFullError(Exception):
    """As many devices as may be are paired."""


class PairedDevices:
    """The list beside a server's token file, reread when it changes, so that a device that is taken off it is out at
    once. The hashes are keyed with the server's own token: where that is changed, all devices are out, too."""

    def __init__(self, token_file: Path, token: str) -> None:
        self.token_file = token_file
        self.path = token_file.with_name(token_file.name + SUFFIX)
        self._key = token.encode()
        self._read_as: tuple[int, int, int] | None = None
        self._devices: tuple[Device, ...] = ()

    def listed(self) -> tuple[Device, ...]:
        """All of them, in the order of their pairing. Raises UserError where the list cannot be read."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            self._read_as, self._devices = None, ()
            return ()
        except OSError as error:
            raise _unreadable(self.path, error) from None
        now = (state.st_mtime_ns, state.st_ino, state.st_size)
        if now != self._read_as:
            try:
                lines = self.path.read_text("utf-8").splitlines()
            except (OSError, ValueError) as error:
                raise _unreadable(self.path, error) from None
            matches = (LINE.fullmatch(line) for line in lines)
            self._devices = tuple(Device(m[3], m[2], m[1]) for m in matches if m is not None)
            self._read_as = now
        return self._devices

    def holder(self, token: str) -> Device | None:
        """Whose token it is; None of nobody's, and where the list cannot be read. Each is compared in constant time."""
        shown = self._digest(token)
        with suppress(UserError):
            matches = [device for device in self.listed() if hmac.compare_digest(device.digest, shown)]
            return matches[0] if matches else None
        return None

    def add(self, name: str) -> tuple[Device, str]:
        """A device comes in: it, by a name that no other one has, and its token, which is told only now. Raises
        DevicesFullError, UserError where the list cannot be written."""
        token = secrets.token_urlsafe(32)
        with self._changing():
            devices = self.listed()
            if len(devices) >= MOST:
                raise DevicesFullError
            taken = {device.name for device in devices}
            numbered = (f"{name} {number}" for number in range(2, MOST + 2))
            free = name if name not in taken else next(other for other in numbered if other not in taken)
            made = Device(free, date.today().isoformat(), self._digest(token))
            self._write((*devices, made))
        return made, token

    def revoke(self, name: str) -> None:
        """Take one off the list. Raises UserError where there is none of that name."""
        with self._changing():
            devices = self.listed()
            left = tuple(device for device in devices if device.name != name)
            if len(left) == len(devices):
                names = ", ".join(device.name for device in devices) or "none"
                raise UserError(f"No device {name!r} is paired.", f"Those that are: {names}.")
            self._write(left)

    def _digest(self, token: str) -> str:
        return hmac.new(self._key, token.encode("utf-8", "surrogatepass"), "sha256").hexdigest()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A server and a command may change the list at one time: one waits for the other."""
        try:
            held = self.token_file.open()
        except OSError as error:
            raise _unreadable(self.token_file, error) from None
        with held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def _write(self, devices: tuple[Device, ...]) -> None:
        text = "".join(f"{one.digest} {one.since} {one.name}\n" for one in devices)
        try:
            # Made with mode 600.
            number, made = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            try:
                with os.fdopen(number, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(made, self.path)
            except BaseException:
                Path(made).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise UserError(
                f"The list of paired devices {self.path} cannot be written ({error.strerror or error}).",
                "Make room for it, or give a --token-file in a folder that may be written.",
            ) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read ({type(error).__name__}).", "Give a file that you may read.")
