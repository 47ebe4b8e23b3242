"""Read and write rows for training and evaluation. A row has the input of the model and the right call.

Files have one row per line, as a JSON object. A sample with several calls becomes several rows.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Required, TextIO

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError, open_input, strict_json, strip_byte_order_mark
from rtcontrol.models.files import create_file, part_path
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

MAX_WEIGHT = 1e6
STDIN = {Path("-"), Path("/dev/stdin")}  # paths of standard input
ROW_FORMAT = '{"instruction": "...", "observation": "...", "tools": [...], "call": {"name": "...", "arguments": {...}}}'
Tools = tuple[ToolSchema, ...]


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage of the observation that the content head learns to repeat: given `start`, write `rest`. If `named`, the
    instruction names the passage, and the head learns to write `start` too."""

    start: str
    rest: str
    named: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One decision for training or evaluation.

    `call` is the right call (None: keep the active call), and `allowed` are other right calls. `history` has the texts
    of earlier calls. `tools` may be empty if all rows have the same tools, which the encoder knows. `weight` scales the
    loss. `sample` is the id of the row's sample, `source` names data set and version, `where` is FILE:LINE.

    Only training uses `quotes`, `named` (the thing of the observation that the instruction names), and `meant` (the
    instruction in canonical words, "" if it has no meaning).
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
        """Return the input of the model: instruction, observation and history."""
        return self.instruction, self.observation, self.history

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
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
        """Read a row from a JSON object. `tools` and `goal` are the defaults for a row without tools or instruction.

        `where` is FILE:LINE, for errors, and as the id of a row without one. Raises UserError.
        """
        try:
            line = _LINE.validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
            message = f"{where}: {place or 'the row'} is {shorten(first['input'])}: {first['msg']}."
            raise UserError(message, f"Write one JSON object per line: {ROW_FORMAT}.") from None
        instruction = line.get("instruction")
        if instruction is None and goal is None:
            raise UserError(f"{where}: the instruction is missing.", "Add it to the row, or give --goal for all rows.")
        schemas = _parse_tools(line["tools"], where) if line.get("tools") else tools
        call, *allowed = (call and Call.from_dict(call) for call in (line["call"], *line.get("allowed", ())))
        names = {tool.name for tool in schemas}
        for each in (call, *allowed):
            if each is not None and each.name not in names:
                message = f"{where}: it calls {each.name!r}, which is not among its tools."
                raise UserError(message, f"Its tools are: {', '.join(sorted(names)) or 'none'}.")
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


def _call_as_dict(value: Any) -> Any:
    """Return a call as a dict, given a dict, a `Call`, or the name of a tool without arguments."""
    if isinstance(value, Call):
        return value.to_dict()
    if isinstance(value, str):
        return {"name": value, "arguments": {}}
    return {"arguments": {}, **value} if isinstance(value, dict) else value


def _tuple_to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class _Call(TypedDict):
    name: str
    arguments: dict[str, Any]


AnyCall = Annotated[_Call, BeforeValidator(_call_as_dict)]


class _Line(TypedDict, total=False):
    """The JSON object of a row."""

    id: str
    sample: str
    source: str
    instruction: str | None
    observation: Required[str]
    tools: list[dict[str, Any]]
    history: Annotated[list[str], BeforeValidator(_tuple_to_list)]
    call: Required[AnyCall | None]
    allowed: list[AnyCall]
    weight: Annotated[float, Field(gt=0, le=MAX_WEIGHT)]


_LINE = TypeAdapter(_Line)


def _parse_tools(tools: list[dict[str, Any]], where: str) -> Tools:
    try:
        return _parse_tools_json(json.dumps(tools))
    except UserError as error:
        raise UserError(f"{where}: {error.what}", error.remedy) from None


@lru_cache(maxsize=1024)  # cached, so that rows with the same tools share one tuple
def _parse_tools_json(text: str) -> Tools:
    return tool_schemas(json.loads(text))


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file in order. Raises UserError for an invalid row, and for two rows with the same id."""
    lines: dict[str, int] = {}
    for line, value in read_json_lines(path):
        row = Row.from_dict(value, f"{path}:{line}")
        if row.id in lines:
            message = f"{path}:{line}: line {lines[row.id]} has the same id {row.id!r}."
            raise UserError(message, "Give each row its own id.")
        lines[row.id] = line
        yield row


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, value) of a file with one JSON value per line. Raises UserError with file and line."""
    return ((line, parse_json_value(raw, f"{path}:{line}")) for line, raw in read_raw_lines(path))


def read_raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, bytes) of the lines that are not empty. Byte order marks are removed from all lines, because
    concatenated files have several. A file `*.gz` is decompressed; `-` is standard input. Raises UserError."""
    try:
        with (
            _open_stdin() if path in STDIN else open_input(path) as file,
            gzip.open(file) if path.suffix == ".gz" else file as lines,
        ):
            for line, raw in enumerate(lines, 1):
                text = strip_byte_order_mark(raw, path) if line == 1 else raw.removeprefix(BOM_UTF8)
                if text.strip():
                    yield line, text
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({why}).", "Give a file of rows (JSONL).") from None


def _open_stdin() -> BinaryIO:
    """Open standard input, and print a notice that rows are read from it."""
    end = "; Ctrl-D ends them" if os.isatty(0) else ""
    print(f"Reading rows from standard input{end} ...", file=sys.stderr, flush=True)
    return os.fdopen(os.dup(0), "rb")


def parse_json_value(raw: bytes, where: str) -> Any:
    """Parse the JSON value of a line. Raises UserError with `where`."""
    text = ""
    try:
        value = strict_json(text := raw.decode().strip())
        json.dumps(value, ensure_ascii=False).encode()  # raises UnicodeEncodeError for a lone surrogate
    except UnicodeEncodeError:
        raise UserError(f"{where}: it contains half a character.", "Write whole characters.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: it is not UTF-8 ({error.reason}).", "Save the file as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {shorten(text)} is not JSON ({error}).", "Write one value per line.") from None
    return value


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """Open a text file for writing as `PATH.part`, which is renamed to `path` at the end, or removed after an error.

    Raises UserError if the file cannot be written.
    """
    part = part_path(path)
    try:
        with os.fdopen(create_file(part), "w", encoding="utf-8") as lines:
            yield lines
        part.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Free space, or give another path.") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write rows to a file atomically; return their number. Raises UserError."""
    count = 0
    with atomic_writer(path) as lines:
        for row in rows:
            lines.write(json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def shorten(value: Any) -> str:
    """Return a value as text for an error message, shortened to 80 characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text[:77] + "..." if len(text) > 80 else text) if isinstance(value, str) else text[:80]
