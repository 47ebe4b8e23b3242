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


@dataclass(frozen=True)
class Prediction:
    """The answer to one row: its calls (none: the call in force stays, or there is an `error`, which says why there is
    none); the `confidence` of each head; milliseconds from request to call, `opening_ms` those before it that the
    row's tools took; forward passes; tokens that went through the model, and that it wrote one after the other."""

    id: str
    calls: tuple[Call, ...]
    confidence: Mapping[str, float] = field(default_factory=dict)
    ms: float | None = None
    opening_ms: float | None = None
    passes: int | None = None
    tokens: int | None = None
    written: int | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As it is written; what is not known is left out."""
        found: dict[str, Any] = {"id": self.id, "calls": [call.to_dict() for call in self.calls]}
        if self.confidence:
            found["confidence"] = {name: round(value, 6) for name, value in self.confidence.items()}
        for name in ("ms", "opening_ms"):
            if (ms := getattr(self, name)) is not None:
                found[name] = round(ms, 4)
        for name in ("passes", "tokens", "written", "error"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        return found

    @classmethod
    def from_dict(cls, value: Any, where: str) -> Self:
        """Raises UserError for what is none."""
        try:
            calls = tuple(Call.from_dict(call) for call in value["calls"])
            sure = {str(k): float(v) for k, v in value.get("confidence", {}).items()}
            known = {k: value.get(k) for k in ("ms", "opening_ms", "passes", "tokens", "written", "error")}
            return cls(str(value["id"]), calls, sure, **known)
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

    `head` says what answers (`model`), and to what (`data`): where the file has another, nothing is written, and
    UserError says what differs.
    """

    def __init__(self, head: Mapping[str, Any], path: Path | None) -> None:
        self.head, self.path = json.loads(json.dumps(head)), path
        self.found: dict[str, Prediction] = {}
        self._file: FileIO | None = None
        if path is not None and path.exists() and not path.is_file():
            raise UserError(f"{path} is no file.", "Give a file for the answers.")
        if path is not None and path.is_file() and path.stat().st_size:
            _check_same(_head(path), self.head, path)
            _mend(path)
            self.found = read(path)[1]

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


def read(path: Path) -> tuple[dict[str, Any], dict[str, Prediction]]:
    """The first line's words, and the answers by row. Raises UserError with file and line."""
    head, found = _head(path), dict[str, Prediction]()
    for line, value in json_lines(path):
        if isinstance(value, dict) and KEY in value:
            continue
        one = Prediction.from_dict(value, f"{path}:{line}")
        if one.id in found:
            raise UserError(f"{path}:{line}: the row {one.id!r} was answered before.", "Take one of the lines away.")
        found[one.id] = one
    return head, found


def _head(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as lines:
            head = json.loads(lines.readline())
    except (OSError, ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get(KEY) != FORMAT:
        raise UserError(f"{path} holds no answers of an evaluation.", "Give a file that `rtcontrol eval --out` wrote.")
    return {k: v for k, v in head.items() if k != KEY}


def _mend(path: Path) -> None:
    """Cut a last line that was not finished: its answer comes again."""
    with path.open("r+b") as file:
        whole = file.read()
        if not whole.endswith(b"\n"):
            file.truncate(whole.rfind(b"\n") + 1)


def _check_same(had: Mapping[str, Any], head: Mapping[str, Any], path: Path) -> None:
    for part in head:
        mine, theirs = head[part], had.get(part)
        # The same rows may be read from another place.
        if mine == theirs or (isinstance(theirs, dict) and theirs.get("digest", "") == mine.get("digest")):
            continue
        keys = [k for k in mine if not isinstance(theirs, dict) or mine[k] != theirs.get(k)]
        shown = ", ".join(f"{k} {(theirs or {}).get(k)!r}, not {mine[k]!r}" for k in keys)
        raise UserError(
            f"{path} holds answers of another {part}: {shown or 'it says more'}.",
            "Give the command that began it, or another --out.",
        )


def _write(file: FileIO, value: Any) -> None:
    left = memoryview((json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode())
    while left:
        left = left[file.write(left) :]
