"""A game of the Neuro API is played by a model that a few rules have taught.

python examples/neuro_game.py runs/coins
rtcontrol serve --neuro 127.0.0.1:8000 --model runs/coins

Then open http://127.0.0.1:8000/ : the page is the game, and the server plays it (docs/neuro.md).
"""

import random
import sys

import rtcontrol

STEPS = ("left", "right", "up", "down")
MOVE = {
    "type": "object",
    "properties": {"direction": {"type": "string", "enum": list(STEPS)}},
    "required": ["direction"],
}
ACTIONS = [
    {"name": "move", "description": "Move one cell.", "parameters": MOVE},
    {"name": "wait", "description": "Stay where you are.", "parameters": {"type": "object", "properties": {}}},
]
INSTRUCTION = "Do what the game asks."


def situations(rng: random.Random) -> tuple[str, str]:
    """What the server makes of the game's `state` and `query`."""
    across, along = f"{rng.randint(0, 6)} {rng.choice(STEPS[:2])}", f"{rng.randint(0, 6)} {rng.choice(STEPS[2:])}"
    free = " ".join(step for step in STEPS if rng.random() < 0.85)
    return INSTRUCTION, f"coin {across} {along} free {free}\nCollect the coin."


def teacher(instruction: str, seen: str) -> dict:
    """Towards the coin, the longer way first; around a rock; and nowhere where it is."""
    _, across, side, along, end, _, *free = seen.splitlines()[0].split()
    wished = sorted([(int(across), side), (int(along), end)], reverse=True)
    ways = [way for _, way in wished if way in free]
    return {"name": "move", "arguments": {"direction": ways[0]}} if ways else {"name": "wait", "arguments": {}}


def main(out: str = "runs/coins", minutes: str = "2") -> None:
    rtcontrol.fit(teacher=teacher, situations=situations, tools=ACTIONS, out=out, minutes=float(minutes))
    print(f"Now: rtcontrol serve --neuro 127.0.0.1:8000 --model {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
