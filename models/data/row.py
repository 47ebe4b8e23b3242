"""One row: what a model sees, and the call that is right there. Design, section 9: the one format of all rows.

A line of a file is one JSON object. A sample that takes several calls is several rows, and right only when all are.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError, strict_json, unmarked
from rtcontrol.models.files import part_of

FIELDS = "instruction, observation, tools, history, call; id, sample, source, allowed and weight may be left out"


@dataclass(frozen=True, slots=True)
class DataRow:
    """One decision that teaches or is judged.

    `sample` is the id of what the row is one call of. `instruction` is the query, `observation` what is known besides
    (a date, a state), `history` the calls before this one as `Call.text` writes them. `tools` are OpenAI-style
    definitions with JSON Schema's types. `call` None: the call in force stays. `allowed` are other calls that are
    right. `source` names set and version.
    """

    id: str
    sample: str
    source: str
    instruction: str
    observation: str
    tools: tuple[Mapping[str, Any], ...]
    history: tuple[str, ...]
    call: Call | None
    allowed: tuple[Call, ...] = ()
    weight: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """As it is written; what is optional and empty is left out."""
        row: dict[str, Any] = {
            "id": self.id,
            "sample": self.sample,
            "source": self.source,
            "instruction": self.instruction,
            "observation": self.observation,
            "tools": [dict(tool) for tool in self.tools],
            "history": list(self.history),
            "call": self.call and self.call.to_dict(),
        }
        if self.allowed:
            row["allowed"] = [call.to_dict() for call in self.allowed]
        row["weight"] = self.weight
        return row

    @classmethod
    def from_dict(cls, value: Any, where: str = "row:1") -> DataRow:
        """Of a line's object. `where` is FILE:LINE, for errors, and the id of a row that has none (a recording's).

        Raises UserError, which says what is wrong and where.
        """
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: {short(value)} is no row.", f"Write one JSON object a line: {FIELDS}.")
        if missing := [k for k in ("instruction", "observation", "tools", "history", "call") if k not in value]:
            raise UserError(f"{where}: the row has no {missing[0]!r}.", f"A row has {FIELDS}.")
        read = _Reader(value, where)
        tools = read.tools()
        names = {tool.get("function", tool)["name"] for tool in tools}
        call = read.call("call", value["call"], names)
        allowed = tuple(read.call("allowed", one, names) for one in read.items("allowed"))
        if None in allowed:
            raise UserError(f"{where}: null is among the allowed calls.", "List calls: a name and arguments each.")
        own = read.text("id", where)
        return cls(
            own,
            read.text("sample", own),
            read.text("source", where.rpartition(":")[0]),
            read.text("instruction", ""),
            read.text("observation", ""),
            tools,
            tuple(read.strings("history")),
            call,
            tuple(one for one in allowed if one is not None),
            read.weight(),
        )


class _Reader:
    """Takes a row's fields as what they must be; else it says so."""

    def __init__(self, value: Mapping[str, Any], where: str) -> None:
        self._value, self._where = value, where

    def _refused(self, key: str, is_: str) -> UserError:
        return UserError(f"{self._where}: {key} is {short(self._value.get(key))}.", f"It must be {is_}.")

    def text(self, key: str, default: str) -> str:
        found = self._value.get(key, default)
        if not isinstance(found, str):
            raise self._refused(key, "a string")
        return found

    def items(self, key: str) -> list[Any]:
        found = self._value.get(key, [])
        if not isinstance(found, list):
            raise self._refused(key, "a list")
        return found

    def strings(self, key: str) -> list[str]:
        if not all(isinstance(one, str) for one in self.items(key)):
            raise self._refused(key, "a list of strings")
        return self.items(key)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """OpenAI-style definitions, each with a name."""
        for tool in self.items("tools"):
            body = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if not isinstance(body, Mapping) or not isinstance(body.get("name"), str) or not body["name"]:
                raise UserError(
                    f"{self._where}: {short(tool)} is no tool.", "Write OpenAI-style function definitions, with names."
                )
        return tuple(dict(tool) for tool in self.items("tools"))

    def call(self, key: str, call: Any, names: set[str]) -> Call | None:
        if call is None:
            return None
        whole = isinstance(call, Mapping) and isinstance(call.get("name"), str)
        if not whole or not isinstance(call.get("arguments"), Mapping):
            raise UserError(
                f"{self._where}: {key} is {short(call)}.",
                'It must be {"name": ..., "arguments": {...}}, or null where the call in force stays.',
            )
        if call["name"] not in names:
            listed = ", ".join(sorted(names)) or "none"
            raise UserError(
                f"{self._where}: {key} calls {call['name']!r}, which its tools do not have.", f"They have: {listed}."
            )
        return Call.from_dict(call)

    def weight(self) -> float:
        found = self._value.get("weight", 1.0)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
            raise self._refused("weight", "a number, zero or above")
        return float(found)


def read_rows(path: Path) -> Iterator[DataRow]:
    """The rows of a file, in order; empty lines are passed over. Raises UserError with file and line, see `placed`."""
    return (row for _, row in placed(path))


def placed(path: Path) -> Iterator[tuple[str, DataRow]]:
    """The rows of a file with their places (FILE:LINE).

    Raises UserError with file and line: of what is no row, and of two rows with one id.
    """
    seen: dict[str, int] = {}
    for line, value in json_lines(path):
        row = DataRow.from_dict(value, f"{path}:{line}")
        if row.id in seen:
            raise UserError(
                f"{path}:{line}: the id {row.id!r} is that of line {seen[row.id]} too.", "Give each row its own."
            )
        seen[row.id] = line
        yield f"{path}:{line}", row


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The values of a file of one JSON value a line, with the lines' numbers. Raises UserError with file and line."""
    return ((line, json_value(raw, f"{path}:{line}")) for line, raw in raw_lines(path))


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not empty, with their numbers: bytes, since a line separator of Unicode is part of a
    text. They are without byte order marks (files that were put together have several). Raises UserError."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for line, raw in enumerate(lines, 1):
                text = unmarked(raw, path) if line == 1 else raw.removeprefix(BOM_UTF8)
                if text.strip():
                    yield line, text
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({why}).", "Give a file of rows (JSONL).") from None


def json_value(raw: bytes, where: str) -> Any:
    """A line's value. Raises UserError, which names `where` (FILE:LINE)."""
    text = ""
    try:
        value = strict_json(text := raw.decode().strip())
        json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be written
    except UnicodeEncodeError:
        raise UserError(f"{where}: it holds half a character.", "Write whole characters.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: it is no UTF-8 ({error.reason}).", "Save it as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {short(text)} is no JSON ({error}).", "Write one value a line.") from None
    return value


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """A text file that is there when all of it is: until then it is `PATH.part`, and gone where it was not finished.

    Raises UserError where it cannot be written, as on a full disk.
    """
    part = part_of(path)
    try:
        with part.open("w", encoding="utf-8") as lines:
            yield lines
        part.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another place, or make room.") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_rows(path: Path, rows: Iterable[DataRow]) -> int:
    """Writes a whole file or none; gives the number of rows."""
    count = 0
    with written_whole(path) as lines:
        for row in rows:
            lines.write(json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def short(value: Any) -> str:
    """A value as an error shows it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text[:77] + "..." if len(text) > 80 else text) if isinstance(value, str) else text[:80]
