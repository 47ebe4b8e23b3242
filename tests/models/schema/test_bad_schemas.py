"""Tools that cannot be decoded within limits are refused, naming tool, parameter and a hint."""

from __future__ import annotations

import gc
import json
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decider import DeciderSpec, build_core
from rtcontrol.models.decode.grammar import GrammarCompiler
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import limits, validator
from rtcontrol.models.schema.limits import MAX_PATTERN_ATOMS, MAX_PATTERNS
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.schema.validator import compile_pattern
from tests.models.decode.test_value_law import decoded
from tests.models.small import build, build_checkpoint, reconfigure, tool

NAN = float("nan")
DEEP: Any = {"type": "string"}
for _ in range(2000):
    DEEP = {"type": "array", "items": DEEP}
LAUGHS = {f"L{i}": {"anyOf": [{"$ref": f"#/$defs/L{i + 1}"}] * 10} for i in range(9)} | {"L9": {"type": "boolean"}}
CYCLE = {"Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}}


@pytest.mark.parametrize(
    ("schema", "message", "remedy"),
    [
        ({"$ref": "#/$defs/Node"}, "#/$defs/Node refers to itself", "as many levels"),
        ({"$ref": "#/$defs/L0"}, "more than 10000 parts", ""),
        ({"type": "integer", "minimum": 0.5, "maximum": 3}, "an integer has minimum 0.5", ""),
        ({"type": "number", "minimum": 0.05, "maximum": 1, "multipleOf": 0.1}, "", "Start at 0.0, or choose"),
        ({"enum": []}, "its enum is empty", "at least one value"),
        ({"anyOf": []}, "anyOf is []", "non-empty"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 1}, "minItems 3 exceeds", "Swap"),
        (
            {"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3},
            "there is no value within its bounds",
            "Widen",
        ),
        ({"type": "number", "minimum": 3, "maximum": 1}, "minimum 3 exceeds maximum 1", "Swap"),
        ({"enum": ["a\ud800"]}, "half a character (a lone surrogate)", "whole characters"),
        ({"type": "number", "minimum": NAN, "maximum": 1}, "bounds nan to 1", "finite"),
        ({"type": "number", "default": NAN}, "it contains a value not in JSON", "finite"),
        ({"type": "integer", "minimum": True, "maximum": 4}, "minimum is True", "'number'"),
        ({"type": [["a"]]}, "type is [['a']]", "as JSON schema requires"),
        ({"enum": [1], "not": 5}, "not is 5", "'object', 'boolean'"),
        ({"enum": [1], "$defs": [1]}, "$defs is [1]", "'object'"),
        ({"enum": [1], "x-group": ["a"]}, "x-group is ['a']", "a string"),
        ({"type": "array", "items": {"const": 1}, "minItems": 2, "uniqueItems": True, "maxItems": 2}, "", "Relax"),
        ({"enum": [1, 2], "minimum": 3}, "no value satisfies all of its rules", "Relax"),
        ({"enum": ["a", "b"], "pattern": "(?=a)"}, "its pattern '(?=a)' is not supported", "Use only"),
        ({"enum": ["a"], "not": {"$ref": "#/$defs/Q"}}, "#/$defs/Q is not a definition", "by its target"),
        (DEEP, "nested too deeply", "fewer levels"),
        (False, "its schema is False", "a JSON schema object"),
        ({"type": "string", "not": {"title": "T"}}, "its `not` has no rule (title)", "Add a rule"),
        ({"allOf": [{"type": "string"}, {"not": {}}]}, "its `not` excludes every value", "Relax"),
    ],
)
def test_undecodable_parameter_is_named_with_a_hint(schema: Any, message: str, remedy: str) -> None:
    parameters = {"properties": {"p": schema}, "$defs": {**LAUGHS, **CYCLE}}
    with pytest.raises(UserError) as error:
        tool_schemas([{"name": "go", "parameters": parameters}])
    assert error.value.what.startswith("Tool go, parameter p: ")
    assert message in error.value.what and remedy in error.value.remedy
    assert len(str(error.value)) < 400


def test_tools_longer_than_the_context_are_refused_when_a_session_opens(tmp_path: Path) -> None:
    many = [tool(f"go_{i}", v=["left", "right"]) for i in range(60)]
    folder = reconfigure(build_checkpoint(tmp_path / "m"), max_position_embeddings=64)
    with pytest.raises(UserError, match="leaves no room for the call in the model's context of 64.* fewer tools"):
        build(folder, many)


@pytest.mark.timeout(30)
def test_values_longer_than_the_context_are_refused_before_planning(folder: Path) -> None:
    with pytest.raises(UserError, match="leaves no room for the call in the model's context"):
        build(folder, [tool("go", v=["a" * 60_000, "b" * 60_000])])


# Schemas that would take minutes or gigabytes to compile or decode are refused by name or stopped at a limit.


def taking(schema: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "f", "parameters": {"properties": {"a": schema}, "required": ["a"], **more}}]


