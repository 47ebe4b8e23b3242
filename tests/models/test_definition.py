"""Wherever a definition keeps its parameters they are read, or the definition is refused: never passed over."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import PARAMETERS
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

SIDE: dict[str, Any] = {"type": "object", "properties": {"side": {"enum": ["left", "right"]}}, "required": ["side"]}


class Side(pydantic.BaseModel):
    side: bool


@pytest.mark.parametrize("key", PARAMETERS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_parameters_are_read_under_every_name_that_they_go_by(key: str, wrapped: bool) -> None:
    body = {"name": "turn", "description": "Turn.", key: SIDE}
    given = {"type": "function", "function": body} if wrapped else body
    plain = {"name": "turn", "description": "Turn.", "parameters": SIDE}
    assert ToolSchema.from_openai(given) == ToolSchema.from_openai(plain)


def test_a_model_as_arguments_schema_and_gemini_types_are_read() -> None:
    (p,) = ToolSchema.from_openai({"name": "turn", "args_schema": Side}).parameters
    assert (p.name, p.schema["type"]) == ("side", "boolean")
    loud = {"type": "OBJECT", "properties": {"up": {"type": "BOOLEAN"}}, "required": ["up"]}
    (p,) = ToolSchema.from_openai({"name": "lift", "parameters": loud}).parameters
    assert p.schema == {"type": "boolean"}


@pytest.mark.parametrize(
    "given",
    [
        {"params": SIDE},
        {"arguments": SIDE},
        {"Parameters": SIDE},
        {"input": SIDE},
        {"params": {"side": {"type": "string"}}},
        {"params": [{"name": "side", "type": "string"}]},
        {"parameters": {"side": {"type": "string", "enum": ["left"]}}},
        {"parameters": {"side": {"type": "str", "description": "A side."}}},
        {"parameters": {"type": "object", "propertys": {"side": {"type": "string"}}}},
        {"parameters": {"type": "object", "Properties": {"side": {"enum": ["left"]}}}},
        {"parameters": {"type": "object", "params": SIDE}},
        {"parameters": {"json": SIDE}},
        {"parameters": {"side": "string"}},
        {"parameters": {"properties": {"pose": {"type": "object", "propertys": {"x": {"type": "number"}}}}}},
        {"parameters": SIDE, "inputSchema": {**SIDE, "required": []}},
        {"parameters": [{"name": "side", "type": "string"}]},
        {"parameters": {"properties": {"side": {"enum": ["a"]}}, "requred": ["side"]}},
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_may_be_parameters_and_is_not_understood_is_refused(given: dict[str, Any], wrapped: bool) -> None:
    body = {"name": "turn", **given}
    with pytest.raises(UserError, match=r"^Tool turn(, parameter pose)?: "):
        ToolSchema.from_openai({"type": "function", "function": body} if wrapped else body)


def test_parameters_beside_the_wrapped_function_are_refused() -> None:
    with pytest.raises(UserError, match="Tool turn: its key `parameters` is not read"):
        ToolSchema.from_openai({"type": "function", "function": {"name": "turn"}, "parameters": SIDE})


@pytest.mark.parametrize(
    "given",
    [
        {"type": "custom", "custom": {"name": "turn", "format": {"type": "text"}}},
        {"type": "custom", "name": "turn", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        {"type": "bash_20250124", "name": "turn"},
    ],
)
def test_a_tool_of_another_type_whose_arguments_are_not_known_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"Tool turn: its type is '{given['type']}'"):
        tool_schemas([given])
    with pytest.raises(UserError, match="A tool: its type is 'web_search'"):
        tool_schemas([{"type": "web_search"}])


def test_a_custom_tool_with_a_schema_is_read() -> None:
    (p,) = ToolSchema.from_openai({"type": "custom", "name": "turn", "input_schema": SIDE}).parameters
    assert p.name == "side"


def test_annotations_of_all_kinds_are_no_parameters() -> None:
    about = {
        "title": "Turn",
        "annotations": {"title": "Turn", "readOnlyHint": True},
        "outputSchema": SIDE,
        "response": SIDE,
        "_meta": {"ui": SIDE},
        "x-origin": SIDE,
        "icons": [{"src": "a.png", "mimeType": "image/png", "sizes": ["48x48"]}],
        "cache_control": {"type": "ephemeral"},
        "execution": {"taskSupport": "optional"},
        "allowed_callers": ["direct"],
        "strict": True,
        "type": "function",
        "input_examples": [{"side": "left"}],
    }
    root = {
        **SIDE,
        "title": "turnArguments",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "examples": [{}],
        "x-y": SIDE,
    }
    assert ToolSchema.from_openai({"name": "turn", **about, "parameters": root}) == ToolSchema.from_openai(
        {"name": "turn", "parameters": SIDE}
    )


def test_null_stands_for_what_is_not_there() -> None:
    root = {
        "type": "object",
        "properties": {"on": {"type": "boolean", "description": None, "enum": None}},
        "required": None,
    }
    given = {"name": "light", "description": None, "parameters": {**root, "$defs": None}}
    (p,) = ToolSchema.from_openai(given).parameters
    assert (p.schema, p.required) == ({"type": "boolean"}, False)
    assert ToolSchema.from_openai({"name": "light", "parameters": None}).parameters == ()


def test_a_value_that_is_listed_twice_is_listed_once() -> None:
    (p,) = ToolSchema.from_openai(
        {"name": "go", "parameters": {"properties": {"v": {"enum": ["a", "b", "a"]}}}}
    ).parameters
    assert p.schema == {"enum": ["a", "b"]}


@pytest.mark.parametrize("count", [128, 129])
def test_a_hundred_and_twenty_eight_tools_are_taken(count: int) -> None:
    many = [{"name": f"t{i}"} for i in range(count)]
    if count > 128:
        with pytest.raises(UserError, match="129 tools, and 128 are taken. Leave out"):
            tool_schemas(many)
    else:
        assert len(tool_schemas(many)) == count
