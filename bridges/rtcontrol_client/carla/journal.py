"""A journal of changes on the CARLA server, written before each change so that another process can undo them."""

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
    """The changes to undo on a server: the original `settings` (None: unchanged), and the `actors` that we spawned."""

    host: str
    port: int
    pid: int = 0
    born: int = 0
    episode: int | None = None
    settings: dict[str, Any] | None = None
    actors: list[int] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return self.settings is None and not self.actors


class Journal:
    """The journal of a running bridge. Every method returns after the file is written completely, or raises
    CarlaBridgeError."""

    def __init__(self, path: Path, host: str, port: int) -> None:
        self.path = path
        self.left = UndoRecord(host, port, os.getpid(), _process_start(os.getpid()))

    def begin(self, episode: int) -> None:
        """Record a new world, in which there are no actors of ours yet."""
        self.left = UndoRecord(self.left.host, self.left.port, self.left.pid, self.left.born, episode)
        self._write_file()

    def moved(self, episode: int) -> None:
        """Record that the server loaded another world but kept its settings."""
        self.left.episode, self.left.actors = episode, []
        self._write_file()

    def settings(self, original: Mapping[str, Any]) -> None:
        """Record the original settings before they change."""
        self.left.settings = dict(original)
        self._write_file()

    def spawned(self, actor: int) -> None:
        """Record a vehicle that the bridge spawned."""
        self.left.actors.append(actor)
        self._write_file()

    def close(self) -> None:
        """Remove the file, after everything was undone."""
        self.path.unlink(missing_ok=True)

    def _write_file(self) -> None:
        part = self.path.with_suffix(f".{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(self.left)), "utf-8")
            os.replace(part, self.path)
        except OSError as error:
            text = f"The changes to undo on the CARLA server cannot be recorded ({error})."
            raise CarlaBridgeError(text, "Set RTCONTROL_CACHE to a folder that can be written to.") from None


def read(path: Path) -> UndoRecord:
    """Read a journal. Raises CarlaBridgeError if the file is not a journal."""
    try:
        return UndoRecord(**json.loads(path.read_text("utf-8")))
    except (OSError, TypeError, ValueError) as error:
        text = f"{path} is not the file of a CARLA bridge ({error})."
        raise CarlaBridgeError(text, "Give the file that the bridge left.") from None


def folder() -> Path:
    """Return the folder of all journals: `$RTCONTROL_CACHE/carla`, otherwise a folder in the user's cache."""
    if base := os.environ.get("RTCONTROL_CACHE"):
        return Path(base) / "carla"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (it never raises)
    return Path(cache) / "rtcontrol" / "carla"


def place(host: str, port: int) -> Path:
    """Return the path of this process's journal for a server."""
    name = f"{host}-{port}".replace(":", "_").replace("/", "_")
    return folder() / f"{name}-{os.getpid()}.json"


def others(host: str, port: int) -> Iterator[tuple[Path, UndoRecord, bool]]:
    """Yield the journals of this user's other bridges to a server, and whether their processes are alive."""
    for path in sorted(folder().glob("*.json")):
        with contextlib.suppress(CarlaBridgeError):
            left = read(path)
            if (left.host, left.port) == (host, port) and left.pid != os.getpid():
                yield path, left, left.born == _process_start(left.pid) != 0


def _process_start(pid: int) -> int:
    """Return when a process started, in clock ticks since boot, to detect a reused number; 0 if it is dead."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if after_name[0] == "Z" else int(after_name[19])
