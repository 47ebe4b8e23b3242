"""Tools that cannot be decoded are refused by tool and parameter, with what to write instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.vocabulary import build_tokenizer
from rtcontrol.run.toolsets import costs
from tests.models.small import WORDS, build, build_checkpoint, tool

NAN = float("nan")
DEEP: Any = {"type": "string"}
for _ in range(2000):
    DEEP = {"type": "array", "items": DEEP}
CYCLE = {"Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}}


@pytest.mark.parametrize(
    ("schema", "message", "remedy"),
    [
        ({"$ref": "#/$defs/Node"}, "#/$defs/Node refers to itself", "write out as many levels"),
        ({"enum": []}, "an empty enum", "at least one value"),
        ({"anyOf": []}, "anyOf is []", "non-empty"),
        ({"allOf": [{"enum": [1]}, {"enum": [2]}]}, "an empty enum", "at least one value"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 1}, "minItems 3 is above", "Swap"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength 5 is above maxLength 2", "Swap"),
        ({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3}, "no value is within its bounds", "Widen"),
        ({"type": "number", "minimum": 3, "maximum": 1}, "minimum 3 is above maximum 1", "Swap"),
        (
            {"type": "array", "items": {"enum": [1]}, "minItems": 2, "maxItems": 2, "uniqueItems": True},
            "no value satisfies",
            "Loosen",
        ),
        ({"enum": ["a\ud800"]}, "half a character (a lone surrogate)", "whole characters"),
        ({"type": "object", "properties": {"a\ud800": {"type": "string"}}}, "half a character", "whole characters"),
        ({"type": "number", "minimum": NAN, "maximum": 1}, "bounds nan to 1", "finite"),
        ({"type": "number", "maximum": NAN}, "bounds None to nan", "finite"),
        ({"type": "number", "multipleOf": float("inf")}, "in steps of inf", "finite"),
        ({"type": "string", "maxLength": NAN}, "maxLength is nan", "Write"),
        ({"type": "number", "default": NAN}, "it holds what JSON cannot write", "finite"),
        ({"type": "integer", "minimum": True, "maximum": 4}, "minimum is True", "'number'"),
        ({"type": "string", "maxLength": -1}, "maxLength is -1", "less than the minimum of 0"),
        ({"type": [["a"]]}, "type is [['a']]", "what JSON schema has there"),
        ({"type": "string", "pattern": 5}, "pattern is 5", "'string'"),
        ({"enum": [1], "not": 5}, "not is 5", "'object', 'boolean'"),
        ({"enum": [1], "$defs": [1]}, "$defs is [1]", "'object'"),
        ({"enum": [1], "definitions": [1]}, "definitions is [1]", "'object'"),
        ({"enum": [1], "x-group": ["a"]}, "x-group is ['a']", "a string"),
        ({"enum": [1], "x-group": 5}, "x-group is 5", "a string"),
        ({"enum": [1, 2], "minimum": 3}, "no value satisfies all of its rules", "Loosen"),
        (
            {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["z"]},
            "no value satisfies all of its rules",
            "Loosen",
        ),
        ({"enum": ["a", "b"], "pattern": "(?=a)"}, "its pattern '(?=a)' cannot be searched for", "Write it with"),
        ({"enum": ["a", "b"], "pattern": "^c"}, "no value satisfies all of its rules", "Loosen"),
        ({"enum": ["a"], "not": {"$ref": "#/$defs/Q"}}, "#/$defs/Q names no definition", "write it out"),
        ({"enum": [1], "not": {"$ref": "https://example.org/x"}}, "https://example.org/x names no", "write it out"),
        (DEEP, "nested too deeply", "flatter"),
        (False, "its schema is False", "a JSON schema object"),
        ({"type": "string", "not": {"title": "T"}}, "its `not` has no rule (title)", "Write into it"),
        ({"type": "array", "items": {"not": {"$ref": "#/$defs/Any"}}}, "its `not` has no rule (description)", "Write"),
        ({"allOf": [{"type": "string"}, {"not": {}}]}, "its `not` excludes every value", "Loosen"),
    ],
)
def test_a_parameter_that_cannot_be_decoded_is_named_with_the_remedy(schema: Any, message: str, remedy: str) -> None:
    parameters = {"properties": {"p": schema}, "$defs": {**CYCLE, "Any": {"description": "Anything."}}}
    with pytest.raises(UserError) as error:
        tool_schemas([{"name": "go", "parameters": parameters}])
    assert error.value.what.startswith("Tool go, parameter p: ")
    assert message in error.value.what and remedy in error.value.remedy
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("key", ["$defs", "definitions"])
def test_definitions_that_are_none_are_refused(key: str) -> None:
    with pytest.raises(UserError, match=r"Tool go: .*s is \[1\]\. Map each name to its schema"):
        tool_schemas([{"name": "go", "parameters": {"properties": {"p": {"enum": [1]}}, key: [1]}}])


def test_a_name_that_cannot_be_spelled_is_refused() -> None:
    with pytest.raises(UserError, match="half a character"):
        tool_schemas([{"name": "go\ud800"}])
    with pytest.raises(UserError, match="half a character"):
        tool_schemas([{"name": "go", "description": "to \ud800"}])


@pytest.mark.parametrize(
    "schema", [{"type": "string", "pattern": "^abc$", "maxLength": 2}, {"type": "string", "pattern": "(" * 300}]
)
def test_a_pattern_that_no_value_has_is_refused_when_a_session_opens(folder: Path, schema: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"Tool go, (parameter )?v: ") as error:
        build(folder, [tool("go", v=schema)])
    assert len(str(error.value)) < 500 and "Traceback" not in str(error.value)


def test_ten_thousand_values_are_decoded_and_told_with_what_would_be_better() -> None:
    tokenizer = STTokenizer(build_tokenizer([WORDS]))
    (cost,) = costs(tool_schemas([tool("go", v=[f"left {i}" for i in range(10_000)])]), tokenizer)
    assert cost.closed and cost.passes == 2
    assert "v: its 10000 values make 1002 branching tokens" in cost.remedies[0]
    assert "Fewer values" in cost.remedies[0]


def test_tools_longer_than_the_context_are_refused_when_a_session_opens(tmp_path: Path) -> None:
    many = [tool(f"go_{i}", v=["left", "right"]) for i in range(60)]
    folder = build_checkpoint(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    with pytest.raises(UserError, match="leaves no room for the call in the model's context of 64.* fewer tools"):
        build(folder, many)


@pytest.mark.timeout(30)
def test_values_longer_than_the_context_are_refused_before_a_plan_is_made_of_them(folder: Path) -> None:
    with pytest.raises(UserError, match="leaves no room for the call in the model's context"):
        build(folder, [tool("go", v=["a" * 60_000, "b" * 60_000])])
