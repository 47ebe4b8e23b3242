"""Tools of any trade, drawn from everyday words: what stands beside a skill's own tools where nobody asks for it."""

from __future__ import annotations

import re
from collections.abc import Container
from functools import cache
from random import Random
from typing import Any

from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.training.word_vectors import ENGLISH_WORDS, word_vectors

EVERYDAY = 3000  # of the most frequent words
MOST_PARAMETERS = 3
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
KINDS = ("string", "string", "string", "boolean", "boolean", "integer", "number", "words", "words", "numbers")


@cache
def _words() -> list[str]:
    frequent = [word for word in list(word_vectors()[0])[:EVERYDAY] if word.isalpha() and len(word) > 1]
    return sorted({*frequent, *(word for word in ENGLISH_WORDS.split() if len(word) > 1)})


def parts_of(name: str) -> set[str]:
    """The words of a name, in small letters."""
    return {part.lower() for part in _PART.findall(name)}


def _name(rng: Random, most: int) -> str:
    parts = rng.choices(_words(), k=rng.randint(1, most))
    return parts[0] + "".join(part.capitalize() for part in parts[1:]) if rng.random() < 0.15 else "_".join(parts)


def _sentence(rng: Random) -> str:
    if rng.random() < 0.3:
        return ""
    return " ".join(rng.choices(_words(), k=rng.randint(2, 7))).capitalize() + "."


def _value(rng: Random) -> dict[str, Any]:
    kind = rng.choice(KINDS)
    if kind == "words":
        return {"enum": rng.sample(_words(), rng.randint(2, 4)), "type": "string"}
    if kind == "numbers":
        return {"enum": sorted(rng.sample(range(0, 101, 5), rng.randint(2, 5))), "type": "integer"}
    found: dict[str, Any] = {"type": kind}
    if kind in ("integer", "number") and rng.random() < 0.5:
        low = rng.choice((0, 1, -10))
        found |= {"minimum": low, "maximum": low + rng.choice((5, 10, 100))}
    return found


def a_stranger(rng: Random, taken: Container[str]) -> ToolSchema:
    """A tool of up to three parameters of any kind, free texts too; none of its names' words is `taken`."""
    while True:
        name = _name(rng, 3)
        properties = {_name(rng, 2): _value(rng) for _ in range(rng.randint(0, MOST_PARAMETERS))}
        if not any(part in taken for one in (name, *properties) for part in parts_of(one)):
            break
    for schema in properties.values():
        if rng.random() < 0.2:
            schema["description"] = _sentence(rng)
    shape = {"type": "object", "properties": properties, "required": [*properties]}
    return ToolSchema.from_openai({"name": name, "description": _sentence(rng), "parameters": shape})
