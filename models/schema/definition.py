"""Read a tool's definition; refuse what nobody reads of one, or of a schema, and may say which arguments it has.

An annotation is passed over. What may be more is known by its name (`propertys`, `args_json`), or by what it holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rtcontrol.models.errors import UserError

TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
LOOSE_TYPES = {*TYPES, "str", "int", "float", "double", "bool", "list", "dict", "any"}
SHAPE = 'Write "parameters": {"type": "object", "properties": {...}, "required": [...]}'
# In names that speak of arguments; beginnings of names of what a call gives back, or shows.
ARGUMENTS = re.compile("param|arg|propert|input|field|schema", re.IGNORECASE)
RESULTS = ("output", "return", "response", "result", "example", "input_example", "schema_version")
NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
LIKE = 0.84  # of how two names are spelled, from which on one may be meant for the other
SHORT, LIKE_SHORT = 6, 0.75  # letters, below which a letter is more of a name
LEAST, LONGEST = 3, 64  # letters: shorter names are like too many words, longer ones are none
DEEP = 4  # levels down to which something like a schema is looked for


def refuse_unread(
    given: Mapping[Any, Any],
    known: Collection[str],
    where: str,
    remedy: str,
    bare: bool,
    meant: Callable[[str, Any], str | None],
) -> None:
    """Raise UserError for a key that is not `known` and may say which arguments, or values, there are. Where nothing
    else does (`bare`), less is enough for that. `meant` tells of a key and its value the known one that it was surely
    meant for, if any."""
    for key, value in given.items():
        name, extension = str(key), str(key).startswith("x-")
        if key in known or value is None or name.startswith(RESULTS):
            continue
        found = None if extension else meant(name, value)
        if found is not None:
            told, remedy = f"is not read: `{found}` is meant, it seems", f"Write `{found}`, or take the key away."
        elif like_schema(value) and (bare or not extension):
            told = "is not read, and holds what looks like a schema"
        elif name == "required" and isinstance(value, list | tuple) and value:
            told = "is not read: it stands beside the schema, not in it"
        elif bare and value and isinstance(value, Mapping | list | tuple) and ARGUMENTS.search(name):
            told = "is not read, and seems to speak of parameters"
        else:
            continue
        raise UserError(f"{where}: its key `{name[:64]}` {told}.", remedy)


class Spelling:
    """Names that others are misspellings of."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = {_plain(name): name for name in known}
        self._like: dict[str, list[str]] = {}  # by their first letter, which few get wrong
        for plain in self._known:
            if len(plain) >= LEAST:
                self._like.setdefault(plain[0], []).append(plain)

    def near(self, name: str) -> str | None:
        """Return the known name that another one is spelled nearly like: in other case, with `_`, a letter wrong."""
        plain = _plain(name[:LONGEST])
        like = LIKE_SHORT if len(plain) < SHORT else LIKE
        found = [plain] if plain in self._known else get_close_matches(plain, self._like.get(plain[:1], ()), 1, like)
        return self._known[found[0]] if found and self._known[found[0]] != name else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def like_schema(value: Any, depth: int = DEEP) -> bool:
    """Return whether something may be a schema, or schemas by name or in a list, or the text of such."""
    if hasattr(value, "model_json_schema"):
        return True
    if isinstance(value, str) and depth == DEEP:
        value = as_text(value)
    if not depth or not value or not isinstance(value, Mapping | list | tuple):
        return False
    if not isinstance(value, Mapping):
        return all(isinstance(v, Mapping) and like_schema(v, depth - 1) for v in value)
    return any(_speaks(k, v) for k, v in value.items()) or all(like_schema(v, depth - 1) for v in value.values())


def as_text(value: Any) -> Any:
    """Return what a JSON text holds; None of what is none."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _speaks(key: Any, value: Any) -> bool:
    """Return whether a key and its value are a keyword of JSON schema that says something."""
    if key == "type":
        kinds = value if isinstance(value, list | tuple) else [value]
        return bool(kinds) and all(isinstance(k, str) and k.lower() in LOOSE_TYPES for k in kinds)
    if key in ("properties", "items", "$defs", "definitions"):
        return isinstance(value, Mapping)
    if key in ("enum", "anyOf", "oneOf", "allOf", "required"):
        return isinstance(value, list | tuple)
    return key == "const" or (key in NUMBERS and type(value) in (int, float)) or (key == "$ref" and type(value) is str)


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
