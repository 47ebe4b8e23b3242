"""Errors that the user can fix, and the reading of files that most of them are about."""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any


class UserError(Exception):
    """A mistake in the user's input: the command line prints it as one paragraph and exits with status 2.

    `what` says what happened and where, `remedy` what to do next.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


def home() -> Path | None:
    """Return the user's home folder; None without one, as for a user without an entry in passwd and without HOME."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def user_path(given: str) -> Path:
    """Return the path that a user gave, with `~` expanded. Raises UserError where that is not possible."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise UserError(
            f"{given}: nobody knows where ~ is (HOME is not set).", "Set HOME, or give the path in full."
        ) from None


def too_long(context: int, prompt: int | None = None) -> UserError:
    """Return the error of a call that does not fit after the prompt."""
    which = "The prompt" if prompt is None else f"The prompt of {prompt} tokens"
    return UserError(
        f"{which} leaves no room for the call in the model's context of {context}.",
        "Shorten the instruction or the observation, or describe fewer tools.",
    )


def unmarked(raw: bytes, where: str | Path) -> bytes:
    """Return the first bytes of a user's file without its byte order mark. Raises UserError with `where` for UTF-16 and
    UTF-32, which have NUL bytes or another mark."""
    if (encoding := json.detect_encoding(raw[:4])).startswith(("utf-16", "utf-32")):
        problem = f"{where} cannot be read: it is {encoding[:6].upper()}, not UTF-8 text."
        raise UserError(problem, "Save it as UTF-8 (Windows PowerShell: `| Out-File -Encoding utf8`, not `>`).")
    return raw.removeprefix(BOM_UTF8)


def decoded(raw: bytes, where: str | Path) -> str:
    """Return the text of a user's file: UTF-8, with or without a byte order mark. Raises UserError with `where`."""
    try:
        return unmarked(raw, where).decode()
    except UnicodeDecodeError as error:
        problem = f"{where} cannot be read: it is not UTF-8 text ({error.reason} at byte {error.start})."
        raise UserError(problem, "Save it as UTF-8.") from None


def read_text(path: Path) -> str:
    """Read a user's file, with lines that end in \\n. Raises OSError, and UserError where it is not UTF-8."""
    return decoded(path.read_bytes(), path).replace("\r\n", "\n")


def read_json(path: Path, missing: UserError, remedy: str) -> dict[str, Any]:
    """Return the JSON object of a file. Raises `missing` without a file, else UserError with this remedy."""
    try:
        value = json.loads(read_text(path))
    except FileNotFoundError:
        raise missing from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}).", remedy) from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object.", remedy)
    return value


# JSON alone: Python takes NaN for a number, reads 1e400 as infinity, and of two values of one key takes the last.


def strict_json(text: str) -> Any:
    """Return the value of JSON text. Raises ValueError for invalid JSON, and for a key twice in one object."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=each_once)


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of these pairs. Raises ValueError for a repeated key, of which parsers take the first or the
    last value."""
    table = dict(pairs)
    if len(table) < len(pairs):
        known: set[str] = set()
        twice = next(key for key, _ in pairs if key in known or known.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return table


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a JSON number, or too large")
    return number
