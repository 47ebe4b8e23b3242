"""Read a tool's definition as OpenAI, Anthropic and MCP write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.errors import UserError

SHAPE = 'Write "parameters": {"type": "object", "properties": {...}, "required": [...]}'
PARAMETERS = ("parameters", "inputSchema", "input_schema")  # of OpenAI, MCP and Anthropic
# Keys that speak of arguments, but those of results and examples.
RESULTS = "output|return|response|result|example|input_example|schema_version"
ARGUMENTS = re.compile(f"(?!{RESULTS}).*(param|arg|propert|input|field|schema|required)", re.IGNORECASE)
KNOWN = {*PARAMETERS, "name", "description", "type", "function", "annotations", "_meta", "icons", "execution"}


@dataclass(frozen=True)
class Definition:
    """A tool's name, description, and parameters' schema as written (None: it has no parameters)."""

    name: str
    description: str
    schema: Any


def definition(tool: Any) -> Definition:
    """Read a definition, with or without OpenAI's wrapper `function`. Raises UserError with the tool's name."""
    body = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(body, Mapping):
        raise UserError(f"{str(tool)[:120]!r} is not a tool.", "Write an OpenAI-style function definition.")
    name, kind = body.get("name"), tool.get("type")
    where = f"Tool {name[:64]}" if isinstance(name, str) and name else "A tool"
    schemas = {key: body[key] for key in PARAMETERS if body.get(key)}
    if kind not in (None, "function") and not schemas:
        inner = tool.get(str(kind))
        if isinstance(inner, Mapping) and "name" in inner:
            where = f"Tool {str(inner['name'])[:64]}"
        problem = f"{where}: its type is {str(kind)[:64]!r}, and it has no parameters: its arguments are not known."
        raise UserError(problem, f'Write "type": "function". {SHAPE}.')
    if not isinstance(name, str) or not name:
        keys = ", ".join(str(key)[:40] for key in (*body,)[:8])
        raise UserError(f"A tool without a name ({keys}).", "Give it a 'name'.")
    description = "" if body.get("description") is None else body["description"]
    if not isinstance(description, str):
        raise UserError(f"{where}: its description is not a string.", "Say in words what it does, or leave it out.")
    return Definition(name, description, _schema(tool, body, schemas, where))


def _schema(tool: Mapping[str, Any], body: Mapping[str, Any], schemas: Mapping[str, Any], where: str) -> Any:
    """Return the schema of the parameters. Raises UserError for several schemas, and for one under an unknown key."""
    extra = {} if body is tool else {key: value for key, value in tool.items() if key != "function"}
    unread = {**({} if schemas else body), **extra}
    known = KNOWN - {*PARAMETERS} if extra else KNOWN
    for key, value in unread.items():
        if key not in known and value and isinstance(value, Mapping | list | tuple) and ARGUMENTS.match(str(key)):
            problem = f"{where}: its key `{str(key)[:64]}` is not read, and seems to speak of parameters."
            raise UserError(problem, f"{SHAPE}, or take the key away.")
    for key, value in schemas.items():
        if isinstance(value, str):
            raise UserError(f"{where}: its `{key}` is a text, not a JSON object.", f"{SHAPE}: the object itself.")
    first = next(iter(schemas.values()), None)
    if any(value != first for value in schemas.values()):
        keys = " and ".join(f"`{key}`" for key in schemas)
        raise UserError(f"{where}: {keys} hold different schemas.", "Leave one of them out.")
    return first
