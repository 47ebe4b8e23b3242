"""Tools that cannot be decoded, or not within a bound, are refused by tool and parameter, with what to write."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decider import DeciderSpec, core_of
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.grammar import parse_free
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import limits
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.models.small import build, build_checkpoint, tool

NAN = float("nan")
DEEP: Any = {"type": "string"}
for _ in range(2000):
    DEEP = {"type": "array", "items": DEEP}
LAUGHS = {f"L{i}": {"anyOf": [{"$ref": f"#/$defs/L{i + 1}"}] * 10} for i in range(9)} | {"L9": {"type": "boolean"}}
CYCLE = {"Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}}


@pytest.mark.parametrize(
    ("schema", "message", "remedy"),
    [
        ({"$ref": "#/$defs/Node"}, "#/$defs/Node refers to itself", "write out as many levels"),
        ({"$ref": "#/$defs/L0"}, "more than 10000 parts", ""),
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, "two parts of it say type 'integer' and 'string'", ""),
        ({"type": "integer", "minimum": 0.5, "maximum": 3}, "an integer with minimum 0.5", ""),
        ({"type": "number", "minimum": 0.05, "maximum": 1, "multipleOf": 0.1}, "", "Start at 0.0 or choose"),
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
    parameters = {"properties": {"p": schema}, "$defs": {**LAUGHS, **CYCLE, "Any": {"description": "Anything."}}}
    with pytest.raises(UserError) as error:
        tool_schemas([{"name": "go", "parameters": parameters}])
    assert error.value.what.startswith("Tool go, parameter p: ")
    assert message in error.value.what and remedy in error.value.remedy
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("key", ["$defs", "definitions"])
def test_definitions_that_are_none_are_refused(key: str) -> None:
    with pytest.raises(UserError, match=r"Tool go: .*s is \[1\]\. Map each name to its schema"):
        tool_schemas([{"name": "go", "parameters": {"properties": {"p": {"enum": [1]}}, key: [1]}}])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^abc$", "maxLength": 2},
        {"type": "string", "pattern": "(" * 300},
        {"type": "string", "pattern": "(?!a)b"},
        {"type": "string", "pattern": "(a"},
        {"type": "integer", "minimum": 5, "maximum": 3.5, "multipleOf": 1e-9},
    ],
)
def test_a_pattern_that_no_value_has_is_refused_when_a_session_opens(folder: Path, schema: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"Tool go, (parameter )?v: ") as error:
        build(folder, [tool("go", v=schema)])
    assert len(str(error.value)) < 500 and "Traceback" not in str(error.value)


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


# Schemas that would take minutes or gigabytes to compile or to decode: refused by name, or done within a bound.


def taking(schema: Any) -> list[dict[str, Any]]:
    return [{"name": "f", "description": "F.", "parameters": {"properties": {"a": schema}, "required": ["a"]}}]


def text(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, **more}


def options(count: int, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}, **more}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "repeated repetitions": (text("^(a{1000}){1000}$"), "50000 characters in patterns"),
    "repeated thrice": (text("^((a{100}){100}){100}$"), "50000 characters in patterns"),
    "repeated billions of times": (text("^a{4000000000}$"), "50000 characters in patterns"),
    "states without number": (text("^[ab]*a[ab]{300}$"), "no value of at most 64 tokens"),
    "a thousand groups": (text("(" * 1500 + "a" + ")" * 1500), "maximum number of nested"),
    "a long text": ({"type": "string", "minLength": 10**9}, "no value of at most 64 tokens"),
    "a length beyond a machine's": ({"type": "string", "maxLength": 10**30}, "cannot be decoded"),
    "a long list": ({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}, "at most 64 tokens"),
    "three long texts": (
        {"type": "array", "items": {"type": "string", "minLength": 3000}, "minItems": 3},
        "no value of at most 64 tokens",
    ),
    "steps between bounds": ({"type": "integer", "maximum": 10**18, "multipleOf": 7919}, "cannot be decoded"),
    "a hundred steps": (
        {"type": "array", "prefixItems": [{"type": "integer", "multipleOf": n} for n in range(9001, 9101)]},
        "cannot be decoded",
    ),
    "a thousand patterns": (
        {"type": "object", "patternProperties": {f"^a{i}.*b$": {"type": "string"} for i in range(1000)}},
        "more than 512 patterns",
    ),
    "two thousand alternatives": (
        {"anyOf": [{"type": "string", "maxLength": i} for i in range(2000)]},
        "more than 1000 alternatives",
    ),
    "two thousand options": (options(2000), "no value of at most 64 tokens"),
    "a constant of half a megabyte": (
        {"type": "object", "properties": {"z": {"const": "y" * 500_000}}, "required": ["z"]},
        "too long, or too many",
    ),
    "constants of a megabyte": ({"enum": [f"{i} " + "no one " * 1000 for i in range(100)]}, "too long, or too many"),
}
DECODED: dict[str, dict[str, Any]] = {
    "nested repetitions": text("^(a+)+$"),
    "nested stars": text("^((a*)*)*b$"),
    "states that double": text("^[ab]*a[ab]{25}$"),
    "long at most": {"type": "string", "maxLength": 10**9},
    "all at once": {"allOf": [text(f".*{letter}.{{{20 + i}}}") for i, letter in enumerate("abcdef")]},
    "a long list at most": {"type": "array", "items": {"type": "string"}, "maxItems": 10**9},
    "large steps": {"type": "array", "items": {"type": "integer", "multipleOf": 7919 * 7907}},
    "odd steps": {"type": "number", "multipleOf": 99991.7},
    "many values in a list": {"type": "array", "items": {"enum": [f"v{i}" for i in range(20_000)]}},
    "many kinds of text": {"anyOf": [text(f"^a{i}.*b{i}$") for i in range(150)]},
    "many names": {"type": "object", "patternProperties": {f"^a{i}.*b$": {"type": "string"} for i in range(80)}},
    "names that double": {
        "type": "object",
        "propertyNames": {"pattern": "^[ab]*a[ab]{40}$"},
        "additionalProperties": {"type": "string"},
    },
}


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open("lander")


def compiled(checkpoint: Checkpoint, schema: dict[str, Any]) -> Any:
    return core_of(DeciderSpec("lander", ()), checkpoint, checkpoint.config["vocab_size"], tool_schemas(taking(schema)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_decoded_in_its_bounds_is_refused_by_name(checkpoint: Checkpoint, case: str) -> None:
    schema, why = REFUSED[case]
    with pytest.raises(UserError, match=why) as refused:
        compiled(checkpoint, schema)
    assert re.match("Tool f, (parameter )?a: ", refused.value.what) and refused.value.remedy
    assert len(refused.value.what) < 20_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", DECODED)
def test_what_is_decoded_ends_whatever_the_model_says(checkpoint: Checkpoint, case: str) -> None:
    core = compiled(checkpoint, DECODED[case])
    assert isinstance(core, DecoderCore)
    ((key, start),) = core.starts.items()
    for seed in range(3):
        chance = random.Random(seed)
        value = core._grammars.start(start[1])  # type: ignore[union-attr]
        try:
            while len(value.tokens) < 500:
                value.forced()
                legal = np.flatnonzero(value.legal(0, None)).tolist()
                if (token := 0 if legal == [0] else chance.choice(legal)) == 0:
                    break
                value.push(token)
            parse_free(core.domains[key], core._grammars.bytes_of(value.tokens).decode("utf-8", "replace"))  # type: ignore[union-attr]
        except DecodeError:
            pass  # of this value; told where it is decided
        assert len(value.tokens) < 500


# Hostile tools are refused by a limit, or read in time that grows with their size.


Shape = Callable[[int], dict[str, Any]]


def pattern(text: str) -> dict[str, Any]:
    return {"type": "string", "pattern": text}


def nested(depth: int, wrap: Callable[[Any], Any]) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        value = wrap(value)
    return value


def record(i: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"const": i}, "v": {"type": "string"}}, "required": ["k"]}


# Each makes a schema of about n parts.
SHAPES: dict[str, Shape] = {
    "constants in oneOf": lambda n: {"oneOf": [{"const": f"value {i}"} for i in range(n)]},
    "constants in anyOf": lambda n: {"anyOf": [{"const": f"value {i}"} for i in range(n)]},
    "texts in anyOf": lambda n: {"anyOf": [{"type": "string", "maxLength": i} for i in range(n)]},
    "objects in anyOf": lambda n: {"anyOf": [record(i) for i in range(n)]},
    "objects in oneOf": lambda n: {"oneOf": [record(i) for i in range(n)]},
    "patterns": lambda n: {"anyOf": [pattern(f"^a{i}.*b{i}$") for i in range(n)]},
    "repetitions": lambda n: pattern(f"^(a{{{n}}}){{{n}}}$"),
    "repetitions in each other": lambda n: pattern("^" + "(" * n + "a" + "){2}" * n + "$"),
    "rules of one value": lambda n: {"allOf": [{"type": "string", "maxLength": 5 + i} for i in range(n)]},
    "conditions": lambda n: {
        "type": "integer",
        "allOf": [{"if": {"const": i}, "then": {"const": i}} for i in range(n)],
    },
    "listed values under a rule": lambda n: {"enum": [*range(n)], "not": {"enum": [1, 2]}},
    "properties": lambda n: {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(n)}},
    "lists in lists": lambda n: nested(n, lambda inner: {"type": "array", "items": inner}),
    "alternatives in alternatives": lambda n: nested(n, lambda inner: {"anyOf": [inner, {"type": "integer"}]}),
}
SIZES = (1_000, 2_000, 4_000, 8_000, 16_000)
PART_S = 0.001  # of this process's time for each part, on a slow machine
MULTIPLYING = {f"L{i}": {"anyOf": [{"$ref": f"#/$defs/L{i + 1}"}] * 10} for i in range(9)} | {"L9": {"type": "boolean"}}
CHAIN = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(9_000)} | {"d9000": {"type": "string"}}


def with_parameter(schema: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"name": "f", "parameters": {"properties": {"a": schema}, "required": ["a"], **more}}]


def seconds(tools: list[dict[str, Any]]) -> tuple[float, bool]:
    """Return this thread's processor time for reading the tools, and whether they were taken."""
    began_s = time.thread_time()
    try:
        tool_schemas(tools)
    except UserError as error:
        assert error.what.startswith("Tool f") and error.remedy and len(error.what) < 400
        return time.thread_time() - began_s, False
    return time.thread_time() - began_s, True


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_read_or_refused_in_linear_time(shape: str) -> None:
    for size in SIZES:
        took_s, _ = seconds(with_parameter(SHAPES[shape](size)))
        assert took_s < PART_S * size, f"{size} parts took {took_s:.2f} s"


