"""Use a typed function as a tool: a model learns within a minute when to call the function, and then calls it.

python examples/function_tools.py
"""

import random
import sys
import tempfile
from typing import Annotated

import rtcontrol
from rtcontrol.agents import OneOf, tool


@tool
def heat(power: Annotated[int, OneOf(0, 50, 100)]) -> str:
    """Set the heater's power in percent."""
    return f"the heater is at {power} %"


def situations(rng: random.Random) -> tuple[str, str]:
    return rng.choice(["keep it warm", "keep it cool"]), f"room {rng.randint(10, 30)} outside {rng.randint(-10, 30)}"


def teacher(instruction: str, seen: str) -> dict:
    cold = (21 if instruction == "keep it warm" else 16) - int(seen.split()[1])
    return {"name": "heat", "arguments": {"power": 0 if cold <= 0 else 50 if cold <= 3 else 100}}


def main(minutes: float = 1.0) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = rtcontrol.fit(teacher=teacher, situations=situations, tools=[heat], out=folder, minutes=minutes)
        session = model.session()
        for seen in ("room 12 outside 3", "room 20 outside 9", "room 25 outside 14"):
            decision = session.decide(seen, "keep it warm")
            print(seen, "->", decision.call.text(), "->", session.execute(decision.call))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
