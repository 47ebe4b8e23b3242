"""A run's folder: its own as long as it lives."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from rtcontrol.models.errors import UserError
from rtcontrol.models.files import lock

RECORD = "record.mcap"


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
        while self._lock < 0:
            try:
                self._made = make_folder(self.path, exclusive=self._new)
                self._lock = lock(self.path)
            except FileExistsError:
                if not self._new:
                    raise unwritable(self.path, "it is no folder") from None
                number += 1
                self.path = base.with_name(f"{base.name}-{number}")
            except OSError as error:
                raise unwritable(self.path, error.strerror) from error
        if not self._overwrite and record_of(self.path) is not None:
            self.__exit__()
            raise UserError(f"{self.path} holds the record of a run already.", "Give another --out, or --overwrite.")
        return self

    def __exit__(self, *exc: object) -> None:
        unmake(self._made)
        os.close(self._lock)


def record_of(folder: Path) -> Path | None:
    """The record of a run's folder, or None. A run that was killed between two parts left older ones alone."""
    record = folder / RECORD
    return record if record.exists() or older_parts(record) else None


def older_part(record: Path, number: int) -> Path:
    """Where an older part of a record lies: `record.0001.mcap` is the first of `record.mcap`."""
    return record.with_name(f"{record.stem}.{number:04}{record.suffix}")


def older_parts(record: Path) -> list[Path]:
    """Those that are there, in order; the newest is the record itself."""
    found = record.parent.glob(f"{glob.escape(record.stem)}.*{record.suffix}")
    numbered = {int(p.stem[len(record.stem) + 1 :]): p for p in found if p.stem[len(record.stem) + 1 :].isdigit()}
    return [numbered[number] for number in sorted(numbered)]


def make_folder(path: Path, exclusive: bool = False) -> list[Path]:
    """Make it, and what it stands in; gives what was made. `exclusive`: FileExistsError where it is there already."""
    made = [p for p in (path, *path.parents) if not p.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{path.parent} is no folder") from error
    path.mkdir(exist_ok=not exclusive)
    return made


def unmake(made: Iterable[Path]) -> None:
    """Take away those that are still empty, the innermost first."""
    with contextlib.suppress(OSError):
        for folder in made:
            folder.rmdir()


def unwritable(path: Path, why: str | None) -> UserError:
    return UserError(f"{path} cannot be written ({why}).", "Give another --out.")


def version(package: str) -> str | None:
    """The installed version, None when it is not installed; nothing is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe() -> dict[str, Any]:
    """Plain facts, no names: system, CPU, cores, and the versions that matter."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "ray", "pyzmq", "numpy", "gymnasium")},
    }
