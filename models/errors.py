"""Define UserError, the exception for errors that the user can fix, and read the user's files strictly."""

from __future__ import annotations

import errno
import json
import math
import os
import select
import stat
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any, BinaryIO

WRITER_S = 5.0  # seconds to wait until another process writes to a pipe


def quoted_name(name: object) -> str:
    """Return a name that a user chose, for a message. It is quoted and escaped unless it consists of words joined by
    `-`, `.`, `/` or `_`."""
    text = str(name)
    plain = text and f"_{text}".replace("-", "_").replace(".", "_").replace("/", "_").isidentifier()
    return text[:64] if plain else json.dumps(text[:64], ensure_ascii=not text.isprintable())


class UserError(Exception):
    """An error in the user's input. The command line prints both sentences and exits with status 2.

    `what` is a sentence about the error and its place, `remedy` a sentence about what the user can do.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


def home_folder() -> Path | None:
    """Return the user's home folder, or None if HOME is not set and the user has no passwd entry."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def user_path(path: str) -> Path:
    """Return `path` with `~` expanded to the home folder. Raises UserError if the home folder is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(
            f"{path}: ~ cannot be expanded, because HOME is not set.", "Set HOME, or give the path in full."
        ) from None


def prompt_too_long(context: int, prompt: int | None = None) -> UserError:
    """Return the UserError for a prompt that does not fit the model's context. Both arguments are numbers of tokens."""
    which = "The prompt" if prompt is None else f"The prompt of {prompt} tokens"
    return UserError(
        f"{which} leaves no room for the call in the model's context of {context}.",
        "Shorten the instruction or the observation, or describe fewer tools.",
    )


def strip_byte_order_mark(raw: bytes, where: str | Path) -> bytes:
    """Return `raw`, the start of a file, without a UTF-8 byte order mark. Raises UserError, which names the file by
    `where`, if the text seems to be UTF-16 or UTF-32."""
    if (encoding := json.detect_encoding(raw[:4])).startswith(("utf-16", "utf-32")):
        problem = f"{where} cannot be read: it is {encoding[:6].upper()}, not UTF-8 text."
        raise UserError(problem, "Save it as UTF-8 (Windows PowerShell: `| Out-File -Encoding utf8`, not `>`).")
    return raw.removeprefix(BOM_UTF8)


def decode_utf8(raw: bytes, where: str | Path) -> str:
    """Decode UTF-8 with or without a byte order mark. Raises UserError, which names the file by `where`."""
    try:
        return strip_byte_order_mark(raw, where).decode()
    except UnicodeDecodeError as error:
        problem = f"{where} cannot be read: it is not UTF-8 text ({error.reason} at byte {error.start})."
        raise UserError(problem, "Save it as UTF-8.") from None


def open_input(path: Path, pipes: bool = True) -> BinaryIO:
    """Open a file for reading; with `pipes`, also a pipe to which a program writes, a terminal, or /dev/null. Raises
    OSError, also for other devices, and for a pipe that has no data for WRITER_S, which would block the reader."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise (OSError(errno.ENXIO, "it is a socket") if error.errno == errno.ENXIO else error) from None
    if why := _reason_not_to_read(descriptor, pipes):
        os.close(descriptor)
        raise OSError(errno.EINVAL, why)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def _reason_not_to_read(descriptor: int, pipes: bool) -> str:
    """Return why an open file cannot be used as input; an empty text if it can."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISFIFO(mode) and pipes:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return "" if poll.poll(WRITER_S * 1e3) else "it is a pipe to which no program writes"
    terminal_or_null = os.isatty(descriptor) or os.path.samestat(os.fstat(descriptor), Path(os.devnull).stat())
    return "" if pipes and terminal_or_null else "it is a folder" if stat.S_ISDIR(mode) else "it is not a file"


def read_text(path: Path) -> str:
    """Read a UTF-8 file, with line ends converted to \\n. Raises OSError, and UserError if the file is not UTF-8."""
    with open_input(path) as file:
        return decode_utf8(file.read(), path).replace("\r\n", "\n")


def read_json(path: Path, missing: UserError, hint: str) -> dict[str, Any]:
    """Read a file with a JSON object. Raises `missing` if the file does not exist, and UserError with `hint` if it does
    not contain a JSON object."""
    try:
        value = json.loads(read_text(path))
    except FileNotFoundError:
        raise missing from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}).", hint) from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object.", hint)
    return value


# Python's json module accepts NaN, infinite numbers (1e400) and repeated keys. The functions below reject these.


def strict_json(text: str) -> Any:
    """Parse JSON text. Raises ValueError for invalid JSON, and for a repeated key in an object."""
    return json.loads(
        text, parse_constant=_parse_finite, parse_float=_parse_finite, object_pairs_hook=object_without_repeated_keys
    )


def object_without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of these pairs; a hook for `json.loads`. Raises ValueError for a repeated key, because JSON parsers
    differ in which of its values they use."""
    table = dict(pairs)
    if len(table) < len(pairs):
        known: set[str] = set()
        twice = next(key for key, _ in pairs if key in known or known.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the key {twice[:80]!r} twice")
    return table


def _parse_finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a JSON number, or is too large")
    return number
