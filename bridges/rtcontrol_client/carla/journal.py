"""A journal of the bridge's changes on the CARLA server, written in advance so that another process can undo them."""

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
    """The changes to undo on a server: restore the original `settings` (None: unchanged), destroy our `actors`."""

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
    """The journal file of a running bridge. Every method returns after the file has been written completely, or raises
    CarlaBridgeError."""

    def __init__(self, path: Path, host: str, port: int) -> None:
        self.path = path
        self.record = UndoRecord(host, port, os.getpid(), _process_start(os.getpid()))

    def record_world(self, episode: int) -> None:
        """Record the world (CARLA's episode) in which the bridge works; it has no actors of the bridge yet."""
        self.record = UndoRecord(self.record.host, self.record.port, self.record.pid, self.record.born, episode)
        self._write_file()

    def record_world_change(self, episode: int) -> None:
        """Record that the server loaded another world but kept its settings."""
        self.record.episode, self.record.actors = episode, []
        self._write_file()

    def record_settings(self, original: Mapping[str, Any]) -> None:
        """Record the original settings before they change."""
        self.record.settings = dict(original)
        self._write_file()

    def record_actor(self, actor: int) -> None:
        """Record a vehicle that the bridge spawned."""
        self.record.actors.append(actor)
        self._write_file()

    def close(self) -> None:
        """Remove the file, after all changes were undone."""
        self.path.unlink(missing_ok=True)

    def _write_file(self) -> None:
        part = self.path.with_suffix(f".{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(self.record)), "utf-8")
            os.replace(part, self.path)
        except OSError as error:
            text = f"The changes to undo on the CARLA server cannot be recorded ({error})."
            raise CarlaBridgeError(text, "Set RTCONTROL_CACHE to a writable folder.") from None


def read_journal(path: Path) -> UndoRecord:
    """Read a journal. Raises CarlaBridgeError if the file is not a journal."""
    try:
        return UndoRecord(**json.loads(path.read_text("utf-8")))
    except (OSError, TypeError, ValueError) as error:
        text = f"{path} is not the journal of a CARLA bridge ({error})."
        raise CarlaBridgeError(text, f"Use a .json file in {journal_folder()}.") from None


def journal_folder() -> Path:
    """Return the folder of all journals: `$RTCONTROL_CACHE/carla`, otherwise a folder in the user's cache."""
    if base := os.environ.get("RTCONTROL_CACHE"):
        return Path(base) / "carla"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (it never raises)
    return Path(cache) / "rtcontrol" / "carla"


def journal_path(host: str, port: int) -> Path:
    """Return the path of this process's journal for a server."""
    name = f"{host}-{port}".replace(":", "_").replace("/", "_")
    return journal_folder() / f"{name}-{os.getpid()}.json"


def other_journals(host: str, port: int) -> Iterator[tuple[Path, UndoRecord, bool]]:
    """Yield the journals of this user's other bridges to a server, and whether their processes are alive."""
    for path in sorted(journal_folder().glob("*.json")):
        with contextlib.suppress(CarlaBridgeError):
            left = read_journal(path)
            if (left.host, left.port) == (host, port) and left.pid != os.getpid():
                yield path, left, left.born == _process_start(left.pid) != 0


def _process_start(pid: int) -> int:
    """Return when a process started, in clock ticks since boot, to detect a reused process id; 0 if it is dead."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if after_name[0] == "Z" else int(after_name[19])
