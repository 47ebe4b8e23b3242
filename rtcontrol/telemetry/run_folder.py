"""Reserve the folder of a run, name the files of its record, and describe the machine for the record's header."""

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
from rtcontrol.models.files import lock_folder, unlock_folder

RECORD = "record.mcap"


class RunFolder:
    """A context manager that locks the folder `path`, so that no other running process can use it for a run.

    If `wanted` is the empty path, create a new folder: `base`, or `base-2` and so on if `base` exists. The system
    releases the lock when the process ends. Created folders that are still empty on exit are removed. Raises UserError
    if another run uses the folder, or if the folder has a record and `overwrite` is False.
    """

    def __init__(self, wanted: Path, base: Path, overwrite: bool = False) -> None:
        self._new, self._overwrite = wanted == Path(), overwrite
        self.path = (base if self._new else wanted).absolute()  # the world may change the working directory
        self._folders: list[Path] = []
        self._lock = -1

    def __enter__(self) -> Self:
        base, number = self.path, 1
        while self._lock < 0:
            try:
                self._folders = make_folder(self.path, exclusive=self._new)
                self._lock = lock_folder(self.path)
            except FileExistsError:
                if not self._new:
                    raise unwritable_error(self.path, "it is not a folder") from None
                number += 1
                self.path = base.with_name(f"{base.name}-{number}")
            except OSError as error:
                raise unwritable_error(self.path, error.strerror) from error
        if not self._overwrite and find_record(self.path) is not None:
            self.__exit__()
            raise UserError(
                f"{self.path} already has the record of a run.", "Use another --out, or --set record.overwrite=true."
            )
        return self

    def __exit__(self, *exc: object) -> None:
        remove_empty(self._folders)
        unlock_folder(self._lock)


def find_record(folder: Path) -> Path | None:
    """Return the path of the record in a run's folder, or None. It may have only older parts if the run was killed."""
    record = folder / RECORD
    return record if record.exists() or older_parts(record) else None


def older_part(record: Path, number: int) -> Path:
    """Return the path of an older part (file) of a record: `record.0001.mcap` for part 1 of `record.mcap`."""
    return record.with_name(f"{record.stem}.{number:04}{record.suffix}")


def older_parts(record: Path) -> list[Path]:
    """Return the existing older parts of a record, oldest first. The newest part has the name of the record."""
    paths = record.parent.glob(f"{glob.escape(record.stem)}.*{record.suffix}")
    numbered = {int(p.stem[len(record.stem) + 1 :]): p for p in paths if p.stem[len(record.stem) + 1 :].isdigit()}
    return [numbered[number] for number in sorted(numbered)]


def make_folder(path: Path, exclusive: bool = False) -> list[Path]:
    """Create a folder and its parents. Return the created folders, inner folders first. Raises OSError; if `exclusive`,
    also if the folder exists."""
    new = [p for p in (path, *path.parents) if not p.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{path.parent} is not a folder") from error
    path.mkdir(exist_ok=not exclusive)
    return new


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders that are empty. `folders` must list inner folders before outer folders."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def unwritable_error(path: Path, why: str | None) -> UserError:
    """Return the UserError for a path that cannot be written."""
    return UserError(f"{path} cannot be written ({why}).", "Use another --out.")


def package_version(package: str) -> str | None:
    """Return the installed version of a package, without importing it, or None if it is not installed."""
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


def describe_machine() -> dict[str, Any]:
    """Return the system, CPU, cores, load and package versions of this machine, but not its name."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        **{name: package_version(name) for name in ("torch", "ray", "pyzmq", "numpy", "gymnasium")},
    }
