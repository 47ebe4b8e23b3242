"""The lander recipe: imitation of the scripted expert on disturbed flights, then DAgger on the model's own flights."""

from __future__ import annotations

from rtcontrol.agents.lander import agent
from rtcontrol.agents.lander_phrasings import vocabulary
from rtcontrol.envs.rollout import demonstrations
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol.recipes.imitation import Recipe

RECIPE = Recipe(
    agent,
    texts=(" ".join(sorted(vocabulary())), "x y vx vy angle spin legs"),
    demonstrations=demonstrations,
    config=TrainConfig(samples=480_000),
)
