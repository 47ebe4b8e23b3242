"""The lander as a skill to train and to evaluate."""

from __future__ import annotations

import random

from rtcontrol.agents.lander.goals import LanderGoal
from rtcontrol.agents.lander.phrasings import HOVER_PLACES, KINDS, held_out_words, meant, seen_words, unseen_words
from rtcontrol.agents.lander.tools import observe, read_back
from rtcontrol.envs.lander.expert import MAIN_LEVELS, SIDE_LEVELS, expert
from rtcontrol.envs.lander.world import Lander
from rtcontrol.envs.skill import Skill
from rtcontrol.models.call import Call


def random_call(rng: random.Random) -> Call:
    """Any main and side level."""
    return Call("engines", {"main": rng.choice(MAIN_LEVELS), "side": rng.choice(SIDE_LEVELS)})


LEFT, RIGHT, HOVER = LanderGoal("left"), LanderGoal("right"), LanderGoal("hover", 0.0, 0.7)
SKILL = Skill(
    "lander",
    Lander,
    observe,
    read_back,
    meant,
    expert,
    Call("engines", {"main": 0, "side": 0}),
    random_call,
    goals=(LanderGoal("land"), LEFT, RIGHT, HOVER),
    opposite={LEFT: RIGHT, RIGHT: LEFT},
    mixed={
        "hover elsewhere": tuple(LanderGoal("hover", x / 100, y / 100) for x, y in HOVER_PLACES if (x, y) != (0, 70))
    },
    kinds=KINDS,
    phrasings={"seen": seen_words, "unseen": unseen_words, "held-out": held_out_words},
)
