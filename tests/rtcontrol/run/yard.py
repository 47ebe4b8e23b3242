"""A world and an agent as a user writes them: a robot in a yard that drives to named things."""

from __future__ import annotations

from pathlib import Path

WORLD = """
import random

class Yard:
    def __init__(self):
        self.step_s = 0.05

    def judge_by(self, goal):
        self.wanted = goal["thing"]

    def reset(self, seed):
        rng = random.Random(seed)
        self.things = {name: [rng.randint(-9, 9), rng.randint(-9, 9)] for name in ("red box", "blue box", "barrel")}
        self.at, self.way, self.ticks = [0, 0], (0, 0), 0

    def drive(self, way):
        self.way = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0), "stop": (0, 0)}[way]

    def step(self):
        self.ticks += 1
        if self.ticks % 4 == 0:
            self.at = [self.at[0] + self.way[0], self.at[1] + self.way[1]]

    def observe(self):
        return {name: [x - self.at[0], y - self.at[1]] for name, (x, y) in self.things.items()}

    def outcome(self):
        if self.at == self.things[self.wanted]:
            return True
        return False if self.ticks > 400 else None
"""

AGENT = '''
"""Drives to named things."""
from rtcontrol import Call

THINGS = ["red box", "blue box", "barrel"]
tools = [{"name": "drive", "parameters": {"type": "object", "properties": {
    "way": {"enum": ["north", "south", "east", "west", "stop"]}}, "required": ["way"]}}]
fallback = Call("drive", {"way": "stop"})
goals = {"go to the {thing}": ["drive to the {thing}", "find the {thing}", "visit {thing}", "{thing}", "at {thing}"]}
placeholders = {"thing": THINGS}

def observe(data):
    return " ".join(f"{name} {data[name][0]} {data[name][1]}" for name in THINGS)

def expert(data, goal):
    x, y = data[goal["thing"]]
    if abs(x) > abs(y):
        return Call("drive", {"way": "east" if x > 0 else "west"})
    return Call("drive", {"way": "north" if y > 0 else "south" if y < 0 else "stop"})
'''


def written(folder: Path, name: str, text: str, *changes: tuple[str, str]) -> str:
    """The file with these changes; nothing of it is shared with another test's."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return str(folder / name)


def world_file(folder: Path, *changes: tuple[str, str], name: str = "yard.py") -> str:
    return written(folder, name, WORLD, *changes)


def agent_file(folder: Path, *changes: tuple[str, str], name: str = "yard_agent.py") -> str:
    return written(folder, name, AGENT, *changes)
