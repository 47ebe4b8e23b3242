"""A run's folder, and its record: JSON lines, each written with one unbuffered write, readable after SIGKILL."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from rtcontrol.models.errors import UserError

SCHEMA_VERSION = 1
# Lines that wait for room on the disk: about 40 MB, an hour at 30 Hz. Of these, so many are written with one tick's.
KEPT, AT_ONCE = 100_000, 50


class Folder:
    """A run's folder while it is entered: no other live run's. `path` is it.

    Where `wanted` is the empty path a new one is made, `base` or `base-2` and so on. The lock is the folder's own and
    ends with the process, however that ends. What is still empty at the end is taken away again. UserError where
    another run uses the folder, or left its record there (but with `overwrite`).
    """

    def __init__(self, wanted: Path, base: Path, overwrite: bool = False) -> None:
        self._new, self._overwrite = wanted == Path(), overwrite
        self.path = base if self._new else wanted
        self._made: list[Path] = []
        self._lock = -1

    def __enter__(self) -> Self:
        base, number = self.path, 1
        while True:
            try:
                self._made = make_folder(self.path, exclusive=self._new)
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                break
            except FileExistsError:
                if not self._new:
                    raise _unwritable(self.path, "it is no folder") from None
                number += 1
                self.path = base.with_name(f"{base.name}-{number}")
            except OSError as error:
                raise _unwritable(self.path, error.strerror) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UserError(f"{self.path} is in use by another run.", "Give another --out.") from None
        except OSError:
            pass  # a file system without locks
        if (self.path / "record.jsonl").exists() and not self._overwrite:
            self.__exit__()
            raise UserError(f"{self.path} holds the record of a run already.", "Give another --out, or --overwrite.")
        return self

    def __exit__(self, *exc: object) -> None:
        unmake(self._made)
        os.close(self._lock)


def make_folder(path: Path, exclusive: bool = False) -> list[Path]:
    """Make it, and what it stands in; gives what was made. `exclusive`: FileExistsError where it is there already."""
    made = [p for p in (path, *path.parents) if not p.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(exist_ok=not exclusive)
    return made


def unmake(made: Iterable[Path]) -> None:
    """Take away those that are still empty, the innermost first."""
    with contextlib.suppress(OSError):
        for folder in made:
            folder.rmdir()


def _unwritable(path: Path, why: str | None) -> UserError:
    return UserError(f"{path} cannot be written ({why}).", "Give another --out.")


class Recorder:
    """Appends lines to `path`. A disk that takes no more never stops the loop: what it refused waits in memory, is
    written when there is room again, and is counted in `lost` until then. `tell` is told of the first one at once.

    The first line is the run's header (`{"header": ..., "schema_version": 1}`). A `provisional` record has another
    name (`record.jsonl.part`) until `keep`: a run that never starts takes nothing of an earlier one, and `discard`
    leaves no trace of it.
    """

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        provisional: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part") if provisional else None
        self.lines = 0
        self.error: str | None = None
        self._waiting: deque[bytes] = deque()
        self._dropped = 0
        self._tell = tell
        try:
            self._made = make_folder(path.parent)
            self._fd = os.open(
                self._part or path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise _unwritable(path, error.strerror) from error
        self._torn = False
        self.write({"header": header, "schema_version": SCHEMA_VERSION})

    @property
    def lost(self) -> int:
        """Lines that the disk did not take; one that is on its way to it is none."""
        return self._dropped + (len(self._waiting) if self.error is not None else 0)

    def unwritten(self) -> Iterator[dict[str, Any]]:
        """Those of them that are still known, `KEPT` at most."""
        return map(json.loads, self._waiting)

    def write(self, line: dict[str, Any] | None) -> None:
        """None: what waits alone."""
        if line is not None:
            self._waiting.append(json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n")
        for _ in range(min(len(self._waiting), AT_ONCE)):
            # A write cut short by a full disk left half a line: that is ended first, so that this one can be read.
            data = b"\n" * self._torn + self._waiting[0]
            try:
                written = os.write(self._fd, data)
            except OSError as error:
                self._refused(error.strerror or str(error))
                return
            self._torn = written < len(data)
            if written < len(data) - 1:  # else only the end of the line is missing, and comes with the next one
                self._refused("a line was cut short")
                return
            self._waiting.popleft()
            self.lines += 1

    def _refused(self, why: str) -> None:
        if self.error is None:
            self._tell(
                f"The disk takes no more of {self._path} ({why}). It goes on without: free some space before the end, "
                "and what waits is written; or lines of the record are lost."
            )
        self.error = why
        if len(self._waiting) > KEPT:
            self._waiting.popleft()
            self._dropped += 1

    def keep(self) -> None:
        """The run has begun: from now on the record stands under its own name. Twice does no harm."""
        if self._part is not None:
            try:
                os.replace(self._part, self._path)
            except OSError as error:
                self.error = error.strerror
            self._part = None

    def discard(self) -> None:
        """The run never began: take away what was made for it. Does nothing after `keep`."""
        if self._part is not None:
            with contextlib.suppress(OSError):
                self._part.unlink()
                unmake(self._made)
            self._part = None

    def close(self) -> None:
        """Writes what waits, as far as there is room."""
        left = len(self._waiting) + 1
        while 0 < len(self._waiting) < left:
            left = len(self._waiting)
            self.write(None)
        os.close(self._fd)


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """The record's lines, one at a time; lines that were cut short are left out. UserError when there is none."""
    try:
        with path.open("rb") as file:
            for raw in file:
                try:
                    line = json.loads(raw)
                except ValueError:
                    continue
                if isinstance(line, dict):
                    yield line
    except OSError as error:
        raise UserError(f"No record at {path} ({error.strerror}).", "Give a run's directory.") from error
