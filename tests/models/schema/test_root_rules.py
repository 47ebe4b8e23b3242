"""Rules of a root schema on several arguments apply to every call, also random ones, like in jsonschema."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents import InvalidCall, Tools
from rtcontrol.models.call import Call
from rtcontrol.models.data.convert import check_call
from rtcontrol.models.data.sample import UnusableSample
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.random_call import check_random, random_call
from rtcontrol.models.schema.tool_schema import ABSENT, ToolSchema, tool_schemas
from tests.models.small import law

LEFT_OUT = object()
NAMES = ("a", "b", "c")
VALUES: dict[str, list[Any]] = {"a": [1, 2], "b": ["x", "y", None], "c": [True, False]}
OWN = {"a": {"enum": [1, 2]}, "b": {"enum": ["x", "y", None]}, "c": {"type": "boolean"}}
name, names = st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=2)
OF_ONE = st.sampled_from(
    [("a", {"const": 1}), ("b", {"enum": ["y", None]}), ("c", {"const": True}), ("b", {"not": {"const": "x"}})]
)
LEAVES = st.one_of(
    names.map(lambda n: {"required": n}),
    st.tuples(OF_ONE, st.booleans()).map(
        lambda t: {"properties": {t[0][0]: t[0][1]}, **({"required": [t[0][0]]} if t[1] else {})}
    ),
    st.integers(0, 3).map(lambda n: {"minProperties": n}),
    st.integers(0, 3).map(lambda n: {"maxProperties": n}),
    st.tuples(name, names).map(lambda t: {"dependentRequired": {t[0]: t[1]}}),
    st.just({"propertyNames": {"enum": ["a", "b"]}}),
    st.booleans(),
    st.just({"type": "object"}),
)


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf"]), some).map(lambda t: {t[0]: t[1]}),
        inner.map(lambda part: {"not": part}),
        st.tuples(inner, inner, inner).map(lambda t: dict(zip(("if", "then", "else"), t, strict=True))),
        st.tuples(inner, inner).map(lambda t: {"if": t[0], "then": t[1]}),
        st.tuples(name, inner).map(lambda t: {"dependentSchemas": {t[0]: t[1]}}),
        st.tuples(inner, inner).map(
            lambda t: {**t[0], **t[1]} if isinstance(t[0], dict) and isinstance(t[1], dict) else t[0]
        ),
    )


RULES = st.recursive(LEAVES, _around, max_leaves=5)


def calls() -> Iterator[dict[str, Any]]:
    for row in itertools.product(*([LEFT_OUT, *VALUES[n]] for n in NAMES)):
        yield {n: v for n, v in zip(NAMES, row, strict=True) if v is not LEFT_OUT}


def sayable(tool: ToolSchema) -> list[dict[str, Any]]:
    """Return all calls that the tool's heads can express."""
    rows: list[list[dict[str, Any]]] = []
    for slot in tool.slots():
        assert isinstance(slot.domain, ClosedDomain)
        options = [slot.arguments(v) for v in slot.domain.values]
        rows.append([*options, *({} if n is ABSENT else slot.arguments(None) for n in slot.null)])
    return [{k: v for part in row for k, v in part.items()} for row in itertools.product(*rows)]


def key(call: dict[str, Any]) -> str:
    return json.dumps(call, sort_keys=True)


@law(400)
@given(rules=RULES, required=st.lists(st.sampled_from(NAMES), unique=True, max_size=2))
def test_call_is_legal_exactly_if_the_root_schema_allows_it(rules: Any, required: list[str]) -> None:
    root = {"type": "object", "properties": OWN, "required": required, "allOf": [rules]}
    if isinstance(rules, dict) and not {"properties", "required", "type"} & set(rules):
        root = {"type": "object", "properties": OWN, "required": required, **rules}
    judge = jsonschema.Draft202012Validator(root)
    allowed = {key(c) for c in calls() if judge.is_valid(c)}
    try:
        tool = ToolSchema.from_openai({"name": "t", "parameters": root})
    except UserError as error:  # a null of an optional argument cannot be written
        optional = OWN.keys() - {*required, *(root.get("required", ()))}
        assert all(None in [json.loads(a).get(n, 0) for n in optional] for a in allowed), error
        return
    legal = {key(c) for c in sayable(tool) if tool.rules is None or tool.rules.violation(c) is None}
    if (known := tool.combinations) is not None:
        assert legal == {key(c) for c in sayable(tool) if known.matching_rows(known.rows, known.names, c)}
    assert legal <= allowed
    # A null of an optional argument is left out.
    alone = {p.name for p in tool.parameters if not p.required}
    assert all(None in [json.loads(a).get(n, 0) for n in alone] for a in allowed - legal)
    with suppress(UserError):  # random calls may break the rules
        assert all(key(dict(random_call((tool,), random.Random(seed)).arguments)) in allowed for seed in range(4))
    again = ToolSchema.from_openai(json.loads(tool.canonical_json()))
    assert again.canonical_json() == tool.canonical_json() and again.parameters == tool.parameters


