"""A small task for the tests: the light at a crossing determines the call, and the instruction its speed."""

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
    """Return the right call for a situation."""
    if "light red" in observation:
        return {"name": "stop", "arguments": {}}
    return {"name": "go", "arguments": {"speed": instruction.split()[-1]}}


def observe(rng: random.Random) -> str:
    """Return a random observation."""
    return f"light {rng.choice(['red', 'green'])} cars {rng.randint(0, 20)} lane {rng.choice(['left', 'right'])}"


def rows(count: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """Return rows of the task; with the default count a fit soon gets all held-out rows right."""
    rng = random.Random(seed)
    listed = []
    for _ in range(count):
        told, seen = rng.choice(TOLD), observe(rng)
        listed.append({"instruction": told, "observation": seen, "call": teacher(told, seen)})
    return listed


def write(path: Path, given: list[Any]) -> Path:
    """Write values as JSONL, and return the path."""
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in given), "utf-8")
    return path
