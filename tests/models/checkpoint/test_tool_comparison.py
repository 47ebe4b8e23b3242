"""Tools are the same whatever the order of their keys; what differs is named; prompts keep the bytes of training."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rtcontrol.models.checkpoint.checkpoint import ZOO, zoo
from rtcontrol.models.checkpoint.tool_comparison import comparable
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

WAY = {"type": "string", "enum": ["left", "right"]}
SPEED = {"type": "integer", "minimum": 0, "maximum": 9}


def tool(properties: dict[str, Any], required: list[str], name: str = "go") -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": "Go.", "parameters": parameters}}


GO = tool({"way": WAY, "speed": SPEED}, ["way", "speed"])
LEARNT = TrainingMetadata(((GO,),))


def turned(value: Any) -> Any:
    """The same with the keys of all objects in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(one) for one in value] if isinstance(value, list | tuple) else value


def prompt(tools: tuple[ToolSchema, ...]) -> list[str]:
    return [one.canonical_json() for one in tools]


@pytest.mark.parametrize(
    "other",
    [
        turned(GO),
        tool({"way": {"enum": ["left", "right"], "type": "string"}, "speed": SPEED}, ["way", "speed"]),
        tool({"speed": SPEED, "way": WAY}, ["way", "speed"]),
        tool({"way": WAY, "speed": SPEED}, ["speed", "way"]),
    ],
    ids=["all", "enum", "properties", "required"],
)
def test_order_of_keys_makes_no_other_tools(other: dict[str, Any]) -> None:
    tools = tool_schemas((other,))
    assert LEARNT.knows(tools)
    assert prompt(LEARNT.as_trained(tools)) == prompt(tool_schemas((GO,)))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            tool({"way": {**WAY, "enum": ["right", "left"]}, "speed": SPEED}, ["way", "speed"]),
            'enum[0] is "right" here',
        ),
        (
            tool({"way": WAY, "speed": {**SPEED, "maximum": 8}}, ["way", "speed"]),
            "speed.maximum is 8 here, and 9 in its",
        ),
        (tool({"way": WAY, "speed": SPEED}, ["way"]), "required"),
        (tool({"way": WAY}, ["way"]), "properties.speed is missing here"),
        (tool({"way": WAY, "speed": SPEED}, ["way", "speed"], "walk"), "the tool go is missing here"),
    ],
    ids=["values", "bound", "required", "parameter", "name"],
)
def test_first_difference_is_named(other: dict[str, Any], difference: str) -> None:
    tools = tool_schemas((other,))
    assert not LEARNT.knows(tools)
    assert difference in str(LEARNT.difference(tools))


@pytest.mark.parametrize("name", sorted(zoo()))
def test_bundled_checkpoints_know_their_tools_in_any_order_of_keys(name: str) -> None:
    learnt = TrainingMetadata.of(ZOO / name)
    assert learnt is not None
    for own in learnt.tool_sets:
        given = tool_schemas(tuple(turned(copy.deepcopy(dict(one))) for one in own))
        assert learnt.knows(given)
        assert prompt(learnt.as_trained(given)) == prompt(tool_schemas(own))


def test_comparable_text_keeps_the_order_of_lists() -> None:
    assert comparable({"enum": [1, 2]}) != comparable({"enum": [2, 1]})
    assert comparable({"required": ["a", "b"]}) == comparable({"required": ["b", "a"]})
