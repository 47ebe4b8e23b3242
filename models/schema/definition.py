"""Read tool definitions in the formats of OpenAI, Anthropic and MCP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.errors import UserError, quoted_name

SHAPE_HINT = 'Write "parameters": {"type": "object", "properties": {...}, "required": [...]}'
PARAMETER_KEYS = ("parameters", "inputSchema", "input_schema")  # the names that OpenAI, MCP and Anthropic use
# ARGUMENT_KEY matches keys that may contain a schema of arguments, but not keys of results and examples.
RESULT_KEYS = "output|return|response|result|example|input_example|schema_version"
ARGUMENT_KEY = re.compile(f"(?!{RESULT_KEYS}).*(param|arg|propert|input|field|schema|required)", re.IGNORECASE)
KNOWN_KEYS = {*PARAMETER_KEYS, "name", "description", "type", "function", "annotations", "_meta", "icons", "execution"}


@dataclass(frozen=True)
class Definition:
    """A tool's name, its description, and the schema of its parameters as written (None: no parameters)."""

    name: str
    description: str
    schema: Any


def read_definition(tool: Any) -> Definition:
    """Read a tool's definition, with or without OpenAI's wrapper `function`. Raises UserError."""
    body = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(body, Mapping):
        raise UserError(f"{str(tool)[:120]!r} is not a tool.", "Write an OpenAI-style function definition.")
    name, kind = body.get("name"), tool.get("type")
    where = f"Tool {quoted_name(name)}" if isinstance(name, str) and name else "A tool"
    schemas = {key: body[key] for key in PARAMETER_KEYS if body.get(key)}
    if kind not in (None, "function") and not schemas:
        inner = tool.get(str(kind))
        if isinstance(inner, Mapping) and "name" in inner:
            where = f"Tool {quoted_name(inner['name'])}"
        problem = f"{where}: its type is {str(kind)[:64]!r}, and it has no parameters, so its arguments are unknown."
        raise UserError(problem, f'Write "type": "function". {SHAPE_HINT}.')
    if not isinstance(name, str) or not name:
        keys = ", ".join(str(key)[:40] for key in (*body,)[:8])
        raise UserError(f"A tool (with the keys {keys}) has no name.", "Add its 'name'.")
    description = "" if body.get("description") is None else body["description"]
    if not isinstance(description, str):
        raise UserError(f"{where}: its description is not a string.", "Write a text, or remove the description.")
    return Definition(name, description, _schema(tool, body, schemas, where))


def _schema(tool: Mapping[str, Any], body: Mapping[str, Any], schemas: Mapping[str, Any], where: str) -> Any:
    """Return the schema of the parameters. Raises UserError for several schemas, or a schema under an unknown key."""
    extra = {} if body is tool else {key: value for key, value in tool.items() if key != "function"}
    unread = {**({} if schemas else body), **extra}
    known = KNOWN_KEYS - {*PARAMETER_KEYS} if extra else KNOWN_KEYS
    for key, value in unread.items():
        if key not in known and value and isinstance(value, Mapping | list | tuple) and ARGUMENT_KEY.match(str(key)):
            problem = f"{where}: its key `{str(key)[:64]}` is unknown, but may contain parameters."
            raise UserError(problem, f"{SHAPE_HINT}, or remove the key.")
    for key, value in schemas.items():
        if isinstance(value, str):
            raise UserError(f"{where}: its `{key}` is a string, not a JSON object.", f"{SHAPE_HINT}, not as a string.")
    first = next(iter(schemas.values()), None)
    if any(value != first for value in schemas.values()):
        keys = " and ".join(f"`{key}`" for key in schemas)
        raise UserError(f"{where}: {keys} have different schemas.", "Remove one of them.")
    return first
