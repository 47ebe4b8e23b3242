"""The lander agent: a tool that sets both engines, and the observation text with integers in hundredths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rtcontrol.agents.agent import Agent, Fallback
from rtcontrol.agents.tool import OneOf, Tools, tool
from rtcontrol.models.call import Call

CLAMP = 200
STATE = ("x", "y", "vx", "vy", "angle", "spin")


@tool
def engines(
    main: Annotated[int, OneOf(0, 50, 60, 70, 80, 90, 100)],
    side: Annotated[int, OneOf(-100, -50, 0, 50, 100)],
) -> None:
    """Set the main engine and the side engines, in percent of thrust; positive side pushes and tips to the right."""


def observe(data: Mapping[str, Any]) -> str:
    """Return the observation text, such as `x -12 y 70 vx 3 vy -20 angle 4 spin -2 legs 0 0`.

    Values are in hundredths, rounded and clamped to [-200, 200]. `legs` has 1 for each leg on the ground (left, right).
    """
    text = " ".join(f"{name} {_hundredths(data[name])}" for name in STATE)
    return f"{text} legs {int(data['left_leg'])} {int(data['right_leg'])}"


def parse_observation(text: str) -> dict[str, float]:
    """Parse an observation text to the state, whose values are rounded and clamped as in the text."""
    words = text.split()
    state = {name: int(words[2 * i + 1]) / 100 for i, name in enumerate(STATE)}
    return {**state, "left_leg": float(words[-2]), "right_leg": float(words[-1])}


def _hundredths(value: float) -> int:
    return max(-CLAMP, min(CLAMP, round(value * 100)))


agent = Agent(
    name="lander",
    description="Flies LunarLander: lands on the pad or a side of it, hovers at a place, as told in plain words.",
    tools=Tools([engines]),
    observe=observe,
    instruction="land on the pad",
    fallback=Fallback(Call("engines", {"main": 0, "side": 0}), hold_ms=500.0),
    model="lander",
    history=0,
)
