"""A small task of one's own for the tests: at a crossing, the light says what to do, and the instruction how fast."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SPEED = {"type": "string", "enum": ["slow", "fast"]}
TOOLS: list[dict[str, Any]] = [
    {"name": "stop", "description": "Stop."},
    {
        "name": "go",
        "description": "Go on.",
        "parameters": {"type": "object", "properties": {"speed": SPEED}, "required": ["speed"]},
    },
]
TOLD = ("drive slow", "drive fast")


def teacher(instruction: str, observation: str) -> dict[str, Any]:
    """What is right."""
    if "light red" in observation:
        return {"name": "stop", "arguments": {}}
    return {"name": "go", "arguments": {"speed": instruction.split()[-1]}}


def observe(rng: random.Random) -> str:
    """What is seen."""
    return f"light {rng.choice(['red', 'green'])} cars {rng.randint(0, 20)} lane {rng.choice(['left', 'right'])}"


def rows(count: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of the one format; so many that a fit soon sees that all that are held out are right."""
    rng = random.Random(seed)
    listed = []
    for _ in range(count):
        told, seen = rng.choice(TOLD), observe(rng)
        listed.append({"instruction": told, "observation": seen, "call": teacher(told, seen)})
    return listed


def write(path: Path, given: list[Any]) -> Path:
    """As JSONL."""
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in given), "utf-8")
    return path
