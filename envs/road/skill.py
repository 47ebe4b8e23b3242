"""The driver as a skill to train and to evaluate."""

from __future__ import annotations

import random

from rtcontrol.agents.road.goals import KINDS, RoadGoal
from rtcontrol.agents.road.phrasings import held_out_words, meant, seen_words, unseen_words
from rtcontrol.agents.road.tools import agent, observe, read_back
from rtcontrol.envs.road.expert import expert
from rtcontrol.envs.road.game import RoadGame
from rtcontrol.envs.skill import Skill
from rtcontrol.models.call import Call
from rtcontrol.models.schema.domain import ClosedDomain


def random_call(rng: random.Random) -> Call:
    """Any call; each tool as often as the others."""
    tool = rng.choice(agent.tools.schemas)
    arguments = {}
    for parameter in tool.parameters:
        assert isinstance(parameter.domain, ClosedDomain)
        arguments[parameter.name] = rng.choice(parameter.domain.values)
    return Call(tool.name, arguments)


# What changes nothing: the way through the next junction that is chosen anyway.
STILL = Call("turn", {"at_next_junction": "straight"})
_LEFT, _RIGHT = RoadGoal("lane", "left"), RoadGoal("lane", "right")
_TURN_LEFT, _TURN_RIGHT = RoadGoal("turn", "left"), RoadGoal("turn", "right")
SKILL = Skill(
    "road",
    RoadGame,
    observe,
    read_back,
    meant,
    expert,
    STILL,
    random_call,
    goals=(
        RoadGoal("drive"),
        RoadGoal("speed", 30),
        RoadGoal("speed", 60),
        _LEFT,
        RoadGoal("lane", "middle"),
        _RIGHT,
        RoadGoal("follow", 10),
        RoadGoal("follow", 30),
        _TURN_LEFT,
        _TURN_RIGHT,
        RoadGoal("turn", "straight"),
        RoadGoal("overtake"),
        RoadGoal("stop"),
    ),
    opposite={_LEFT: _RIGHT, _RIGHT: _LEFT, _TURN_LEFT: _TURN_RIGHT, _TURN_RIGHT: _TURN_LEFT},
    kinds=KINDS,
    phrasings={"seen": seen_words, "unseen": unseen_words, "held-out": held_out_words},
)
