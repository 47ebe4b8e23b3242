"""A random call is one that its tools allow, as a foreign judge says, or it is told why there is none."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents import Tools
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import check_random, random_call
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from tests.models.drawn_schemas import Drawer, closed
from tests.models.small import law
from tests.models.test_root_rules import NAMES, RULES

# Of each parameter of the root rules a few kinds: listed, counted, neither.
KINDS = {
    "a": [{"enum": [1, 2]}, {"type": "integer", "minimum": 0, "maximum": 90_000}, {"type": "string"}],
    "b": [{"enum": ["x", "y", None]}, {"type": ["string", "null"]}, {"type": "string", "minLength": 1}],
    "c": [
        {"type": "boolean"},
        {"type": "number", "minimum": 0, "maximum": 9_000, "multipleOf": 0.5},
        {"type": "array"},
    ],
}


def drawn_calls(root: dict[str, Any], count: int = 12) -> list[dict[str, Any]]:
    """Arguments of calls of a tool; none where the tool, or any call of it, is refused by name."""
    try:
        tool = ToolSchema.from_openai({"name": "go", "parameters": root})
        check_random([tool])
    except UserError as error:
        assert "Tool go" in error.what and error.remedy
        return []
    return [dict(random_call((tool,), random.Random(seed)).arguments) for seed in range(count)]


@law(400)
@given(
    rules=RULES,
    required=st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
    kinds=st.tuples(*(st.sampled_from(KINDS[name]) for name in NAMES)),
)
def test_calls_drawn_under_rules_over_several_arguments_keep_them(rules: Any, required: list[str], kinds: Any) -> None:
    root = {
        "type": "object",
        "properties": dict(zip(NAMES, kinds, strict=True)),
        "required": required,
        "allOf": [rules],
        "additionalProperties": False,
    }
    judge = jsonschema.Draft202012Validator(root)
    for arguments in drawn_calls(root):
        judge.validate(arguments)


def test_calls_of_drawn_parameters_are_right() -> None:
    found: Counter[bool] = Counter()
    for seed in range(400):
        drawer = Drawer(seed)
        properties = {name: drawer.schema(1) for name in ("p", "q", "r")[: 1 + seed % 3]}
        root = {"type": "object", "properties": properties, "required": [n for n in properties if drawer.chance(0.5)]}
        if len(properties) > 1 and drawer.chance(0.5):
            root |= {"minProperties": 1 + seed % 2}
        calls = drawn_calls(root, 4)
        found[bool(calls)] += 1
        judge = jsonschema.Draft202012Validator(closed(root))
        for arguments in calls:
            judge.validate(arguments)
    assert found[True] > 100 and found[False] > 20


def test_so_many_arguments_as_must_be_are_given_where_some_cannot_be_made_up() -> None:
    of = {"a": {"type": "string"}, "b": {"enum": [1, 2]}, "c": {"type": "integer", "minimum": 0, "maximum": 99_999}}
    tools = Tools([{"name": "go", "parameters": {"properties": of, "minProperties": 2}}])
    for seed in range(20):
        assert set(tools.validate(random_call(tools.schemas, random.Random(seed))).arguments) == {"b", "c"}


@pytest.mark.parametrize(
    "root",
    [
        {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "minProperties": 1},
        {"properties": {"a": {"type": "string"}, "b": {"enum": [1]}}, "minProperties": 2},
        {"properties": {"a": {"type": "string"}}, "required": ["a"]},
    ],
)
def test_a_tool_that_no_call_can_be_made_up_of_is_told_with_its_parameter(root: dict[str, Any]) -> None:
    tools = tool_schemas([{"name": "stop"}, {"name": "go", "parameters": root}])
    with pytest.raises(UserError, match=r"Tool go, parameter a: no value of it can be made up") as error:
        check_random(tools)
    assert "enum or bounds" in error.value.remedy


def test_null_is_a_value_where_it_may_be_one() -> None:
    (tool,) = tool_schemas(
        [{"name": "go", "parameters": {"properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}}]
    )
    assert random_call([tool], random.Random(0)).arguments == {"a": None}
