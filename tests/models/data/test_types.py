"""Types as the sets write them, in JSON Schema's words."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.data.types import annotation, tool, typed
from rtcontrol.models.schema.tool_schema import ToolSchema


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("dict", "object"),
        ("float", "number"),
        ("tuple", "array"),
        ("any", "string"),
        ("OBJECT", "object"),
        ("int", "integer"),
    ],
)
def test_names_of_types_are_read_in_all_depths(given: str, kind: str) -> None:
    found = typed({"type": "dict", "properties": {"a": {"type": "array", "items": {"type": given}}}})
    assert found["type"] == "object" and found["properties"]["a"]["items"]["type"] == kind


@pytest.mark.parametrize(
    ("text", "schema", "optional"),
    [
        ("str", {"type": "string"}, False),
        ("int, optional", {"type": "integer"}, True),
        ("str, default 'en'", {"type": "string"}, True),
        ("Optional[float]", {"type": "number"}, True),
        ("List[int]", {"type": "array", "items": {"type": "integer"}}, False),
        (
            "List[List[float]], optional",
            {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
            True,
        ),
        ("Tuple[float, float]", {"type": "array", "items": {"type": "number"}}, False),
        ("Dict[str, int]", {"type": "object", "additionalProperties": {"type": "integer"}}, False),
        ("Union[int, float]", {"anyOf": [{"type": "integer"}, {"type": "number"}]}, False),
        ("int | None", {"type": "integer"}, False),
        (
            "List[Union[int, str]]",
            {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
            False,
        ),
        ("typing.List[str]", {"type": "array", "items": {"type": "string"}}, False),
        ("Literal['a', 'b']", {"enum": ["a", "b"]}, False),
    ],
)
def test_annotations_are_read(text: str, schema: dict[str, Any], optional: bool) -> None:
    assert annotation(text) == (schema, optional)
    ToolSchema.from_openai(tool("t", "", {"type": "object", "properties": {"p": schema}}))


@pytest.mark.parametrize("text", ["Callable[[float], float]", "np.ndarray", "a function", "List[", ""])
def test_a_type_that_is_not_known_is_no_guess(text: str) -> None:
    with pytest.raises(Unusable, match="not known"):
        annotation(text)


@pytest.mark.parametrize(
    ("given", "mended"),
    [
        ({"type": "integer", "enum": ["1", "2", "many"]}, {"type": "integer", "enum": [1, 2]}),
        ({"type": "boolean", "enum": ["True", "False", "dontcare"]}, {"type": "boolean", "enum": [True, False]}),
        ({"type": "integer", "enum": ["many"]}, {"type": "integer"}),
        (
            {"type": "array", "items": {"type": "string"}, "enum": ["a", "b"]},
            {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
        ),
        ({"type": "boolean", "default": "false"}, {"type": "boolean"}),
        ({"type": "string", "enum": ["a"], "default": "b"}, {"type": "string", "enum": ["a"]}),
        ({"type": "string", "required": True}, {"type": "string"}),
        ({"type": "string", "examples": "jazz"}, {"type": "string", "examples": ["jazz"]}),
    ],
)
def test_what_is_written_wrongly_beside_a_type_is_set_right(given: dict[str, Any], mended: dict[str, Any]) -> None:
    assert typed(given) == mended
    ToolSchema.from_openai(tool("t", "", {"type": "object", "properties": {"p": given}}))
