"""Files of this process alone: a folder that one at a time writes into, and a file that is not a link to another."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from rtcontrol.models.errors import UserError


def lock(folder: Path) -> int:
    """A descriptor that holds the folder for this process, until it is closed or the process ends. Raises OSError, and
    UserError where another holds it."""
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
    """Meanwhile the folder is this process's. Raises UserError where it is another's, and OSError."""
    held = lock(folder)
    try:
        yield
    finally:
        os.close(held)


def no_link(path: Path) -> Path:
    """The path, with a link that lies there taken away: what is written there is written there."""
    with contextlib.suppress(OSError):  # the writer reports it
        if path.is_symlink():
            path.unlink()
    return path


def part_of(path: Path) -> Path:
    """`PATH.part`, where a file is written that will take the name of `path` when it is whole."""
    return no_link(path.with_name(f"{path.name}.part"))


def replace_file(path: Path, content: str | bytes) -> None:
    """It holds this when all of it is written; until then, and where it cannot be, what it held before.

    What is not a plain file, such as a pipe, is written as it is. Raises OSError.
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
