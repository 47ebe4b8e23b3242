"""The lander recipe: imitation of the scripted expert on disturbed flights, then DAgger on the model's own flights."""

from __future__ import annotations

from rtcontrol.agents.lander.phrasings import vocabulary
from rtcontrol.agents.lander.tools import agent
from rtcontrol.envs.lander.curriculum import demonstrations
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol.recipes.imitation import Recipe

RECIPE = Recipe(
    agent,
    texts=(" ".join(sorted(vocabulary())), "x y vx vy angle spin legs"),
    demonstrations=demonstrations,
    config=TrainConfig(samples=480_000),
)
