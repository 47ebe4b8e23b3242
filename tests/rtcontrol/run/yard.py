"""Worlds for tests: one with goals and an expert, and one that logs each method call with its thread."""

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
    """Write a file with these changes to `folder`, and return its path."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return str(folder / name)


def world_file(folder: Path, *changes: tuple[str, str], name: str = "yard.py") -> str:
    return written(folder, name, WORLD, *changes)


def agent_file(folder: Path, *changes: tuple[str, str], name: str = "yard_agent.py") -> str:
    return written(folder, name, AGENT, *changes)


PLANT = """
import os, threading

def say(what):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "log"), "a") as file:
        file.write(f"{what} {threading.get_ident()}\\n")

class Plant:
    step_s = 0.05
    def __init__(self):
        self.action, self.n = "stop", 0
        say("made")
        self.may("make")
    def may(self, what):
        if what == FAILS:
            raise TimeoutError(f"no answer to {what}")
    def act(self, action):
        say(f"act-{action}")
        self.action = action
    def reset(self, seed):
        say("reset")
        self.may("reset")
        self.n = 0
    def step(self):
        self.n += 1
        if self.n > 3:
            self.may("step")
        say(f"step-{self.action}")
    def observe(self):
        return {"n": self.n}
    def outcome(self):
        return True if self.n >= LAST else None
    def instruct(self, text):
        pass
    def close(self):
        say("closed")
        self.may("close")
"""
PLANT_AGENT = """
from rtcontrol import Call

tools = [{"name": "act", "description": "Drive.", "parameters": {"type": "object", "required": ["action"],
          "properties": {"action": {"enum": ["stop", "forward"]}}}}]
goals = {"go": ["onward"]}
fallback = Call("act", {"action": "stop"})
instruction = "go"

def expert(data, goal):
    return Call("act", {"action": "forward"})
"""


def plant(folder: Path, fails: str = "", last: int = 10**9, agent: str = "") -> tuple[str, ...]:
    """Return options of `run` for a new world whose expert drives forward. `fails` names the method that raises:
    `make`, `reset`, `step` (from the fourth step on) or `close`. An episode has `last` steps."""
    world = folder / f"plant_{fails or 'sound'}_{folder.name}.py".replace("-", "_")
    world.write_text(PLANT.replace("FAILS", repr(fails)).replace("LAST", str(last)))
    (folder / "drive.py").write_text(PLANT_AGENT + agent)
    return "--env", str(world), "--agent", str(folder / "drive.py"), *OPTIONS


OPTIONS = ("--model", "expert", "--host", "inprocess", "--no-live")


def told(folder: Path) -> list[str]:
    """Return the logged method calls of the plant in order, and assert one thread and no call after `close`."""
    log = folder / "log"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    assert len({thread for _, thread in lines}) <= 1, lines
    did = [what for what, _ in lines]
    assert did.count("made") == did.count("closed") <= 1, did
    assert "closed" not in did[:-1], did
    return did
