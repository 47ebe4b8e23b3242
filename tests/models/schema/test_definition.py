"""A definition's parameters are read from every known place; otherwise the definition is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import PARAMETER_KEYS
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

SIDE: dict[str, Any] = {"type": "object", "properties": {"side": {"enum": ["left", "right"]}}, "required": ["side"]}


@pytest.mark.parametrize("key", PARAMETER_KEYS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_parameters_are_read_under_every_known_key(key: str, wrapped: bool) -> None:
    body = {"name": "turn", "description": "Turn.", key: SIDE}
    definition = {"type": "function", "function": body} if wrapped else body
    plain = {"name": "turn", "description": "Turn.", "parameters": SIDE}
    assert ToolSchema.from_openai(definition) == ToolSchema.from_openai(plain)


def test_misplaced_or_duplicate_parameters_are_refused() -> None:
    with pytest.raises(UserError, match="Tool turn: its key `parameters` is unknown"):
        ToolSchema.from_openai({"type": "function", "function": {"name": "turn"}, "parameters": SIDE})
    with pytest.raises(UserError, match="Tool turn: `parameters` and `inputSchema` have different schemas"):
        ToolSchema.from_openai({"name": "turn", "parameters": SIDE, "inputSchema": {**SIDE, "required": []}})


@pytest.mark.parametrize(
    "definition",
    [
        {"type": "custom", "custom": {"name": "turn", "format": {"type": "text"}}},
        {"type": "bash_20250124", "name": "turn"},
    ],
)
def test_tool_of_unknown_type_is_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"Tool turn: its type is '{definition['type']}'"):
        tool_schemas([definition])
    with pytest.raises(UserError, match="A tool: its type is 'web_search'"):
        tool_schemas([{"type": "web_search"}])


def test_null_counts_as_an_absent_key() -> None:
    root = {
        "type": "object",
        "properties": {"on": {"type": "boolean", "description": None, "enum": None}},
        "required": None,
    }
    definition = {"name": "light", "description": None, "parameters": {**root, "$defs": None}}
    (p,) = ToolSchema.from_openai(definition).parameters
    assert (p.schema, p.required) == ({"type": "boolean"}, False)
    assert ToolSchema.from_openai({"name": "light", "parameters": None}).parameters == ()


# A foreign or misspelt definition is read correctly or refused by name, and never becomes a tool without arguments.


SPEED: dict[str, Any] = {
    "type": "object",
    "properties": {"speed": {"type": "number", "minimum": 0}},
    "required": ["speed"],
}
# Validators of another language in printed form: yt-dlp-mcp #29, MCP's typescript-sdk #1028.
ZOD = {"_def": {"unknownKeys": "strip", "typeName": "ZodObject"}, "~standard": {"vendor": "zod"}, "_cached": None}


@pytest.mark.parametrize(
    ("part", "key"),
    [
        # Public lists with other keys: Cohere (cohere-typescript #146), LangChain's `args`.
        ({"parameter_definitions": {"day": {"description": "A day.", "type": "srt", "required": True}}}, None),
        ({"args": {"speed": {"title": "Speed", "type": "number"}}}, None),
        # MemWal #356, vercel/ai #12143: a key with another name in another version was ignored.
        ({"inputschema": SPEED}, None),
        ({"x-parameters": SPEED}, None),
        ({"parameters": json.dumps(SPEED)}, None),  # Forge.OpenAI #7
        # json_schemer #205, json-schema-spec #682
        ({"parameters": {"type": "object", "propertys": {"speed": {"minimum": 0}}}}, "propertys"),
        ({"parameters": {"type": "object", "fields": {"speed": {"hint": "m/s"}}}}, "fields"),
        ({"parameters": {"kind": 1}}, "kind"),
        ({"parameters": ZOD}, "_def"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_unknown_key_that_may_hold_parameters_is_refused(part: dict[str, Any], key: str | None, wrapped: bool) -> None:
    body = {"name": "drive", "description": "Drive.", **part}
    with pytest.raises(UserError) as error:
        ToolSchema.from_openai({"type": "function", "function": body} if wrapped else body)
    assert error.value.what.startswith("Tool drive: its ")
    assert f"`{key or next(iter(part))}`" in error.value.what
    assert '"properties"' in error.value.remedy


def test_annotation_keys_are_not_misspelt_keywords() -> None:
    notes = {
        "title": "T", "$comment": "c", "examples": ["a"], "deprecated": True, "readOnly": True, "format": "date",
        "x-min": 0, "nullable": True, "propertyOrdering": ["a"], "enumNames": ["A"], "enumDescriptions": ["A"],
        "markdownDescription": "d", "unit": "m", "strict": True, "note": "n", "noted": True, "step": 1, "cost": 3,
        "typeName": "Way", "tsType": "Way", "type_": "way", "theme": "dark", "placeholder": "p", "optional": True,
    }  # fmt: skip
    parameters = {"type": "object", "properties": {"way": {"type": "string", "enum": ["up", "down"], **notes}}, **notes}
    (tool,) = tool_schemas([{"name": "drive", "parameters": parameters}])
    assert list(tool.parameters[0].values or ())[:2] == ["up", "down"]


def test_keys_without_meaning_for_arguments_are_ignored() -> None:
    about = {
        "description": "Stop.", "title": "Stop", "strict": True, "type": "function", "cache_control": None,
        "annotations": {"title": "Stop"}, "_meta": {"args": SPEED}, "icons": [{"src": "a.png"}], "tags": ["motion"],
        "outputSchema": SPEED, "returns": {"type": "string"}, "output_type": "string", "returnSchema": SPEED,
        "x-order": 3, "x-scopes": ["write"], "x-ui": {"icon": "stop"}, "defer_loading": True, "version": "1.2",
        "allowed_callers": ["direct"], "securitySchemes": [{"type": "noauth"}], "signature": "stop()",
        "cacheControl": {"type": "ephemeral", "ttl": "5m"}, "providerOptions": {"a": {"b": {"type": "ephemeral"}}},
        "input_examples": [{}], "inputs": {}, "args": [], "schema_version": "1", "response": SPEED,
        "execution": {"taskSupport": "optional"}, "parameters": [],
    }  # fmt: skip
    empty: Any
    for empty in (
        {},
        {"type": "object"},
        {"type": "object", "additionalProperties": False},
        {"x-a": 1},
        {"title": "T"},
    ):
        for key in ("parameters", "inputSchema"):
            assert ToolSchema.from_openai({"name": "stop", **about, key: empty}).parameters == ()
    noted = {
        "type": "integer", "container": {"a": 1}, "note": "a", "cost": 3, "pref": "b", "step": 2, "enumNames": ["a"],
    }  # fmt: skip
    assert len(ToolSchema.from_openai({"name": "go", "parameters": {"properties": {"p": noted}}}).parameters) == 1


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        # json_schemer #205, json-schema-spec #682: a wrong letter in a keyword disables its rule.
        ("mininum", 1, "minimum"),
        ("any_of", [{"const": 1}], "anyOf"),
        ("emum", ["up"], "enum"),
        ("typ", "integer", "type"),
        ("item", {"minLength": 2}, "items"),
    ],
)
def test_misspelt_keyword_is_refused_with_its_name(key: str, value: Any, meant: str) -> None:
    for place in ({"type": "string", key: value}, {"type": "array", "items": {"type": "string", key: value}}):
        with pytest.raises(UserError) as error:
            tool_schemas([{"name": "drive", "parameters": {"type": "object", "properties": {"way": place}}}])
        assert error.value.what.startswith("Tool drive, parameter way") and f"`{key}` is unknown" in error.value.what
        assert f"Write `{meant}`" in error.value.remedy
