"""The lander as a skill to train and to evaluate."""

from __future__ import annotations

import random

from rtcontrol.agents.lander.goals import recognise
from rtcontrol.agents.lander.tools import observe, read_back
from rtcontrol.envs.lander.expert import MAIN_LEVELS, SIDE_LEVELS, expert
from rtcontrol.envs.lander.world import Lander
from rtcontrol.envs.skill import Skill
from rtcontrol.models.call import Call


def random_call(rng: random.Random) -> Call:
    """Any main and side level."""
    return Call("engines", {"main": rng.choice(MAIN_LEVELS), "side": rng.choice(SIDE_LEVELS)})


SKILL = Skill(
    "lander", Lander, observe, read_back, recognise, expert, Call("engines", {"main": 0, "side": 0}), random_call
)
