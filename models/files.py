"""Folders that one process at a time writes to, and files that are replaced as a whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from rtcontrol.models.errors import UserError


def lock(folder: Path) -> int:
    """Return a descriptor that locks the folder for this process until it is closed. Raises OSError, and UserError
    where another process has the lock."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise UserError(f"{folder} is in use by another run.", "Give another --out.") from None
    except OSError:
        pass  # a file system without locks
    return held


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Lock the folder for this process meanwhile. Raises UserError where another process has it, and OSError."""
    held = lock(folder)
    try:
        yield
    finally:
        os.close(held)


def no_link(path: Path) -> Path:
    """Return the path, with a link in its place removed, so that the file is written there."""
    with contextlib.suppress(OSError):  # the writer reports it
        if path.is_symlink():
            path.unlink()
    return path


def part_of(path: Path) -> Path:
    """Return `PATH.part`, the name of a file until it is complete."""
    return no_link(path.with_name(f"{path.name}.part"))


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file as a whole; until then, and after an error, the old content stays.

    Anything but a plain file, such as a pipe, is written directly. Raises OSError.
    """
    packed = content.encode() if isinstance(content, str) else content
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(packed)
        return
    part = part_of(path)
    try:
        part.write_bytes(packed)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
