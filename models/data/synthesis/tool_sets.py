"""The tools that rows are made up for: a file of definitions, or those of rows that are there already."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

from rtcontrol.models.data.canonical import canonical
from rtcontrol.models.data.row import DataRow, read_rows
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.data.types import tool
from rtcontrol.models.errors import UserError, read_text
from rtcontrol.models.schema import ToolSchema
from rtcontrol.models.strict_json import strict_json

ToolSet = tuple[ToolSchema, ...]


def read_tools(path: Path) -> list[ToolSet]:
    """Of a .json file its list of definitions, one set; of a file of rows (.jsonl) each set once. Raises UserError."""
    if path.suffix == ".jsonl":
        return sets_of(read_rows(path))
    try:
        found = strict_json(read_text(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).", "Give a file of tools, or of rows.") from None
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}).", "Write a list of OpenAI-style definitions.") from None
    if not isinstance(found, list) or not found:
        raise UserError(f"{path} is no list of tools.", "Write a list of OpenAI-style definitions.")
    made = []
    for n, one in enumerate(found, 1):
        try:
            body = one.get("function", one)
            made.append(canonical(tool(body["name"], body.get("description"), body.get("parameters")), "merge"))
        except (LookupError, TypeError, AttributeError):
            raise UserError(f"{path}#{n}: it is no tool.", "Write an OpenAI-style definition.") from None
        except Unusable as error:
            raise UserError(f"{path}#{n}: {error.reason} ({error.detail}).", "Mend it, or leave it out.") from None
    return [tuple(made)]


def sets_of(rows: Iterable[DataRow]) -> list[ToolSet]:
    """The sets of tools of rows, in order, each once. Raises UserError."""
    found: dict[str, ToolSet] = {}
    for row in rows:
        key = json.dumps(row.tools, ensure_ascii=False)
        if key not in found:
            try:
                found[key] = tuple(canonical(one, "merge") for one in row.tools)
            except Unusable as error:
                raise UserError(f"Row {row.id}: {error.detail}", "Convert the rows: rtcontrol data convert.") from None
    sets = [tools for tools in found.values() if tools]
    if not sets:
        raise UserError("The rows have no tools.", "Give rows that have some.")
    return sets


def least(tool: ToolSchema) -> int:
    """The fewest arguments of its calls."""
    return sum(p.required for p in tool.parameters)


def nearest(tools: ToolSet, arguments: int, rng: Random) -> tuple[ToolSchema, int]:
    """A tool whose calls can have so many arguments, or come nearest to it, and how many they then have."""

    def distance(tool: ToolSchema) -> int:
        return max(least(tool) - arguments, arguments - len(tool.parameters), 0)

    tool = rng.choice([one for one in tools if distance(one) == min(map(distance, tools))])
    return tool, min(max(arguments, least(tool)), len(tool.parameters))
