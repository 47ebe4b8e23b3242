"""Tools in head order and as canonical JSON, the parameters of each argument head, and cached reading."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import ABSENT, MAX_HEADS, ToolSchema, tool_schemas
from tests.models.drawn_schemas import Drawer
from tests.models.small import law, tool, tool_lists

BOOL = {"type": "boolean"}


def schema(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> ToolSchema:
    parameters = {"type": "object", "properties": properties, "required": required or [], **more}
    return ToolSchema.from_openai({"name": "t", "parameters": parameters})


def names(tool: ToolSchema) -> list[str]:
    return [p.name for p in tool.parameters]


@law(60)
@given(tool_lists(parameters=9))
def test_merged_heads_have_every_parameter_once(tools: list[dict[str, Any]]) -> None:
    for one in tools:
        read = ToolSchema.from_openai(one)
        merged, cut = read.slots("merge"), read.slots("cut")
        assert len(merged) == len(cut) <= MAX_HEADS
        assert sorted(p.name for s in merged for p in s.parameters) == sorted(names(read))
        assert [s.parameters for s in cut[: MAX_HEADS - 1]] == [s.parameters for s in merged[: MAX_HEADS - 1]]


def test_group_of_optional_parameters_is_optional_as_a_whole() -> None:
    tool = schema({"a": {**BOOL, "x-group": "g"}, "b": BOOL, "c": {"enum": [1, 2], "x-group": "g"}}, ["b"])
    b, g = tool.slots()
    assert (b.merged, b.null) == (False, ())
    assert (g.merged, g.null) == (True, (ABSENT,))
    assert isinstance(g.domain, ClosedDomain)
    assert {} not in g.domain.values
    assert len(g.domain.values) == 3 * 3 - 1
    assert g.value({"b": True}) is ABSENT
    assert g.value({"c": 2}) == {"c": 2}


def test_duplicate_names_no_tools_and_too_many_are_refused() -> None:
    with pytest.raises(UserError, match="There are 129 tools, more than 128. Remove"):
        tool_schemas([{"name": f"t{i}"} for i in range(129)])
    with pytest.raises(UserError, match="Two tools have the name 'a'"):
        tool_schemas([{"name": "a"}, {"name": "b"}, {"name": "a"}])
    with pytest.raises(UserError, match="There are no tools"):
        tool_schemas([])


def test_null_of_required_parameter_is_a_token_and_of_optional_is_absence() -> None:
    number = {"type": ["integer", "null"], "minimum": 0, "maximum": 2}
    needed, left_out = schema({"a": number, "b": number}, ["a"]).slots()
    assert (needed.null, left_out.null) == ((None,), (ABSENT,))
    assert isinstance(needed.domain, ClosedDomain) and needed.domain.values == (0, 1, 2)
    assert needed.value({"a": None}) is None
    assert left_out.value({"b": None}) is ABSENT
    (merged,) = schema({"a": {**number, "x-group": "g"}, "b": {**BOOL, "x-group": "g"}}, ["a", "b"]).slots()
    assert isinstance(merged.domain, ClosedDomain) and {"a": None, "b": True} in merged.domain.values


def test_value_text_is_read_as_the_original_value() -> None:
    tied = 0
    for seed in range(200):
        drawer = Drawer(seed)
        properties = {name: drawer.schema(1) for name in ("p", "q")}
        root = {"anyOf": [{"required": ["p"]}, {"properties": {"q": drawer.schema(0)}}]} if drawer.chance(0.2) else {}
        source = {
            "name": "go",
            "parameters": {"properties": properties, "required": ["q"] * drawer.chance(0.5), **root},
        }
        try:
            (once,) = tool_schemas([source])
        except UserError:
            continue
        tied += once.rules is not None
        again = ToolSchema.from_openai(once.exact())
        assert again.parameters == once.parameters and again.canonical_json() == once.canonical_json(), seed
    assert tied > 3


def test_changing_a_returned_schema_does_not_affect_later_reads() -> None:
    root = {"anyOf": [{"required": ["p"]}, {"required": ["q"]}]}
    tied = {"name": "stop", "parameters": {"properties": {"p": {"enum": [1]}, "q": {"enum": [2]}}, **root}}
    sources = [
        tool("go", p=["left", "right"]),
        tool("put", p={"oneOf": [{"type": "string", "pattern": "^a"}, {"const": 1}]}),
    ]
    for schema in tool_schemas([*sources, tied]):
        for shown in (schema.to_openai(), schema.exact()):
            parameters = shown["function"]["parameters"]
            parameters["properties"]["p"].get("enum", []).clear()
            parameters.get("anyOf", []).clear()
    again = tool_schemas([*sources, tied])
    assert again[0].parameters[0].schema["enum"] == ["left", "right"]
    assert again[2].rules is not None and again[2].rules.written == root
    fresh = tuple(ToolSchema.from_openai(t) for t in [*sources, tied])
    assert [s.exact() for s in again] == [s.exact() for s in fresh]
