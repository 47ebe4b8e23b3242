"""An agent that can only say one thing, so that a model of chance drives at 50 km/h: for faults and soaks."""

from __future__ import annotations

from typing import Annotated

from rtcontrol.agents.agent import Agent, Fallback
from rtcontrol.agents.road.tools import observe
from rtcontrol.agents.tool import OneOf, Tools, tool


@tool
def set_speed(kmh: Annotated[int, OneOf(50)]) -> None:
    """Drive at this speed."""


agent = Agent(
    name="cruiser",
    description="Drives at 50 km/h.",
    tools=Tools([set_speed]),
    observe=observe,
    instruction="drive at 50",
    # Without a safe call of its own the bridge stops the car in its own way, which is the driver's stop().
    fallback=Fallback(None),
    model="random",
    history=0,
)
