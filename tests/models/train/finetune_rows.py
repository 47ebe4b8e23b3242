"""Random rows with several tool sets, for the tests of fine-tuning."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.models.small import tool

PLACES = ("left", "right", "north", "green blue")


def tool_set(rng: random.Random) -> list[dict[str, Any]]:
    """Return one to three random tools with up to seven parameters."""
    names = rng.sample(("go", "turn_left", "set_value", "open", "stop"), rng.randint(1, 3))
    made = []
    for name in names:
        kinds: list[Any] = [list(PLACES), {"type": "integer", "minimum": 0, "maximum": 9}, {"type": "string"}]
        domains = {f"{c}": rng.choice(kinds) for c in "abcdefg"[: rng.randint(0, 7)]}
        made.append(tool(name, rng.randint(0, 7), **domains))
    return made


def value_of(schema: dict[str, Any], rng: random.Random) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema["type"] in ("boolean", "number"):
        return rng.random() < 0.5 if schema["type"] == "boolean" else rng.choice([0.0, 0.5, 1.0])
    return rng.randint(0, 9) if schema["type"] == "integer" else rng.choice(["go red", "ü", "the left"])


def random_row(rng: random.Random, tools: list[dict[str, Any]]) -> dict[str, Any]:
    chosen = rng.choice(tools)
    parameters = chosen["parameters"]
    given = {
        name: value_of(schema, rng)
        for name, schema in parameters["properties"].items()
        if name in parameters["required"] or rng.random() < 0.5
    }
    return {
        "instruction": rng.choice(["go left", "go to the red", "stop"]),
        "observation": rng.choice(["x=1", "x=2 y=3", ""]),
        "tools": tools,
        "history": [f"go({i})" for i in range(rng.randint(0, 2))],
        "call": None if rng.random() < 0.1 else {"name": chosen["name"], "arguments": given},
        "source": "test",
        "weight": rng.choice([1.0, 1.0, 0.5]),
    }


def random_rows(seed: int, count: int, sets: int = 4) -> list[dict[str, Any]]:
    """Return random rows whose tools come from a few sets, in any order."""
    rng = random.Random(seed)
    tools = [tool_set(rng) for _ in range(sets)]
    return [random_row(rng, rng.choice(tools)) for _ in range(count)]


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
