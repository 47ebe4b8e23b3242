"""The paddle agent: a tool that sets the paddle's velocity, and the observation text with integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rtcontrol.agents.agent import Agent, Fallback
from rtcontrol.agents.tool import OneOf, Tools, tool
from rtcontrol.models.call import Call

CLAMP = 200
WORDS = ("x", "y", "vx", "vy", "own", "ball", "other")


@tool
def move(velocity: Annotated[int, OneOf(-3, -2, -1, 0, 1, 2, 3)]) -> None:
    """Move your paddle until the next call; one step is 20 units a second, positive is down, 0 stands still."""


def observe(data: Mapping[str, Any]) -> str:
    """Return the observation text, such as `x 100 y 60 vx 45 vy -12 own 50 ball 10 other -4`.

    It has the ball's position and velocity, our paddle's y (`own`), and the y of the ball and of the other paddle
    relative to `own`. Positions are in half units and velocities in units per second, rounded and clamped to
    [-200, 200], so that each number is one token of the bundled model.
    """
    x, y, own, other = (_integer(2 * data[key]) for key in ("ball_x", "ball_y", "own_y", "other_y"))
    values = (x, y, _integer(data["ball_vx"]), _integer(data["ball_vy"]), own, y - own, other - own)
    return " ".join(f"{word} {max(-CLAMP, min(CLAMP, value))}" for word, value in zip(WORDS, values, strict=True))


def parse_observation(text: str) -> dict[str, float]:
    """Parse an observation text to the state, whose values are rounded and clamped as in the text."""
    words = text.split()
    x, y, vx, vy, own, _, other = (int(word) for word in words[1::2])
    return {
        "ball_x": x / 2,
        "ball_y": y / 2,
        "ball_vx": float(vx),
        "ball_vy": float(vy),
        "own_y": own / 2,
        "other_y": (own + other) / 2,
    }


def _integer(value: float) -> int:
    return max(-CLAMP, min(CLAMP, round(value)))


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
