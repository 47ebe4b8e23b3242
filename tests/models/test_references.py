"""References of every spelling are replaced by what they name; tuples and other words of older drafts are read."""

from __future__ import annotations

from typing import Any

import jsonschema
import pydantic
import pytest

from rtcontrol.agents import Tools
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain, Free
from rtcontrol.models.schema.tool_schema import ToolSchema

STATE = {"type": "string", "enum": ["idle", "busy"]}
DOCUMENT: dict[str, Any] = {
    "type": "object",
    "properties": {"state": STATE, "either": {"anyOf": [{"type": "null"}, STATE]}},
    "$defs": {
        "List[int]": {"type": "array", "items": {"type": "integer"}},
        "a/b~c": STATE,
        "ü": STATE,
        "named": {"$anchor": "here", **STATE},
        "inner": {"definitions": {"deep": STATE}},
        "open": True,
    },
    "definitions": {"Old": STATE},
}


def parameter(schema: Any, **more: Any) -> Any:
    root = {**DOCUMENT, **more, "properties": {**DOCUMENT["properties"], "p": schema}}
    return next(p for p in ToolSchema.from_openai({"name": "t", "inputSchema": root}).parameters if p.name == "p")


@pytest.mark.parametrize(
    "reference",
    [
        "#/properties/state",
        "#/properties/either/anyOf/1",
        "#/$defs/a~1b~0c",
        "#/%24defs/a~1b~0c",
        "#/$defs/%C3%BC",
        "#/$defs/ü",
        "#/definitions/Old",
        "#/$defs/inner/definitions/deep",
        "#here",
    ],
)
def test_a_pointer_into_the_document_is_what_stands_there(reference: str) -> None:
    found = parameter({"$ref": reference, "description": "How it is."})
    assert found.schema == {**STATE, "description": "How it is."}
    assert parameter({"type": "array", "items": {"$ref": reference}, "maxItems": 1}).domain.values[1:] == (
        ["idle"],
        ["busy"],
    )


def test_percent_signs_and_siblings_and_booleans_are_read() -> None:
    assert parameter({"$ref": "#/$defs/List%5Bint%5D", "maxItems": 2}).schema["maxItems"] == 2
    assert parameter({"$ref": "#/properties/state", "enum": ["busy", "off"]}).schema["enum"] == ["busy"]
    assert isinstance(parameter({"$ref": "#/$defs/open"}).domain, Free)
    whole = {"$id": "https://example.org/tool.json"}
    assert parameter({"$ref": "https://example.org/tool.json#/properties/state"}, **whole).schema == STATE


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("#", "# refers to itself"),
        ("#/properties/p", "#/properties/p refers to itself"),
        ("#/properties/none", "#/properties/none names no definition"),
        ("#/properties/either/anyOf/01", "names no definition"),
        ("#/properties/either/anyOf/9", "names no definition"),
        ("#nowhere", "#nowhere names no definition"),
        ("other.json#/$defs/ü", "other.json#/$defs/ü names no definition"),
        ("#/$defs", "its key `List[int]` is not read"),
    ],
)
def test_a_reference_that_leads_nowhere_or_round_is_refused(reference: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        parameter({"$ref": reference})
    assert says in str(error.value) and str(error.value).startswith("Tool t, parameter p: ")


class Node(pydantic.BaseModel):
    "A node."

    name: str
    child: Node | None = None


def test_a_model_that_holds_itself_is_refused_with_the_field_that_does() -> None:
    with pytest.raises(UserError, match=r"Tool Node, parameter child: #/\$defs/Node refers to itself.*as many levels"):
        Tools([Node])


PAIR = [{"enum": ["x", "y"]}, {"type": "boolean"}]


@pytest.mark.parametrize(
    ("old", "count"),
    [
        ({"items": PAIR, "minItems": 2, "maxItems": 2}, 4),
        ({"items": PAIR, "additionalItems": False}, 1 + 2 + 4),
        ({"items": PAIR, "additionalItems": {"const": 7}, "maxItems": 3}, 1 + 2 + 4 + 4),
        ({"items": {"enum": [1, 2]}, "additionalItems": False, "maxItems": 1}, 3),
    ],
)
def test_draft_sevens_tuples_have_draft_sevens_values(old: dict[str, Any], count: int) -> None:
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", **old}
    domain = parameter(old).domain
    judge = jsonschema.Draft7Validator(old)
    assert isinstance(domain, ClosedDomain) and len(domain.values) == count
    assert all(judge.is_valid(v) for v in domain.values)


def test_what_a_reference_names_may_be_null() -> None:
    parameters = {"properties": {"p": {"$ref": "#/$defs/A", "nullable": True}}, "$defs": {"A": {"enum": ["a", "z"]}}}
    (found,) = ToolSchema.from_openai({"name": "t", "parameters": parameters}).parameters
    assert found.nullable and isinstance(found.domain, ClosedDomain) and found.domain.values == ("a", "z")


@pytest.mark.parametrize("schema", [{}, True, {"description": "Anything."}])
def test_a_parameter_without_a_type_may_be_anything(schema: Any) -> None:
    assert isinstance(parameter(schema).domain, Free)
    tools = Tools([{"name": "t", "parameters": {"properties": {"p": schema}}}])
    for value in ("a", 1, 0.5, False, [1], {"a": []}):
        tools.validate(Call("t", {"p": value}))


def test_objects_and_arrays_need_not_say_that_they_are() -> None:
    assert parameter({"properties": {"x": {"enum": [1]}}, "required": ["x"]}).domain.values == ({"x": 1},)
    assert parameter({"items": {"enum": [1]}, "maxItems": 1}).domain.values == ([], [1])
