"""Lock folders against other processes, and replace files atomically."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from rtcontrol.models.errors import UserError


def lock(folder: Path) -> int:
    """Lock a folder for this process, and return a file descriptor; closing it releases the lock. Raises UserError if
    another process has the lock, and OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"{folder} is in use by another run.", "Give another --out.") from None
    except OSError:
        pass  # the file system does not support locks
    return descriptor


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder within a `with` block. Raises UserError if another process has the lock, and OSError."""
    descriptor = lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def remove_link(path: Path) -> Path:
    """Remove a symbolic link at this path, so that a file can be written here and not at the link's target. Return the
    path."""
    with contextlib.suppress(OSError):  # the following write reports the error
        if path.is_symlink():
            path.unlink()
    return path


def part_path(path: Path) -> Path:
    """Return `PATH.part`, the name of an incomplete file."""
    return remove_link(path.with_name(f"{path.name}.part"))


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically: after an error the old content is unchanged.

    Anything but a plain file, such as a pipe, is written directly. Raises OSError.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
        return
    part = part_path(path)
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
