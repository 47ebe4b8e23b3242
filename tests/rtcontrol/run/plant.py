"""Two worlds that say what was done with them, and on which thread: one of Gymnasium's, one of a file with a class."""

from __future__ import annotations

from pathlib import Path

SAYS = """
import os, threading
LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log")

def say(what):
    with open(LOG, "a") as file:
        file.write(f"{what} {threading.get_ident()}\\n")

class Plant:
    def begin(self, fails, last):
        self.fails, self.last, self.n = fails, int(last), 0
        say("made")
        self.may("make")
    def may(self, what):
        if what == self.fails:
            raise TimeoutError(f"no answer to {what}")
    def restart(self):
        say("reset")
        self.may("reset")
        self.n = 0
    def go(self, action):
        self.n += 1
        if self.n > 3:
            self.may("step")
        say(f"step-{action}")
    def close(self):
        say("closed")
        self.may("close")
"""
GYM = """
import gymnasium, numpy
from gymnasium import spaces

class Wheels(Plant, gymnasium.Env):
    metadata = {"render_fps": 20, "render_modes": []}
    observation_space, action_space = spaces.Box(-numpy.inf, numpy.inf, (1,)), spaces.Discrete(2)
    def __init__(self, fails="", last=10**9):
        self.begin(fails, last)
    def seen(self):
        return numpy.array([self.n], numpy.float32)
    def reset(self, *, seed=None, options=None):
        self.restart()
        return self.seen(), {}
    def step(self, action):
        self.go(("stop", "forward")[action])
        return self.seen(), 1.0, self.n >= self.last, False, {}

gymnasium.register("Wheels-v0", entry_point=Wheels)
"""
OWN = """
from rtcontrol import Call

class Wheels(Plant):
    step_s = 0.05
    def __init__(self):
        self.action = "stop"
        self.begin(FAILS, LAST)
    def act(self, action):
        say(f"act-{action}")
        self.action = action
    def reset(self, seed):
        self.restart()
    def step(self):
        self.go(self.action)
    def observe(self):
        return {"n": self.n}
    def outcome(self):
        return True if self.n >= self.last else None
    def instruct(self, text):
        pass
"""
AGENT = """
from rtcontrol import Call
{tools}
goals = {{"go": ["onward"]}}
fallback = Call("act", {{"action": "stop"}})
instruction = "go"

def expert(data, goal):
    return Call("act", {{"action": "forward"}})
"""
TOOLS = """
tools = [{"name": "act", "description": "Drive.", "parameters": {"type": "object", "required": ["action"],
          "properties": {"action": {"enum": ["stop", "forward"]}}}}]
"""


def plant(folder: Path, kind: str, fails: str = "", last: int = 10**9, agent: str = "") -> tuple[str, ...]:
    """The options of `run` for a world of this `kind` (gym, own) in a new folder, driven forward by its expert. It
    fails when it is to `make`, `reset`, `step` (from the fourth on) or `close`; an episode has `last` steps."""
    name = f"plant_{kind}_{fails or 'sound'}_{folder.name}".replace("-", "_")
    text = SAYS + (GYM if kind == "gym" else OWN.replace("FAILS", repr(fails)).replace("LAST", str(last)))
    (folder / f"{name}.py").write_text(text)
    (folder / "drive.py").write_text(AGENT.format(tools=TOOLS if kind == "own" else "") + agent)
    options = f"actions=stop,forward&safe=stop&fails={fails}&last={last}"
    env = f"gym:{name}:Wheels-v0?{options}" if kind == "gym" else str(folder / f"{name}.py")
    return "--env", env, "--agent", str(folder / "drive.py"), "--model", "expert", "--host", "inprocess", "--no-live"


def told(folder: Path) -> list[str]:
    """What was done with it, in order; all on one thread, and nothing once it was closed."""
    log = folder / "log"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    assert len({thread for _, thread in lines}) <= 1, lines
    did = [what for what, _ in lines]
    assert did.count("made") == did.count("closed") <= 1, did
    assert "closed" not in did[:-1], did
    return did
