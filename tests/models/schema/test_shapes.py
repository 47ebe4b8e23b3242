"""Rules about the properties of a nested object are enforced while the object is decoded."""

from __future__ import annotations

import itertools
from typing import Any

import jsonschema
import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import FreeDomain, json_text
from rtcontrol.models.schema.mask import Mask, compile_mask
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.schema.validator import byte_matcher, matches_text
from tests.models.small import tool

SIZES: dict[str, Any] = {n: {"type": "number"} for n in ("base", "height", "length", "radius", "width")}
AREAS = {"oneOf": [{"required": ["length", "width"]}, {"required": ["radius"]}, {"required": ["base", "height"]}]}
KINDS: dict[str, Any] = {"kind": {"enum": ["box", "ball"]}, "edge": {"type": "number"}, "radius": {"type": "number"}}
BY_KIND = {
    "if": {"properties": {"kind": {"const": "box"}}},
    "then": {"required": ["edge"], "not": {"required": ["radius"]}},
    "else": {"required": ["radius"]},
}


def mask_of(schema: dict[str, Any]) -> Mask:
    ((parameter,),) = (read.parameters for read in tool_schemas([tool("put", v=schema)]))
    assert isinstance(parameter.domain, FreeDomain)
    return compile_mask(parameter.domain, "Tool put, v")


@pytest.mark.parametrize(
    ("properties", "rules"),
    [
        (SIZES, AREAS),
        (SIZES, {"anyOf": [{"required": ["base"]}, {"required": ["width"]}]}),
        (SIZES, {"dependentRequired": {"base": ["height"], "length": ["width", "depth"]}}),
        (SIZES, {"minProperties": 2, "maxProperties": 3}),
        (SIZES, {"not": {"required": ["base", "radius"]}, "required": ["base"]}),
        (KINDS, BY_KIND | {"required": ["kind"]}),
        (KINDS, {"dependentSchemas": {"radius": {"properties": {"kind": {"const": "ball"}}}}}),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_decodes_exactly_the_objects_that_the_rules_allow(properties: Any, rules: Any, nested: bool) -> None:
    inner = {"type": "object", "properties": properties, **rules}
    schema = {"type": "array", "items": inner, "minItems": 1, "maxItems": 1} if nested else inner
    mask, judge = mask_of(schema), jsonschema.Draft202012Validator(schema)
    assert not mask.checked
    matcher, legal = byte_matcher(mask.grammar), 0
    options = [[None, *part.get("enum", [1.5])] for part in properties.values()]
    for row in itertools.product(*options):
        value = {name: v for name, v in zip(properties, row, strict=True) if v is not None}
        whole = [value] if nested else value
        assert matches_text(matcher, json_text(whole)) == judge.is_valid(whole), whole
        legal += judge.is_valid(whole)
    assert legal


def test_refuses_an_object_that_no_combination_of_its_properties_satisfies() -> None:
    with pytest.raises(UserError, match="Tool put, v: no value satisfies its schema .`oneOf`.[.]"):
        mask_of({"type": "object", "properties": SIZES, "required": [*SIZES], **AREAS})


@pytest.mark.parametrize(
    ("more", "rules"),
    [
        ({"additionalProperties": True}, {"minProperties": 2}),  # other properties count, too
        ({}, {"anyOf": [{"properties": {"base": {"minimum": 5}}}, {"required": ["width"]}]}),  # about a free value
    ],
)
def test_leaves_rules_that_depend_on_free_values(more: Any, rules: Any) -> None:
    matcher = byte_matcher(mask_of({"type": "object", "properties": SIZES, **more, **rules}).grammar)
    assert matches_text(matcher, '{"base":1,"width":2}')
