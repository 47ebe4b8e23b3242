"""Tools and prompts drawn by a seed: what the engine's calls are checked on beyond the agents' own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WORDS = (
    "the", "a", "of", "and", "to", "with", "near", "far", "left", "right", "up", "down", "red", "green", "blue",
    "north", "south", "east", "west", "fast", "slow", "open", "close", "stop", "go", "turn", "lift", "drop", "grip",
    "arm", "wheel", "door", "light", "camera", "drone", "boat", "robot", "target", "wall", "ramp", "battery",
    "speed", "height", "angle", "level", "please", "now", "then", "after", "before", "until", "never", "always",
    "two", "three", "seven", "ten", "metres", "degrees", "percent", "seconds",
)  # fmt: skip
VERBS = (
    "move", "turn", "set", "open", "close", "lift", "drop", "follow", "track", "stop", "start", "aim", "hold",
    "scan", "dock",
)  # fmt: skip
NOUNS = (
    "arm", "gripper", "door", "light", "drone", "boat", "wheel", "camera", "valve", "fan", "heater", "sail", "pump",
    "lock", "siren",
)  # fmt: skip
NAMES = (
    "speed", "angle", "side", "level", "mode", "target", "colour", "height", "room", "count", "power", "channel",
)  # fmt: skip
TEXTS = (*WORDS, "left side", "red and blue", "as fast as you can", "north-west", "Zürich", "25 %", "on/off", "A-17")
DECIDED = 20  # prompts of one set of tools
LONG_PROMPTS = (0.55, 0.85)  # the share that is short, and that is short or middling


@dataclass(frozen=True, slots=True)
class DrawnDecision:
    """One decision to be made."""

    tools: tuple[dict[str, Any], ...]
    instruction: str
    observation: str


def drawn(count: int, seed: int) -> Iterator[DrawnDecision]:
    """`count` decisions; each is what it is by its number and the seed."""
    for i in range(count):
        tools = tuple(_tools(random.Random(f"tools {seed} {i // DECIDED}")))
        draw = random.Random(f"prompt {seed} {i}")
        share = draw.random()
        short, middling = LONG_PROMPTS
        words = draw.randint(4, 40) if share < short else draw.randint(60, 150) if share < middling else 0
        words = words or draw.randint(350, 600)
        observation = [draw.choice(WORDS) if draw.random() < 0.8 else str(draw.randint(-99, 999)) for _ in range(words)]
        yield DrawnDecision(tools, " ".join(draw.choices(WORDS, k=draw.randint(2, 14))), " ".join(observation))


def _tools(draw: random.Random) -> Iterator[dict[str, Any]]:
    names = list(dict.fromkeys(f"{draw.choice(VERBS)}_{draw.choice(NOUNS)}" for _ in range(draw.randint(1, 5))))
    for name in names:
        own = draw.sample(NAMES, draw.randint(0, 3))
        properties = {p: _parameter(draw) for p in own}
        required = [p for p in own if draw.random() < 0.7]
        text = " ".join(draw.choices(WORDS, k=draw.randint(2, 6)))
        parameters = {"type": "object", "properties": properties, "required": required}
        yield {"name": name, "description": text, "parameters": parameters}


def _parameter(draw: random.Random) -> dict[str, Any]:
    """A closed one of any kind: all its values can be told beforehand."""
    kind = draw.choice(("boolean", "texts", "texts", "numbers", "range", "wide range", "decimals"))
    if kind == "boolean":
        return {"type": "boolean"}
    if kind == "texts":
        return {"type": "string", "enum": draw.sample(TEXTS, draw.randint(2, 8))}
    if kind == "numbers":
        return {"type": "integer", "enum": draw.sample(range(-50, 400), draw.randint(2, 8))}
    if kind == "decimals":
        return {"type": "number", "minimum": -1, "maximum": draw.randint(1, 5), "multipleOf": draw.choice((0.1, 0.25))}
    first = draw.randint(-40, 40)
    return {
        "type": "integer",
        "minimum": first,
        "maximum": first + draw.randint(*((1, 60), (300, 900))[kind != "range"]),
    }
