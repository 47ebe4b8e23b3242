"""Lock folders against other processes, and replace files atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rtcontrol.models.errors import UserError


def lock_folder(folder: Path) -> int:
    """Lock a folder for this process, and return a file descriptor for `unlock_folder`. Raises UserError if another
    process has the lock, and OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"{folder} is in use by another run.", "Give another --out.") from None
    except OSError:
        pass  # the file system does not support locks
    _locks.add(descriptor)
    return descriptor


def unlock_folder(descriptor: int) -> None:
    """Release the lock of a folder."""
    _locks.discard(descriptor)
    os.close(descriptor)


def _unlock_all_folders() -> None:
    """Release all locks in a forked process: it may outlive this process, and would keep the folders locked."""
    for descriptor in tuple(_locks):
        unlock_folder(descriptor)


_locks: set[int] = set()  # file descriptors of the locked folders
os.register_at_fork(after_in_child=_unlock_all_folders)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder within a `with` block. Raises UserError if another process has the lock, and OSError."""
    descriptor = lock_folder(folder)
    try:
        yield
    finally:
        unlock_folder(descriptor)


def part_path(path: Path) -> Path:
    """Return `PATH.part`, the name of an incomplete file."""
    return path.with_name(f"{path.name}.part")


def create_file(path: Path) -> int:
    """Create an empty file, and return a file descriptor for writing. A file, link, pipe or socket with the same path
    is replaced. Raises OSError, also for a device."""
    _check_no_device(path)
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _check_no_device(path: Path) -> None:
    if not path.is_symlink() and (path.is_char_device() or path.is_block_device()):
        raise OSError(errno.EINVAL, "it is a device")


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file that the program named, atomically: after an error the old content is unchanged. A link, pipe or
    socket with this path is replaced, so that it cannot redirect or block the output. Raises OSError."""
    _check_no_device(path)
    part = part_path(path)
    try:
        with os.fdopen(create_file(part), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def write_output(path: Path, content: str) -> None:
    """Write a file that the user named, atomically; but if it is a link, pipe or device, write to it instead of
    replacing it. Raises OSError."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with open_output(path) as file:
            if path.is_file():
                file.truncate(0)
            file.write(content.encode())
    else:
        replace_file(path, content)


def open_output(path: Path) -> BinaryIO:
    """Open a file for appending, or a pipe or device for writing. Raises OSError, also if no program reads a pipe."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is a socket, or a pipe that no program reads") from None
        raise
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "ab")
