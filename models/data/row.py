"""One row: what a model sees, and the call that is right there. Design, section 9: the one format of all rows.

A line of a file is one JSON object. A sample that takes several calls is several rows, and right only when all are.
"""

from __future__ import annotations

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Required, TextIO

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

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
        try:
            read = LINE.validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            what = f"{where}: {place or 'the row'} is {short(first['input'])}: {first['msg']}."
            raise UserError(what, f"Write one JSON object a line: {FIELDS}.") from None
        tools = read["tools"]
        names = {tool.get("function", tool)["name"] for tool in tools}
        calls = [("call", read["call"]), *(("allowed", one) for one in read.get("allowed", ()))]
        for key, call in calls:
            if call is not None and call["name"] not in names:
                what = f"{where}: {key} calls {call['name']!r}, which its tools do not have."
                raise UserError(what, f"They have: {', '.join(sorted(names)) or 'none'}.")
        first_call, *allowed = (None if call is None else Call.from_dict(call) for _, call in calls)
        own = read.get("id", where)
        return cls(
            own,
            read.get("sample", own),
            read.get("source", where.rpartition(":")[0]),
            read["instruction"],
            read["observation"],
            tuple(tools),
            tuple(read["history"]),
            first_call,
            tuple(one for one in allowed if one is not None),
            read.get("weight", 1.0),
        )


class _Call(TypedDict):
    name: str
    arguments: dict[str, Any]


def _named(tool: dict[str, Any]) -> dict[str, Any]:
    body = tool.get("function", tool)
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str) or not body["name"]:
        raise ValueError("write OpenAI-style function definitions, with names")
    return tool


class _Line(TypedDict, total=False):
    """A row as JSON has it."""

    id: str
    sample: str
    source: str
    instruction: Required[str]
    observation: Required[str]
    tools: Required[list[Annotated[dict[str, Any], AfterValidator(_named)]]]
    history: Required[list[str]]
    call: Required[_Call | None]
    allowed: list[_Call]
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)]


LINE = TypeAdapter(_Line)


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