def text(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, **more}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "repeated repetitions": (text("^(a{1000}){1000}$"), "50000 characters in patterns"),
    "states without number": (text("^[ab]*a[ab]{300}$"), "no value of at most 64 tokens"),
    "a thousand groups": (text("(" * 1500 + "a" + ")" * 1500), "maximum number of nested"),
    "a number that no message takes": ({"type": "number", "minimum": 1e300}, "no value satisfies its schema"),
    "a thousand patterns": (
        {"type": "object", "patternProperties": {f"^a{i}.*b$": {"type": "string"} for i in range(1000)}},
        "more than 512 patterns",
    ),
    "two thousand alternatives": (
        {"anyOf": [{"type": "string", "maxLength": i} for i in range(2000)]},
        "more than 1000 alternatives",
    ),
    "constants of a megabyte": ({"enum": [f"{i} " + "no one " * 1000 for i in range(100)]}, "too long, or too many"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", REFUSED)
def test_schema_too_costly_to_decode_is_refused_by_name(case: str) -> None:
    schema, why = REFUSED[case]
    checkpoint = Checkpoint.open("lander")
    with pytest.raises(UserError, match=why) as refused:
        tools = tool_schemas(taking(schema))
        build_core(DeciderSpec("lander", ()), checkpoint, checkpoint.config["vocab_size"], tools)
    assert re.match("Tool f, (parameter )?a: ", refused.value.what) and refused.value.remedy
    assert len(refused.value.what) < 20_000


@pytest.mark.timeout(60)
def test_decoding_ends_whatever_the_model_prefers() -> None:
    names = {f"^a{i}.*b$": {"type": "string"} for i in range(80)}
    large = {"type": "array", "items": {"type": "integer", "multipleOf": 7919 * 7907}, "maxItems": 10**9}
    checkpoint = Checkpoint.open("lander")
    grammars = GrammarCompiler(checkpoint.tokenizer, checkpoint.config["vocab_size"])
    for schema in (text("^[ab]*a[ab]{25}$"), {"type": "object", "patternProperties": names}, large):
        domain: Any = tool_schemas(taking(schema))[0].parameters[0].domain
        grammar = grammars.compile(domain, "")
        for seed in range(3):
            with suppress(DecodeError):  # this value cannot be decoded
                decoded(grammars, grammar, domain, random.Random(seed), 64)


# Hostile tools are refused by a limit, or read in time proportional to their size.


Shape = Callable[[int], dict[str, Any]]


def nested(depth: int, wrap: Callable[[Any], Any]) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        value = wrap(value)
    return value


def record(i: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"const": i}, "v": {"type": "string"}}, "required": ["k"]}


