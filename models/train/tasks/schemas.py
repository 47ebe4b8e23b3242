"""Tools drawn anew: names from synonyms, parameters and words in any order, and tools that are not needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

VERBS = {
    "move": ["go", "move", "drive", "head", "walk", "fly", "travel", "run", "steer"],
    "take": ["take", "grab", "pick", "collect", "fetch", "get", "lift"],
    "attack": ["attack", "hit", "shoot", "strike", "fire"],
    "look": ["look", "inspect", "scan", "watch", "check", "examine"],
    "push": ["push", "press", "shove"],
    "open": ["open", "unlock"],
    "avoid": ["avoid", "dodge", "evade", "flee"],
    "tell": ["report", "tell", "say", "answer", "name"],
}
TEXTS = {
    "move": ("", "Move.", "Go that way."),
    "take": ("", "Take it."),
    "attack": ("", "Attack there."),
    "look": ("", "Look there."),
    "push": ("", "Push it."),
    "open": ("", "Open it."),
    "avoid": ("", "Keep away."),
    "tell": ("", "Tell it."),
}
PARAMETERS = {
    "way": ["direction", "way", "heading", "side", "where", "to"],
    "count": ["count", "number", "amount", "level", "value"],
    "name": ["name", "item", "target", "object", "thing"],
    "answer": ["answer", "result", "verdict"],
}
WAYS = (
    ["north", "south", "east", "west"],
    ["up", "down", "left", "right"],
    ["forward", "back", "left", "right"],
    ["left", "right"],
    ["high", "low", "middle"],
    ["front", "rear", "port", "starboard"],
)
# What is said of things and is no argument.
STATES: tuple[Sequence[str | int], ...] = (
    ("open", "closed"),
    ("full", "empty"),
    ("hot", "cold", "warm"),
    ("on", "off"),
    ("big", "small"),
    range(10, 100),
)
DIGITS = range(10)


def a_tool(rng: Random, verb: str, parameters: Mapping[str, Mapping[str, Any]]) -> tuple[ToolSchema, dict[str, str]]:
    """A tool of one meaning, its parameters (by meaning: their schemas) in any order under one of their names each;
    gives the names that were drawn, too."""
    named = {meaning: rng.choice(PARAMETERS[meaning]) for meaning in rng.sample(list(parameters), len(parameters))}
    kind = next(kind for kind, verbs in VERBS.items() if verb in verbs)
    made = tuple(_parameter(name, json.dumps(parameters[meaning])) for meaning, name in named.items())
    return ToolSchema(verb, rng.choice(TEXTS[kind]), made), named


@lru_cache(4096)
def _parameter(name: str, schema: str) -> Parameter:
    # To check a schema costs more than to train a row of it.
    parameters = {"type": "object", "properties": {name: json.loads(schema)}, "required": [name]}
    return ToolSchema.from_openai({"name": name, "parameters": parameters}).parameters[0]


def words(rng: Random, values: Sequence[str]) -> dict[str, Any]:
    """A parameter that takes one of these words, listed in any order."""
    return {"enum": rng.sample(values, len(values)), "type": "string"}


def digits() -> dict[str, Any]:
    """A parameter that takes a digit."""
    return {"type": "integer", "minimum": DIGITS[0], "maximum": DIGITS[-1]}


def verbs(rng: Random, count: int) -> list[str]:
    """Verbs of `count` different meanings."""
    return [rng.choice(VERBS[meaning]) for meaning in rng.sample(list(VERBS), count)]


def arranged(rng: Random, tools: Sequence[ToolSchema]) -> tuple[ToolSchema, ...]:
    """The tools in any order."""
    return tuple(rng.sample(tools, len(tools)))
