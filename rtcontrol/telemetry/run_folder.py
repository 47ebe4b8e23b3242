"""The folder of a run, the files of its record, and the facts about the machine for the record's header."""

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
    """A context that reserves the folder of a run (`path`) against other live runs.

    If `wanted` is the empty path, a new folder is made: `base`, or `base-2` and so on. The lock ends with the process
    in any case. Folders that are still empty at the end are removed. Raises UserError if another run uses the folder,
    or left its record there (unless `overwrite`).
    """

    def __init__(self, wanted: Path, base: Path, overwrite: bool = False) -> None:
        self._new, self._overwrite = wanted == Path(), overwrite
        self.path = base if self._new else wanted
        self._folders: list[Path] = []
        self._lock = -1

    def __enter__(self) -> Self:
        base, number = self.path, 1
        while self._lock < 0:
            try:
                self._folders = make_folder(self.path, exclusive=self._new)
                self._lock = lock(self.path)
            except FileExistsError:
                if not self._new:
                    raise unwritable(self.path, "it is not a folder") from None
                number += 1
                self.path = base.with_name(f"{base.name}-{number}")
            except OSError as error:
                raise unwritable(self.path, error.strerror) from error
        if not self._overwrite and record_of(self.path) is not None:
            self.__exit__()
            raise UserError(
                f"{self.path} holds the record of a run already.", "Give another --out, or --set record.overwrite=true."
            )
        return self

    def __exit__(self, *exc: object) -> None:
        remove_empty(self._folders)
        os.close(self._lock)


def record_of(folder: Path) -> Path | None:
    """Return the record in a run's folder, or None. If a run was killed between two parts, only older parts exist."""
    record = folder / RECORD
    return record if record.exists() or older_parts(record) else None


def older_part(record: Path, number: int) -> Path:
    """Return the path of an older part of a record: `record.0001.mcap` is the first of `record.mcap`."""
    return record.with_name(f"{record.stem}.{number:04}{record.suffix}")


def older_parts(record: Path) -> list[Path]:
    """Return the existing older parts in order. The newest part is the record itself."""
    paths = record.parent.glob(f"{glob.escape(record.stem)}.*{record.suffix}")
    numbered = {int(p.stem[len(record.stem) + 1 :]): p for p in paths if p.stem[len(record.stem) + 1 :].isdigit()}
    return [numbered[number] for number in sorted(numbered)]


def make_folder(path: Path, exclusive: bool = False) -> list[Path]:
    """Make a folder and its parents; return the new ones. Raises OSError, with `exclusive` also if the folder
    exists."""
    new = [p for p in (path, *path.parents) if not p.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{path.parent} is not a folder") from error
    path.mkdir(exist_ok=not exclusive)
    return new


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders that are still empty, the innermost first."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def unwritable(path: Path, why: str | None) -> UserError:
    """Return the UserError for a path that cannot be written."""
    return UserError(f"{path} cannot be written ({why}).", "Give another --out.")


def version(package: str) -> str | None:
    """Return the installed version of a package, or None if it is not installed. Nothing is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Return the processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def describe() -> dict[str, Any]:
    """Return facts about the machine, without its name: system, CPU, cores, and relevant versions."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "ray", "pyzmq", "numpy", "gymnasium")},
    }
