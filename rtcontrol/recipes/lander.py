"""The lander recipe: imitation of the scripted expert on disturbed flights, then DAgger on the model's own flights.

Its model is scored by each side of the pad, hovers at eight places, and by phrasings of each.
"""

from __future__ import annotations

from rtcontrol.agents.lander.goals import LanderGoal
from rtcontrol.agents.lander.phrasings import HOVER_PLACES, KINDS, seen_words, unseen_words, vocabulary
from rtcontrol.agents.lander.tools import agent
from rtcontrol.envs.lander.curriculum import demonstrations
from rtcontrol.envs.lander.skill import SKILL
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol.recipes.imitation import Recipe
from rtcontrol.recipes.score import Trial

RECIPE = Recipe(
    agent,
    texts=(" ".join(sorted(vocabulary())), "x y vx vy angle spin legs"),
    demonstrations=demonstrations,
    config=TrainConfig(samples=480_000),
)

LEFT, RIGHT, HOVER = LanderGoal("left"), LanderGoal("right"), LanderGoal("hover", 0.0, 0.7)
PLACES = tuple(LanderGoal("hover", x / 100, y / 100) for x, y in HOVER_PLACES if (x, y) != (0, 70))
TRIAL = Trial(
    SKILL,
    goals=(LanderGoal("land"), LEFT, RIGHT, HOVER),
    opposite={LEFT: RIGHT, RIGHT: LEFT},
    mixed={"hover elsewhere": PLACES},
    kinds=KINDS,
    seen_words=seen_words,
    unseen_words=unseen_words,
)
