"""Describe an exception for users: its text, and the file and line of their code that raised it."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

from rtcontrol.models.errors import UserError

# Folders of Python's standard library and installed packages. Code in these folders is not the user's.
INSTALLED = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")}
)


def location(error: BaseException) -> str | None:
    """Return file and line (`file.py:12`) of the innermost stack frame in the user's code, else of the innermost frame.

    Return None if the error was never raised, or is a UserError of rtcontrol, whose message needs no location."""
    frames = list(traceback.walk_tb(error.__traceback__))
    outside = [(frame, line) for frame, line in frames if not is_rtcontrol_frame(frame)]
    user = [(frame, line) for frame, line in outside if is_user_code(frame)]
    places = user or outside or ([] if isinstance(error, UserError) else frames)
    return frame_location(*places[-1]) if places else None


def is_rtcontrol_frame(frame: FrameType) -> bool:
    """Return whether a frame runs code of rtcontrol."""
    return str(frame.f_globals.get("__name__", "")).startswith("rtcontrol.")


def is_user_code(frame: FrameType) -> bool:
    """Return whether a frame runs the user's code (not rtcontrol, installed packages or the standard library)."""
    return not is_rtcontrol_frame(frame) and not frame.f_code.co_filename.startswith((*INSTALLED, "<"))


def frame_location(frame: FrameType, line: int | None) -> str:
    """Return file and line of a frame (`file.py:12`), relative to the working directory or an import path."""
    name = frame.f_code.co_filename
    with contextlib.suppress(FileNotFoundError):  # the working directory may be deleted
        for folder in (Path.cwd(), *map(Path, sys.path)):
            if folder.is_absolute() and Path(name).is_relative_to(folder):
                return f"{Path(name).relative_to(folder)}:{line}"
    return f"{name}:{line}"


def message(error: BaseException) -> str:
    """Return the type and message of an error in one line. For a UserError return only the message."""
    try:
        text = str(error)
    except Exception as fault:  # the __str__ of a user's exception class may raise any error
        text = f"(no message: its __str__ raises {type(fault).__name__})"
    return " ".join((text if isinstance(error, UserError) else f"{type(error).__name__}: {text}").split())
