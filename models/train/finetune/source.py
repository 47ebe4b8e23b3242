"""Rows of files (design, section 9) as training takes them, one after the other, each checked against its own tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtcontrol.models.data.canonical import check_call
from rtcontrol.models.data.row import DataRow, json_value, raw_lines
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.data.tool_sets import StoredToolSets
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import ToolSchema, tool_schemas
from rtcontrol.models.train.rows import Row


class BadRow(UserError):
    """A row that cannot be represented; `reason` is what is wrong with it, without file and line."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        super().__init__(f"{where}: {reason}", remedy)
        self.reason = reason


def read_rows(file: Path) -> Iterator[tuple[str, Row | BadRow]]:
    """(FILE:LINE, row or what is wrong with it) of every line that is not empty. Rows of the same tools share them.
    Raises UserError for a file that cannot be read, and for a set of tools that is not what its hash says."""
    sets = StoredToolSets()
    for line, raw in raw_lines(file):
        where = f"{file}:{line}"
        try:
            value = json_value(raw, where)
        except UserError as error:
            yield where, BadRow(where, error.what.removeprefix(f"{where}: "), error.remedy)
            continue
        if not sets.take(value, where):
            yield where, _row(value, where, sets)


def _row(value: Any, where: str, sets: StoredToolSets) -> Row | BadRow:
    try:
        given = DataRow.from_dict(value, where, sets)
        tools = _tools(json.dumps(given.tools))
        if given.call is not None:
            check_call(given.call, next(tool for tool in tools if tool.name == given.call.name))
    except UserError as error:
        return BadRow(where, error.what.removeprefix(f"{where}: "), error.remedy)
    except Unusable as error:
        return BadRow(where, f"{error.reason}: {error.detail}.", "Correct the call, or leave the row out.")
    return Row(given.instruction, given.observation, given.call, given.history, tools=tools, weight=given.weight)


@lru_cache(maxsize=64)  # an encoder is kept for as many
def _tools(text: str) -> tuple[ToolSchema, ...]:
    return tool_schemas(json.loads(text))
