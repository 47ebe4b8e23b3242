"""What a browser game sends with a request, and what there is to know of a game."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.call import Call

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request: the user message, the lines of `environment`, the last six of the game's `history`."""

    instruction: str
    environment: tuple[str, ...]
    history: tuple[str, ...] = ()

    @property
    def observation(self) -> str:
        """The lines as the gateway shows them to a model."""
        return ", ".join(self.environment)


@dataclass(frozen=True)
class BrowserGame:
    """`page` is its file below the games' folder; `draw` a request of a state drawn anywhere in the game's range, half
    of them near where the call changes; `rule` the call for an observation, from nothing but its text."""

    name: str
    page: str
    tools: tuple[Tool, ...]
    draw: Callable[[random.Random], PageRequest]
    rule: Callable[[str], Call]


def direction_tool(name: str, description: str, directions: Sequence[str], told: str | None = None) -> Tool:
    """A tool with the one parameter `direction`."""
    return enum_tool(name, description, "direction", directions, told)


def enum_tool(name: str, description: str, parameter: str, values: Sequence[str], told: str | None = None) -> Tool:
    """A tool with one parameter that takes one of `values`; `told` is its description, where it has one."""
    domain = {"type": "string", "enum": list(values), **({} if told is None else {"description": told})}
    parameters = {"type": "object", "properties": {parameter: domain}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def numbers(observation: str) -> dict[str, list[float]]:
    """The numbers behind each `key=` of an observation."""
    found = re.findall(r"(\w+)=(-?\d+(?:\.\d+)?(?:,-?\d+(?:\.\d+)?)*)", observation)
    return {key: [float(x) for x in values.split(",")] for key, values in found}


def whole(x: float) -> int:
    """As JavaScript's Math.round: a half goes up."""
    return math.floor(x + 0.5)
