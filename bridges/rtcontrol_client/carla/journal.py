"""What the bridge leaves on a server if it dies, written before it is done, so that another process can undo it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rtcontrol_client.carla.options import CarlaBridgeError


@dataclass
class UndoRecord:
    """What there is to undo on a server. `settings` are the original ones (None: untouched); `actors` are ours."""

    host: str
    port: int
    pid: int = 0
    born: int = 0
    episode: int | None = None
    settings: dict[str, Any] | None = None
    actors: list[int] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        return self.settings is None and not self.actors


class Journal:
    """The file of a running bridge. Every method returns after the file is written, whole or not at all;
    CarlaBridgeError where it cannot be."""

    def __init__(self, path: Path, host: str, port: int) -> None:
        self.path = path
        self.left = UndoRecord(host, port, os.getpid(), _born(os.getpid()))

    def begin(self, episode: int) -> None:
        """Another world: what was ours in the one before went with it."""
        self.left = UndoRecord(self.left.host, self.left.port, self.left.pid, self.left.born, episode)
        self._write()

    def moved(self, episode: int) -> None:
        """The server loaded another world, and keeps its settings."""
        self.left.episode, self.left.actors = episode, []
        self._write()

    def settings(self, original: Mapping[str, Any]) -> None:
        """The settings are about to be changed from these."""
        self.left.settings = dict(original)
        self._write()

    def spawned(self, actor: int) -> None:
        """This vehicle of ours is there."""
        self.left.actors.append(actor)
        self._write()

    def close(self) -> None:
        """All is undone."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        part = self.path.with_suffix(f".{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(self.left)), "utf-8")
            os.replace(part, self.path)
        except OSError as error:
            text = f"What is to undo on the server cannot be written down ({error})."
            raise CarlaBridgeError(text, "Set RTCONTROL_CACHE to a folder that can be written to.") from None


def read(path: Path) -> UndoRecord:
    """Return what a file says. Raises CarlaBridgeError where it is another kind of file."""
    try:
        return UndoRecord(**json.loads(path.read_text("utf-8")))
    except (OSError, TypeError, ValueError) as error:
        text = f"{path} tells nothing of a drive ({error})."
        raise CarlaBridgeError(text, "Give the file that the bridge left.") from None


def folder() -> Path:
    """Return where the files lie: `$RTCONTROL_CACHE/carla`, else in the user's cache."""
    if base := os.environ.get("RTCONTROL_CACHE"):
        return Path(base) / "carla"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (it never raises)
    return Path(cache) / "rtcontrol" / "carla"


def place(host: str, port: int) -> Path:
    """Return the file of a bridge of this process."""
    name = f"{host}-{port}".replace(":", "_").replace("/", "_")
    return folder() / f"{name}-{os.getpid()}.json"


def others(host: str, port: int) -> Iterator[tuple[Path, UndoRecord, bool]]:
    """Yield the files of other bridges of this user at this server, and whether each one's process is alive."""
    for path in sorted(folder().glob("*.json")):
        with contextlib.suppress(CarlaBridgeError):
            left = read(path)
            if (left.host, left.port) == (host, port) and left.pid != os.getpid():
                yield path, left, left.born == _born(left.pid) != 0


def _born(pid: int) -> int:
    """Return when a process started, in ticks since the machine did: its number alone may be another's by now.

    0: there is none, or it is dead and not yet waited for.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if after_name[0] == "Z" else int(after_name[19])
