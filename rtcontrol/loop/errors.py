"""What is told of an exception: its text, and where it came from, as people look for it: their own file and line."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

from rtcontrol.models.errors import UserError

# What is not the user's, unless nothing else is there: Python's own files, and installed packages, also those of an
# environment that this one goes on in.
INSTALLED = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")}
)


def where(error: BaseException) -> str | None:
    """`file.py:12` of the innermost frame outside rtcontrol (and installed packages), else of the innermost; None
    where it was never raised here, and of a mistake that our own code found: that names the place itself."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    outside = [(f, n) for f, n in frames if not is_ours(f)]
    own = [(f, n) for f, n in outside if is_user_code(f)]
    for found in (own, outside, [] if isinstance(error, UserError) else frames):
        if found:
            return place(*found[-1])
    return None


def is_ours(frame: FrameType) -> bool:
    """Whether it runs rtcontrol's code."""
    return str(frame.f_globals.get("__name__", "")).startswith("rtcontrol.")


def is_user_code(frame: FrameType) -> bool:
    """Whether it runs the user's code: neither rtcontrol's, nor an installed package's, nor Python's."""
    return not is_ours(frame) and not frame.f_code.co_filename.startswith((*INSTALLED, "<"))


def in_package(error: BaseException) -> bool:
    """Whether it comes out of an installed package's code alone: none of the user's ran."""
    outside = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if not is_ours(frame)]
    return bool(outside) and not any(map(is_user_code, outside))


def place(frame: FrameType, line: int | None) -> str:
    """`file.py:12`, as people look for it."""
    return f"{_short(frame.f_code.co_filename)}:{line}"


def text(error: BaseException) -> str:
    """Type and message, in one line; of a user's mistake the message alone."""
    try:
        message = str(error)
    except Exception as fault:  # of the user's own class
        message = f"(no message: its __str__ raises {type(fault).__name__})"
    return " ".join((message if isinstance(error, UserError) else f"{type(error).__name__}: {message}").split())


def _short(name: str) -> str:
    with contextlib.suppress(FileNotFoundError):  # the working directory may be gone
        for folder in (Path.cwd(), *map(Path, sys.path)):
            if folder.is_absolute() and (path := Path(name)).is_relative_to(folder):
                return str(path.relative_to(folder))
    return name