# Each function makes a schema of about n parts.
SHAPES: dict[str, Shape] = {
    "constants in oneOf": lambda n: {"oneOf": [{"const": f"value {i}"} for i in range(n)]},
    "objects in oneOf": lambda n: {"oneOf": [record(i) for i in range(n)]},
    "patterns": lambda n: {"anyOf": [text(f"^a{i}.*b{i}$") for i in range(n)]},
    "repetitions in each other": lambda n: text("^" + "(" * n + "a" + "){2}" * n + "$"),
    "conditions": lambda n: {
        "type": "integer",
        "allOf": [{"if": {"const": i}, "then": {"const": i}} for i in range(n)],
    },
    "listed values under a rule": lambda n: {"enum": [*range(n)], "not": {"enum": [1, 2]}},
    "properties": lambda n: {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(n)}},
    "lists in lists": lambda n: nested(n, lambda inner: {"type": "array", "items": inner}),
    "alternatives in alternatives": lambda n: nested(n, lambda inner: {"anyOf": [inner, {"type": "integer"}]}),
}
SIZES = (1_000, 4_000, 16_000)
PART_S = 0.001  # processor time per part, on a slow machine
CHAIN = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(9_000)} | {"d9000": {"type": "string"}}


def seconds(tools: list[dict[str, Any]]) -> tuple[float, bool]:
    """Return this thread's processor time for reading the tools, and whether they were accepted."""
    gc.freeze()  # collecting garbage of other tests would take longer than reading
    began_s = time.thread_time()
    try:
        tool_schemas(tools)
        taken = True
    except UserError as error:
        assert error.what.startswith("Tool f") and error.remedy and len(error.what) < 400
        taken = False
    finally:
        gc.unfreeze()
    return time.thread_time() - began_s, taken


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_read_or_refused_in_linear_time(shape: str) -> None:
    for size in SIZES:
        took_s, _ = seconds(taking(SHAPES[shape](size)))
        assert took_s < PART_S * size, f"{size} parts took {took_s:.2f} s"


@pytest.mark.parametrize("definitions", [LAUGHS, CHAIN], ids=["multiplying", "a chain"])
def test_references_are_counted_while_they_are_expanded(definitions: dict[str, Any]) -> None:
    first = next(iter(definitions))
    took_s, taken = seconds(taking({"$ref": f"#/$defs/{first}"}, **{"$defs": definitions}))
    assert not taken and took_s < 1.0


def test_compiled_patterns_are_not_kept_for_life() -> None:
    for number in range(1200):
        compile_pattern(f"^a{{1,9}}b*c?{number}$")
    assert len(validator._patterns) <= MAX_PATTERNS
    assert compile_pattern("^x+$") is compile_pattern("^x+$")
    for number in range(20):
        compile_pattern("[abc]" * 800 + str(number))
    assert sum(map(len, validator._patterns)) <= MAX_PATTERN_ATOMS


def test_depth_beyond_recursion_is_refused_without_recursion() -> None:
    took_s, taken = seconds(taking(nested(100_000, lambda inner: {"items": inner})))
    assert not taken and took_s < 1.0


@pytest.mark.parametrize("name", ["MAX_PATTERNS", "MAX_PATTERN_ATOMS", "MAX_ALTERNATIVES"])
def test_limits_hold_for_all_tools_together(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    tools = [
        {"name": f"f{i}", "parameters": {"properties": {"a": {"anyOf": [text(f"^{i}$"), {"type": "null"}]}}}}
        for i in range(3)
    ]
    tool_schemas(tools)
    monkeypatch.setattr(limits, name, 2)
    with pytest.raises(UserError, match=r"Tool f\d.*with the tools after it, it has more than 2 "):
        tool_schemas([{**tool, "description": "Another."} for tool in tools])


@pytest.mark.parametrize("name", ['si"de', "a\nb", "a: b", "", "\u2028", "\ud800", "a, parameter b"])
def test_odd_names_in_messages_are_quoted_on_one_line(name: str) -> None:
    root = {"properties": {name: {"type": "string", "pattern": "(?=a)"}}}
    with pytest.raises(UserError) as error:
        tool_schemas([{"name": f"go {name}", "parameters": root}])
    start = f"Tool {json.dumps(f'go {name}')}"
    assert str(error.value).startswith((f"{start}, parameter {json.dumps(name)}: ", f"{start}: "))
    assert len(str(error.value).splitlines()) == 1
