"""What was answered to each row, in a file that a run which was stopped goes on with.

The first line says what answered, and to which rows; then a line each answer, in the order in which they came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Self

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow, json_lines
from rtcontrol.models.errors import UserError

FORMAT = 1
KEY = "rtcontrol_predictions"
KNOWN = ("ms", "passes", "tokens", "error")


@dataclass(frozen=True)
class Prediction:
    """The answer to one row: its calls (none: the call in force stays, or there is an `error`, which says why there is
    none); the `confidence` of each head; milliseconds from request to call; forward passes, and tokens that went
    through the model."""

    id: str
    calls: tuple[Call, ...]
    confidence: Mapping[str, float] = field(default_factory=dict)
    ms: float | None = None
    passes: int | None = None
    tokens: int | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As it is written; what is not known is left out."""
        found: dict[str, Any] = {"id": self.id, "calls": [call.to_dict() for call in self.calls]}
        if self.confidence:
            found["confidence"] = {name: round(value, 6) for name, value in self.confidence.items()}
        known = {name: getattr(self, name) for name in KNOWN}
        return found | {name: value for name, value in known.items() if value is not None}

    @classmethod
    def from_dict(cls, value: Any, where: str) -> Self:
        """Raises UserError for what is none."""
        try:
            calls = tuple(Call.from_dict(call) for call in value["calls"])
            sure = {str(k): float(v) for k, v in value.get("confidence", {}).items()}
            return cls(str(value["id"]), calls, sure, **{name: value.get(name) for name in KNOWN})
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{where}: it is no answer to a row ({error!r}).", "Give another file.") from None


def digest(rows: Sequence[DataRow]) -> str:
    """The same for the same rows in the same order."""
    found = hashlib.sha256()
    for row in rows:
        found.update(json.dumps(row.to_dict(), sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return found.hexdigest()[:16]


class Predictions:
    """The answers so far, by row. With a `path` each is in the file as soon as it is added.

    `head` has what answers (`model`), and to what (`data`): where the file has another, nothing is written, and
    UserError names the difference.
    """

    def __init__(self, head: Mapping[str, Any], path: Path | None) -> None:
        self.head, self.path = json.loads(json.dumps(head)), path
        self.found: dict[str, Prediction] = {}
        self._file: FileIO | None = None
        if path is not None and path.exists() and not path.is_file():
            raise UserError(f"{path} is no file.", "Give a file for the answers.")
        if path is not None and path.is_file() and path.stat().st_size:
            self.found = _kept(path, self.head)

    def add(self, one: Prediction) -> None:
        """Raises UserError where it cannot be written, as on a full disk: what was there stays."""
        self.found[one.id] = one
        if self.path is None:
            return
        try:
            if self._file is None:
                self._file = self._opened(self.path)
            _write(self._file, one.to_dict())
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); {len(self.found) - 1} answers are kept.",
                "Make room, and give the same command again: it goes on there.",
            ) from None

    def _opened(self, path: Path) -> FileIO:
        """Without a buffer: what a full disk does not take is not tried again when it is closed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = path.is_file() and path.stat().st_size > 0
        file = path.open("ab" if begun else "wb", buffering=0)
        if not begun:
            _write(file, {KEY: FORMAT, **self.head})
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _kept(path: Path, head: Mapping[str, Any]) -> dict[str, Prediction]:
    """Return a file's answers; a last line that was not finished is cut, its answer comes again. Raises UserError."""
    whole = path.read_bytes()
    try:
        had = json.loads(whole.partition(b"\n")[0])
    except (ValueError, RecursionError):
        had = None
    if not isinstance(had, dict) or had.get(KEY) != FORMAT:
        raise UserError(f"{path} holds no answers of an evaluation.", "Give a file that `rtcontrol eval --out` wrote.")
    for part in head:
        mine, other = head[part], had.get(part) or {}
        # The same rows may be read from another place.
        if keys := [k for k in mine if k != "source" and mine[k] != other.get(k)]:
            shown = ", ".join(f"{k} {other.get(k)!r}, not {mine[k]!r}" for k in keys)
            raise UserError(
                f"{path} holds answers of another {part}: {shown}.", "Give the command that began it, or another --out."
            )
    if not whole.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(whole.rfind(b"\n") + 1)
    lines = ((line, value) for line, value in json_lines(path) if line > 1)
    return {one.id: one for line, value in lines for one in [Prediction.from_dict(value, f"{path}:{line}")]}


def _write(file: FileIO, value: Any) -> None:
    left = memoryview((json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode())
    while left:
        left = left[file.write(left) :]
