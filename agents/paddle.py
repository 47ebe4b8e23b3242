"""The agent that plays the right paddle: one velocity in coarse steps, the state as integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rtcontrol.agents.agent import Agent, Fallback
from rtcontrol.agents.domains import OneOf
from rtcontrol.agents.tool import Tools, tool
from rtcontrol.models.call import Call

CLAMP = 200
KEYS = ("ball_x", "ball_y", "ball_vx", "ball_vy", "own_y", "other_y")
WORDS = ("x", "y", "vx", "vy", "own", "other")
# Half units for places, whole units a second for the ball's speed: each number is one token of the bundled model.
SCALES = (2, 2, 1, 1, 2, 2)


@tool
def move(velocity: Annotated[int, OneOf(-3, -2, -1, 0, 1, 2, 3)]) -> None:
    """Move your paddle until the next call; one step is 20 units a second, positive is down, 0 stands still."""


def observe(data: Mapping[str, Any]) -> str:
    """Places in half units, speeds in units a second, rounded and clamped to [-200, 200]:
    `x 100 y 60 vx 45 vy -12 own 60 other 58`."""
    values = (max(-CLAMP, min(CLAMP, round(data[key] * scale))) for key, scale in zip(KEYS, SCALES, strict=True))
    return " ".join(f"{word} {value}" for word, value in zip(WORDS, values, strict=True))


def read_back(text: str) -> dict[str, float]:
    """The state that an observation text shows, rounded and clamped as it is: all that its reader can know."""
    words = text.split()
    return {key: int(words[2 * i + 1]) / scale for i, (key, scale) in enumerate(zip(KEYS, SCALES, strict=True))}


agent = Agent(
    name="paddle",
    description="Plays the right paddle of a paddle game: returns, misses, aims, stays or mirrors as told in words.",
    tools=Tools([move]),
    observe=observe,
    instruction="return every ball",
    fallback=Fallback(Call("move", {"velocity": 0}), hold_ms=500.0),
    model="paddle",
    history=0,
)
