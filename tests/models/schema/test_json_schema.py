"""Schemas in the notations of people and libraries, also with references, keep their meaning when normalised."""

from __future__ import annotations

from contextlib import nullcontext
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents import Tools
from rtcontrol.agents.tool import InvalidCall
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import MAX_CLOSED, ClosedDomain, domain_of, value_text
from rtcontrol.models.schema.json_schema import normalise, without_null
from rtcontrol.models.schema.tool_schema import ToolSchema

WHERE = "Tool t, parameter p"
SIXTEEN = {"type": "integer", "minimum": 0, "maximum": 15}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 4, "not": {"const": 3}}, [0, 1, 2, 4]),
        ({"enum": [1, 2, 3], "maximum": 2}, [1, 2]),
        ({"type": "integer", "minimum": 0, "maximum": 9, "anyOf": [{"maximum": 1}, {"minimum": 8}]}, [0, 1, 8, 9]),
        ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, [1, 3]),
        ({"oneOf": [{"enum": [1, 2]}], "anyOf": [{"enum": [2, 3]}, {"enum": [5]}]}, [2]),
    ],
)
def test_forbidden_values_are_neither_enumerated_nor_valid(schema: dict[str, Any], values: list[Any]) -> None:
    tools = Tools([{"name": "t", "parameters": {"properties": {"p": schema}, "required": ["p"]}}])
    (p,) = tools.schemas[0].parameters
    assert isinstance(p.domain, ClosedDomain) and list(p.domain.values) == values
    for v in range(10):
        try:
            tools.validate(Call("t", {"p": v}))
        except InvalidCall:
            assert v not in values
        else:
            assert v in values


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        ({"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 2, "uniqueItems": True}, 6),
        ({"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 4}], "items": False, "minItems": 2}, 2),
        ({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 3}, {"enum": [3, "auto"]}]}, 5),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1, "multipleOf": 0.25}, 4),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 2}, 2),
        ({"type": "string", "enum": ["a"], "nullable": True}, 1),
        ({"type": "object", "properties": dict.fromkeys("xyz", SIXTEEN), "required": [*"xyz"]}, MAX_CLOSED),
    ],
)
def test_closed_parts_make_a_closed_domain(schema: dict[str, Any], count: int) -> None:
    domain = domain_of(without_null(normalise(schema, WHERE))[0], WHERE)
    assert isinstance(domain, ClosedDomain)
    assert len(domain.values) == count


