"""Read a tool's definition; refuse one whose parameters may stand where nobody reads them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.errors import UserError

TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
SHAPE = 'Write "parameters": {"type": "object", "properties": {...}, "required": [...]}'
# In names that speak of arguments; beginnings of names of what a call gives back, or shows.
ARGUMENTS = re.compile("param|arg|propert|input|field|schema|required", re.IGNORECASE)
RESULTS = ("output", "return", "response", "result", "example", "input_example", "schema_version")
# As OpenAI, MCP and Bedrock, Anthropic, the Neuro API, Gemini (its API, and its Python client), the OpenAI Agents SDK
# and LangChain call them.
PARAMETERS = (
    "parameters",
    "inputSchema",
    "input_schema",
    "schema",
    "parametersJsonSchema",
    "parameters_json_schema",
    "params_json_schema",
    "args_schema",
)
WRAPPERS = ("function", "toolSpec")  # as OpenAI and Bedrock have them around a definition
APART = {"name", "description", "type", "function", "annotations", "_meta", "meta", "metadata", "icons", "execution"}
# What a schema may say without saying that there are any arguments.
NOTHING = {"type", "title", "description", "$schema", "$id", "additionalProperties", "unevaluatedProperties"}


def refuse_unread(given: Mapping[Any, Any], known: Collection[str], where: str, remedy: str) -> None:
    """Raise UserError for a key that is not `known`, and whose name and value may say which arguments there are."""
    for key, value in given.items():
        name = str(key)
        if key in known or not value or not isinstance(value, Mapping | list | tuple) or name.startswith(RESULTS):
            continue
        if ARGUMENTS.search(name):
            raise UserError(f"{where}: its key `{name[:64]}` is not read, and seems to speak of parameters.", remedy)


@dataclass(frozen=True)
class Definition:
    """What stands in a definition; `schema` is its parameters' as it was written (None: there are none)."""

    name: str
    description: str
    schema: Any


def definition(tool: Any) -> Definition:
    """Read a definition, with or without the wrapper of OpenAI (`function`) or Bedrock (`toolSpec`). Raises UserError
    naming the tool."""
    if not isinstance(tool, Mapping):
        raise UserError(f"{str(tool)[:120]!r} is no tool.", "Write an OpenAI-style function definition.")
    body = next((tool[key] for key in WRAPPERS if key in tool), tool)
    name = body.get("name") if isinstance(body, Mapping) else None
    kind = tool.get("type")
    if kind not in (None, "function") and not (isinstance(body, Mapping) and any(body.get(k) for k in PARAMETERS)):
        inner = tool.get(str(kind))
        named = name or (inner.get("name") if isinstance(inner, Mapping) else None)
        raise UserError(
            f"{f'Tool {str(named)[:64]}' if named else 'A tool'}: its type is {str(kind)[:64]!r}, and it has no "
            "parameters: its arguments are not known.",
            f'Write "type": "function". {SHAPE}.',
        )
    if not isinstance(name, str) or not name:
        keys = ", ".join(str(key)[:40] for key in (*body,)[:8]) if isinstance(body, Mapping) else repr(body)[:40]
        raise UserError(f"A tool without a name ({keys}).", "Give it a 'name'; of a wrapper, give what it holds.")
    where = f"Tool {name[:64]}"
    description = "" if body.get("description") is None else body["description"]
    if not isinstance(description, str):
        raise UserError(f"{where}: its description is no string.", "Say in words what it does, or leave it out.")
    found = {key: _as_json(key, body[key], where) for key in PARAMETERS if body.get(key)}
    if body is not tool:
        refuse_unread(tool, {*APART, *WRAPPERS}, where, f"{SHAPE}, beside the name.")
    if not any(map(_says, found.values())):
        refuse_unread(body, {*APART, *PARAMETERS}, where, f"{SHAPE}, or take the key away.")
    first = next(iter(found), None)
    if other := [key for key, value in found.items() if value != next(iter(found.values()))]:
        raise UserError(f"{where}: `{first}` and `{other[0]}` hold different schemas.", "Leave one of them out.")
    return Definition(name, description, next(iter(found.values()), None))


def _says(schema: Any) -> bool:
    """Whether a schema says that there are arguments."""
    return not isinstance(schema, Mapping) or any(value for key, value in schema.items() if key not in NOTHING)


def _as_json(key: str, value: Any, where: str) -> Any:
    """Of a pydantic model, as LangChain's tools have it, its schema; of Bedrock's `{"json": ...}` what it holds. Raises
    UserError for a text."""
    make = getattr(value, "model_json_schema", None)
    if isinstance(value, str):
        raise UserError(f"{where}: its `{key}` is a text, no JSON object.", f"{SHAPE}: the object, not its text.")
    if key == "inputSchema" and isinstance(value, Mapping) and set(value) == {"json"}:
        return value["json"]
    return value if make is None else make()
