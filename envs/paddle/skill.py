"""The paddle as a skill to train and to evaluate."""

from __future__ import annotations

import random

from rtcontrol.agents.paddle.goals import recognise
from rtcontrol.agents.paddle.tools import observe, read_back
from rtcontrol.envs.paddle.expert import LEVELS, expert
from rtcontrol.envs.paddle.game import PaddleGame
from rtcontrol.envs.skill import Skill
from rtcontrol.models.call import Call


def random_call(rng: random.Random) -> Call:
    """Any velocity."""
    return Call("move", {"velocity": rng.choice(LEVELS)})


SKILL = Skill("paddle", PaddleGame, observe, read_back, recognise, expert, Call("move", {"velocity": 0}), random_call)