# References in every notation are replaced by their targets; tuples and other keywords of older drafts are read.


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
        "#/properties/either/anyOf/1",
        "#/$defs/a~1b~0c",
        "#/$defs/%C3%BC",
        "#/$defs/inner/definitions/deep",
        "#here",
    ],
)
def test_reference_is_replaced_by_its_target(reference: str) -> None:
    plain = parameter({"$ref": reference, "description": "How it is."})
    assert plain.schema == {**STATE, "description": "How it is."}
    assert parameter({"enum": ["idle", 1], "not": {"$ref": reference}}).domain.values == (1,)
    assert parameter({"type": "array", "items": {"$ref": reference}, "maxItems": 1}).domain.values[1:] == (
        ["idle"],
        ["busy"],
    )


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("#", "# refers to itself"),
        ("#/properties/p", "#/properties/p refers to itself"),
        ("#nowhere", "#nowhere is not a definition"),
    ],
)
def test_missing_or_circular_reference_is_refused(reference: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        parameter({"$ref": reference})
    assert says in str(error.value) and str(error.value).startswith("Tool t, parameter p: ")


PAIR = [{"enum": ["x", "y"]}, {"type": "boolean"}]


@pytest.mark.parametrize(
    ("old", "count"),
    [
        ({"items": PAIR, "additionalItems": False}, 1 + 2 + 4),
        ({"items": PAIR, "additionalItems": {"const": 7}, "maxItems": 3}, 1 + 2 + 4 + 4),
        ({"items": {"enum": [1, 2]}, "additionalItems": False, "maxItems": 1}, 3),
    ],
)
def test_draft_7_tuples_have_draft_7_values(old: dict[str, Any], count: int) -> None:
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", **old}
    domain = parameter(old).domain
    judge = jsonschema.Draft7Validator(old)
    assert isinstance(domain, ClosedDomain) and len(domain.values) == count
    assert all(judge.is_valid(v) for v in domain.values)


@pytest.mark.parametrize(
    ("schema", "null"),
    [
        ({"type": "string"}, True),
        ({"type": "string", "enum": ["a", None]}, True),
        ({"type": "string", "enum": ["a"]}, False),
        ({"type": "string", "anyOf": [{"maxLength": 3}, {"pattern": "^a"}]}, True),
        ({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": False}, True),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, True),
        ({"type": "integer", "minimum": 0, "maximum": 3}, True),
        ({"type": "string", "const": "a"}, False),
        ({"enum": ["a"]}, False),
        ({"$ref": "#/$defs/a~1b~0c"}, False),
        ({"allOf": [{"type": "string"}]}, False),
        ({"type": "string", "allOf": [{"type": "string"}]}, False),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, False),
        ({"anyOf": [{"type": "string", "nullable": True}, {"type": "integer"}]}, True),
        ({"not": {"type": "integer", "nullable": True}, "type": "string"}, False),
    ],
)
def test_nullable_adds_null_to_the_type_of_its_schema_alone(schema: dict[str, Any], null: bool) -> None:
    root = {**DOCUMENT, "properties": {"p": {**schema, "nullable": True}}, "required": ["p"]}
    tools = Tools([{"name": "t", "parameters": root}])
    with nullcontext() if null else pytest.raises(InvalidCall):
        tools.validate(Call("t", {"p": None}))


@pytest.mark.parametrize("of", ["Length", "Items", "Properties", "Contains"])
def test_count_with_a_decimal_point_is_an_integer(of: str) -> None:
    counts = normalise({f"min{of}": 1.0, f"max{of}": 2e0}, WHERE)
    assert repr(counts) == repr({f"min{of}": 1, f"max{of}": 2})
    with pytest.raises(UserError, match=rf"max{of} is 1.5"):
        normalise({f"max{of}": 1.5}, WHERE)


def test_list_counted_in_floats_is_closed() -> None:
    pair = {"type": "array", "items": {"type": "boolean"}, "minItems": 2.0, "maxItems": 2.0}
    assert len(parameter(pair).domain.values) == 4


# Values and their texts: numbers use Decimal, leaves are typed, and no two values have one text.


def listed(**schema: Any) -> ClosedDomain:
    domain = domain_of(schema, "Tool t, parameter p")
    assert isinstance(domain, ClosedDomain)
    return domain


def test_small_and_large_steps_have_no_exponent() -> None:
    assert listed(type="number", minimum=0, maximum=1e-7, multipleOf=1e-7).texts == ("0.0000000", "0.0000001")
    assert listed(type="number", minimum=0, maximum=2e22, multipleOf=1e22).texts[1] == "10000000000000000000000.0"
    assert value_text({"x": 1e-5, "y": [-0.0, 1e22]}) == '{"x":0.00001,"y":[0.0,10000000000000000000000.0]}'


@given(st.integers(-500, 500), st.integers(0, 60), st.sampled_from(["0.1", "0.25", "0.5", "0.01", "3", "1"]))
def test_grid_holds_exactly_the_multiples_within_its_bounds(first: int, count: int, step: str) -> None:
    low, high = Decimal(first) * Decimal(step), Decimal(first + count) * Decimal(step)
    domain = listed(type="number", minimum=float(low), maximum=float(high), multipleOf=float(step))
    assert list(domain.values) == [float((first + i) * Decimal(step)) for i in range(count + 1)]
    assert len({len(t.partition(".")[2]) for t in domain.texts}) == 1
    assert [float(t) for t in domain.texts] == list(domain.values)
    assert not any("e" in t.lower() or t.strip("0.") == "-" for t in domain.texts)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([True, "true", "auto"], ["true", '"true"', '"auto"']),
        (["1", 1, '"1"'], ['"1"', "1", r'"\"1\""']),
        ([[1], "[1]", {"a": 1}, '{"a":1}'], ["[1]", '"[1]"', '{"a":1}', r'"{\"a\":1}"']),
        ([0.0, -0.0, 1, "2"], ["0.0", "1", "2"]),
    ],
)
def test_texts_that_read_like_other_values_are_quoted(values: list[Any], texts: list[str]) -> None:
    assert listed(enum=values).texts == (*texts,)


def test_enumerated_integer_may_have_64_bits() -> None:
    least, most = -(2**63), 2**64 - 1
    assert domain_of({"enum": [least, 2**63, most]}, "w").values == (least, 2**63, most)  # type: ignore[union-attr]
    for beyond in (least - 1, most + 1):
        with pytest.raises(UserError, match="does not fit in 64 bits"):
            domain_of({"enum": [beyond]}, "w")
