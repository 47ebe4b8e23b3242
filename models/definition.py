"""Where a tool's definition keeps its name, its description and its parameters, whoever's format it is in.

What is not read is never passed over where it may be parameters (`models/unread.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.unread import SHAPE, Spelling, as_text, like_schema, refuse_unread

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
SPELLED = Spelling(PARAMETERS)
WRAPPERS = ("function", "toolSpec")  # as OpenAI and Bedrock have them around a definition
APART = {"name", "description", "type", "function", "annotations", "_meta", "meta", "metadata", "icons", "execution"}
HELD = "Give it a 'name'. If `{}` holds the definition, or several, give these alone, a list of them."
# What a schema may say without saying that there are any arguments.
NOTHING = {"type", "title", "description", "$schema", "$id", "additionalProperties", "unevaluatedProperties"}


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
    kind = tool.get("type")
    body = next((tool[key] for key in WRAPPERS if key in tool), tool)
    if kind not in (None, "function") and not (isinstance(body, Mapping) and any(body.get(k) for k in PARAMETERS)):
        name = next(
            (str(t["name"])[:64] for t in (tool, tool.get(str(kind))) if isinstance(t, Mapping) and "name" in t), None
        )
        what = f"Tool {name}" if name else "A tool"
        raise UserError(
            f"{what}: its type is {str(kind)[:64]!r}, and it has no parameters: its arguments are not known.",
            f'Write "type": "function". {SHAPE}.',
        )
    name = body.get("name") if isinstance(body, Mapping) else None
    if not isinstance(name, str) or not name:
        keys = ", ".join(str(key)[:40] for key in (*body,)[:8]) if isinstance(body, Mapping) else repr(body)[:40]
        held = next((k for k, v in body.items() if like_tools(v)), None) if isinstance(body, Mapping) else None
        raise UserError(f"A tool without a name ({keys}).", "Give it a 'name'." if held is None else HELD.format(held))
    where = f"Tool {name[:64]}"
    description = "" if body.get("description") is None else body["description"]
    if not isinstance(description, str):
        raise UserError(f"{where}: its description is no string.", "Say in words what it does, or leave it out.")
    found = {key: _as_json(key, body[key], where) for key in PARAMETERS if body.get(key)}
    bare = not any(map(_says, found.values()))

    def meant(name: str, value: Any) -> str | None:
        holds = isinstance(value, Mapping | list | tuple) or as_text(value) is not None
        return SPELLED.near(name) if holds and value and (bare or like_schema(value)) else None

    if body is not tool:
        refuse_unread(tool, {*APART, *WRAPPERS, "strict"}, where, f"{SHAPE}, beside the name.", bare, meant)
    refuse_unread(body, {*APART, *PARAMETERS}, where, f"{SHAPE}, or take the key away.", bare, meant)
    first = next(iter(found), None)
    if other := [key for key, value in found.items() if value != next(iter(found.values()))]:
        raise UserError(f"{where}: `{first}` and `{other[0]}` hold different schemas.", "Leave one of them out.")
    return Definition(name, description, next(iter(found.values()), None))


def like_tools(value: Any) -> bool:
    """Whether something holds definitions of tools, or is one."""
    each = value if isinstance(value, list | tuple) else [value]
    return bool(each) and all(isinstance(v, Mapping) and any(key in v for key in ("name", *PARAMETERS)) for v in each)


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
