"""The row format: the input of the model, and the right call (design, section 9).

A line of a file is one JSON object. A sample with several calls is several rows, and right only when all of them are.
"""

from __future__ import annotations

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Required, TextIO

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError, strict_json, unmarked
from rtcontrol.models.files import part_of
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

MAX_WEIGHT = 1e6
EXAMPLE = '{"instruction": "...", "observation": "...", "tools": [...], "call": {"name": "...", "arguments": {...}}}'
Tools = tuple[ToolSchema, ...]


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage of the observation that the content head learns to quote: `rest` follows `start`. If the instruction
    names it (`named`), `start` is a label too."""

    start: str
    rest: str
    named: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One decision to imitate or to evaluate.

    `call` None: the active call stays. `history` are the calls before, as `Call.text` writes them. `tools` are in head
    order; empty if all rows have the same, which the encoder knows. `weight` scales the loss. `allowed` are other right
    calls. `sample` is the id of the sample that the row belongs to, `source` names set and version, `where` is
    FILE:LINE.

    For training only: `quotes`; `named`, the words of the instruction that the observation contains; `meant`, the
    instruction in canonical words ("": it requests nothing).
    """

    instruction: str
    observation: str
    call: Call | None
    history: tuple[str, ...] = ()
    tools: Tools = ()
    weight: float = field(default=1.0, kw_only=True)
    allowed: tuple[Call, ...] = field(default=(), kw_only=True)
    id: str = field(default="", kw_only=True)
    sample: str = field(default="", kw_only=True)
    source: str = field(default="", kw_only=True)
    quotes: tuple[Quote, ...] = field(default=(), kw_only=True)
    named: str = field(default="", kw_only=True)
    meant: str | None = field(default=None, kw_only=True)
    where: str = field(default="", kw_only=True, repr=False, compare=False)

    @property
    def question(self) -> tuple[str, str, tuple[str, ...]]:
        """Return the input of the model; rows with the same input have the same state."""
        return self.instruction, self.observation, self.history

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a line has it."""
        return {
            **{name: getattr(self, name) for name in ("id", "sample", "source") if getattr(self, name)},
            "instruction": self.instruction,
            "observation": self.observation,
            "tools": [tool.exact() for tool in self.tools],
            "history": list(self.history),
            "call": self.call and self.call.to_dict(),
            **({"allowed": [call.to_dict() for call in self.allowed]} if self.allowed else {}),
            "weight": self.weight,
        }

    @classmethod
    def from_dict(cls, value: Any, where: str = "row:1", tools: Tools = (), goal: str | None = None) -> Row:
        """Read a line's object; `tools` and `goal` are those of a row without tools or instruction.

        `where` is FILE:LINE, and the id of a row that has none (a recording's). Raises UserError that names it.
        """
        try:
            line = _LINE.validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
            message = f"{where}: {place or 'the row'} is {short(first['input'])}: {first['msg']}."
            raise UserError(message, f"Write one JSON object a line: {EXAMPLE}.") from None
        instruction = line.get("instruction")
        if instruction is None and goal is None:
            raise UserError(f"{where}: there is no instruction.", "Write it in the row, or give one for all (--goal).")
        schemas = _schemas(line["tools"], where) if line.get("tools") else tools
        call, *allowed = (call and Call.from_dict(call) for call in (line["call"], *line.get("allowed", ())))
        names = {tool.name for tool in schemas}
        for each in (call, *allowed):
            if each is not None and each.name not in names:
                message = f"{where}: it calls {each.name!r}, which its tools do not have."
                raise UserError(message, f"They have: {', '.join(sorted(names)) or 'none'}.")
        row_id = line.get("id", where)
        return cls(
            instruction if instruction is not None else str(goal),
            line["observation"],
            call,
            tuple(line.get("history", ())),
            schemas,
            weight=line.get("weight", 1.0),
            allowed=tuple(each for each in allowed if each is not None),
            id=row_id,
            sample=line.get("sample", row_id),
            source=line.get("source", where.rpartition(":")[0]),
            where=where,
        )


def _plain_call(value: Any) -> Any:
    """Return the JSON of a call, of a `Call` or the name of a tool without arguments."""
    if isinstance(value, Call):
        return value.to_dict()
    if isinstance(value, str):
        return {"name": value, "arguments": {}}
    return {"arguments": {}, **value} if isinstance(value, dict) else value


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class _Call(TypedDict):
    name: str
    arguments: dict[str, Any]


AnyCall = Annotated[_Call, BeforeValidator(_plain_call)]


class _Line(TypedDict, total=False):
    """The JSON of a row."""

    id: str
    sample: str
    source: str
    instruction: str | None
    observation: Required[str]
    tools: list[dict[str, Any]]
    history: Annotated[list[str], BeforeValidator(_listed)]
    call: Required[AnyCall | None]
    allowed: list[AnyCall]
    weight: Annotated[float, Field(gt=0, le=MAX_WEIGHT)]


_LINE = TypeAdapter(_Line)


def _schemas(tools: list[dict[str, Any]], where: str) -> Tools:
    try:
        return _parsed(json.dumps(tools))
    except UserError as error:
        raise UserError(f"{where}: {error.what}", error.remedy) from None


@lru_cache(maxsize=1024)  # rows repeat their tools; those of one set have the same tuple
def _parsed(text: str) -> Tools:
    return tool_schemas(json.loads(text))


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file in order. Raises UserError with file and line, also for two rows with one id."""
    lines: dict[str, int] = {}
    for line, value in json_lines(path):
        row = Row.from_dict(value, f"{path}:{line}")
        if row.id in lines:
            message = f"{path}:{line}: the id {row.id!r} is that of line {lines[row.id]} too."
            raise UserError(message, "Give each row another.")
        lines[row.id] = line
        yield row


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield line number and value of a file of one JSON value a line. Raises UserError with file and line."""
    return ((line, json_value(raw, f"{path}:{line}")) for line, raw in raw_lines(path))


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of the lines that are not empty (Unicode line separators do not end a line), without byte
    order marks, of which concatenated files have several. Raises UserError."""
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
    """Return the value of a line. Raises UserError with `where`."""
    text = ""
    try:
        value = strict_json(text := raw.decode().strip())
        json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be written
    except UnicodeEncodeError:
        raise UserError(f"{where}: it holds half a character.", "Write whole characters.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: it is not UTF-8 ({error.reason}).", "Save it as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {short(text)} is not JSON ({error}).", "Write one value a line.") from None
    return value


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """Open a text file that appears once it is complete; until then it is `PATH.part`, which is removed after an error.

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


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write a complete file or none; return the number of rows."""
    count = 0
    with written_whole(path) as lines:
        for row in rows:
            lines.write(json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def short(value: Any) -> str:
    """Return a value as an error shows it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text[:77] + "..." if len(text) > 80 else text) if isinstance(value, str) else text[:80]
