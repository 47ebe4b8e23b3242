"""Hostile tools are refused by a limit, or read in time that grows with their size."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import limits
from rtcontrol.models.schema.tool_schema import tool_schemas

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
LAUGHS = {f"L{i}": {"anyOf": [{"$ref": f"#/$defs/L{i + 1}"}] * 10} for i in range(9)} | {"L9": {"type": "boolean"}}
CHAIN = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(9_000)} | {"d9000": {"type": "string"}}


def taking(schema: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
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
        took_s, _ = seconds(taking(SHAPES[shape](size)))
        assert took_s < PART_S * size, f"{size} parts took {took_s:.2f} s"


def test_a_tools_own_parameters_are_read_in_linear_time() -> None:
    for size in SIZES:
        took_s, _ = seconds([{"name": "f", "parameters": SHAPES["properties"](size)}])
        assert took_s < PART_S * size, f"{size} parameters took {took_s:.2f} s"


@pytest.mark.parametrize("definitions", [LAUGHS, CHAIN], ids=["references that multiply", "a chain of references"])
def test_references_are_counted_while_they_are_written_out(definitions: dict[str, Any]) -> None:
    first = next(iter(definitions))
    took_s, taken = seconds(taking({"$ref": f"#/$defs/{first}"}, **{"$defs": definitions}))
    assert not taken and took_s < 1.0


def test_depth_beyond_recursion_is_refused_without_recursion() -> None:
    took_s, taken = seconds(taking(nested(100_000, lambda inner: {"items": inner})))
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