def test_a_tools_own_parameters_are_read_in_linear_time() -> None:
    for size in SIZES:
        took_s, _ = seconds([{"name": "f", "parameters": SHAPES["properties"](size)}])
        assert took_s < PART_S * size, f"{size} parameters took {took_s:.2f} s"


@pytest.mark.parametrize("definitions", [MULTIPLYING, CHAIN], ids=["references that multiply", "a chain of references"])
def test_references_are_counted_while_they_are_written_out(definitions: dict[str, Any]) -> None:
    first = next(iter(definitions))
    took_s, taken = seconds(with_parameter({"$ref": f"#/$defs/{first}"}, **{"$defs": definitions}))
    assert not taken and took_s < 1.0


def test_depth_beyond_recursion_is_refused_without_recursion() -> None:
    took_s, taken = seconds(with_parameter(nested(100_000, lambda inner: {"items": inner})))
    assert not taken and took_s < 1.0


@pytest.mark.parametrize("name", ["MAX_PATTERNS", "MAX_PATTERN_ATOMS", "MAX_ALTERNATIVES"])
def test_limits_hold_for_all_tools_together(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    tools = [
        {"name": f"f{i}", "parameters": {"properties": {"a": {"anyOf": [pattern(f"^{i}$"), {"type": "null"}]}}}}
        for i in range(3)
    ]
    tool_schemas(tools)
    monkeypatch.setattr(limits, name, 2)
    with pytest.raises(UserError, match=r"Tool f\d.*with the tools behind it, it has more than 2 "):
        tool_schemas([{**tool, "description": "Another."} for tool in tools])