EDGE = {
    "type": "object",
    "properties": {n: {"type": "string"} for n in ("edge", "from", "kind", "to")},
    "oneOf": [{"required": ["edge"]}, {"required": ["from", "kind", "to"]}],
}


def read(root: Any) -> ToolSchema:
    return ToolSchema.from_openai({"name": "go", "inputSchema": root})


@pytest.mark.parametrize(
    ("root", "calls"),
    [
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"enum": [3, 4]}},
                "dependencies": {"a": ["b"], "b": {"properties": {"c": {"const": 4}}}},
            },
            [{}, {"c": 3}, {"c": 4}, {"b": 2}, {"b": 2, "c": 4}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 4}],
        ),
        (
            {"$ref": "#/definitions/Go", "definitions": {"Go": {"properties": {"a": {"const": 1}}, "required": ["a"]}}},
            [{"a": 1}],
        ),
    ],
)
def test_published_root_rules_leave_exactly_the_legal_calls(root: Any, calls: list[dict[str, Any]]) -> None:
    judge, tool = jsonschema.validators.validator_for(root, jsonschema.Draft202012Validator)(root), read(root)
    legal = [c for c in sayable(tool) if tool.rules is None or tool.rules.violation(c) is None]
    assert {key(c) for c in legal} >= {*map(key, calls)} and all(judge.is_valid(call) for call in legal)


def test_call_with_mutually_exclusive_arguments_is_refused() -> None:
    right, wrong = Call("go", {"edge": "e"}), Call("go", dict.fromkeys(("edge", "from", "kind", "to"), "e"))
    tools = Tools([{"name": "go", "parameters": EDGE}])
    tools.validate(right)
    with pytest.raises(InvalidCall, match="violate `(oneOf|anyOf)`"):
        tools.validate(wrong)
    check_call(right, read(EDGE))
    with pytest.raises(UnusableSample, match="may not be combined"):
        check_call(wrong, read(EDGE))


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"additionalProperties": {"type": "string"}}, "`additionalProperties` allows arguments that are not listed"),
        ({"anyOf": [{"required": ["a"]}, {"required": ["z"]}], "required": ["q"]}, "['q'] are required, but not among"),
        ({"$dynamicRef": "#x"}, "`$dynamicRef` is not supported"),
        ({"type": "array"}, "its parameters are of type 'array', not an object"),
        ({"not": {"description": "Nothing."}}, "its `not` has no rule (description), so it excludes every value"),
        ({"not": {}}, "its `not` excludes every call"),
        ({"required": ["q"], "properties": {"q": {"not": {}}}}, "['q'] are required, but"),
        (
            {"oneOf": [{"properties": {"q": {"const": 1}}}, {"required": ["a"]}]},
            "its parameter q is listed in alternatives only",
        ),
        ({"enum": [{"a": 1}]}, "`enum` allows arguments that are not listed"),
        ({"minProperties": 2}, "no call satisfies `minProperties` of its parameters"),
        ({"oneOf": [{"required": ["a"]}, {"minProperties": 1}], "required": ["a"]}, "no call satisfies `oneOf`"),
        ({"allOf": [{"enum": ["{}"]}]}, "no call satisfies `allOf`"),
    ],
)
def test_unsatisfiable_root_rules_are_refused_by_name(rules: Any, says: str) -> None:
    with pytest.raises(UserError) as error:
        read({"properties": {"a": {"enum": [1]}}, **rules})
    assert says in str(error.value) and str(error.value).startswith("Tool go: ")


# A random call is legal for its tools; if there is none, the error says why.


@pytest.mark.parametrize(
    "root",
    [
        {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "minProperties": 1},
        {"properties": {"a": {"type": "string"}}, "required": ["a"]},
    ],
)
def test_tool_without_possible_random_call_names_the_parameter(root: dict[str, Any]) -> None:
    tools = tool_schemas([{"name": "stop"}, {"name": "go", "parameters": root}])
    with pytest.raises(UserError, match=r"Tool go, parameter a: its values cannot be sampled") as error:
        check_random(tools)
    assert "enum or bounds" in error.value.remedy


def test_refuses_parameters_that_refer_to_another_type() -> None:
    with pytest.raises(UserError, match="its parameters are of type 'array', not an object"):
        read({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}})


def test_names_the_tool_of_an_unsupported_pattern_in_its_rules() -> None:
    with pytest.raises(UserError, match="^Tool go: its patternProperties '.[?]!x.' is not supported"):
        read({"properties": {"a": {"enum": [1]}}, "anyOf": [{"patternProperties": {"(?!x)": False}}]})
