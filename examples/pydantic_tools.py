"""Use pydantic models as tools: each call of the fitted model is an instance of one of them, with valid values.

python examples/pydantic_tools.py
"""

import random
import sys
import tempfile
from typing import Literal

from pydantic import BaseModel, Field

import rtcontrol
from rtcontrol.agents import Tools


class Grip(BaseModel):
    """Close the gripper."""

    force: int = Field(ge=0, le=10, description="In newtons.")


class Move(BaseModel):
    """Move the arm one step."""

    side: Literal["left", "right"]


class Wait(BaseModel):
    """Do nothing for now."""


def situations(rng: random.Random) -> tuple[str, str]:
    return rng.choice(["take the cup", "rest"]), f"cup {rng.randint(-20, 20)} grams {rng.choice((100, 200, 400))}"


def teacher(instruction: str, seen: str) -> dict:
    _, offset, _, grams = seen.split()
    if instruction == "rest":
        return {"name": "Wait", "arguments": {}}
    if int(offset):
        return {"name": "Move", "arguments": {"side": "left" if int(offset) < 0 else "right"}}
    return {"name": "Grip", "arguments": {"force": int(grams) // 50}}


def main(minutes: float = 1.0) -> None:
    kinds = {kind.__name__: kind for kind in (Grip, Move, Wait)}
    with tempfile.TemporaryDirectory() as folder:
        learnt = {"teacher": teacher, "situations": situations, "tools": Tools([*kinds.values()])}
        session = rtcontrol.fit(**learnt, out=folder, minutes=minutes).session()
        for seen in ("cup -3 grams 200", "cup 0 grams 200", "cup 12 grams 400"):
            call = session.decide(seen, "take the cup").call
            print(seen, "->", repr(kinds[call.name](**call.arguments)))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
