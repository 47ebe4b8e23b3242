"""The lander recipe: imitation of the scripted expert on disturbed flights, then DAgger on the model's own flights."""

from __future__ import annotations

from functools import partial

from rtcontrol.agents.lander.goals import recognise
from rtcontrol.agents.lander.phrasings import PHRASINGS
from rtcontrol.agents.lander.tools import agent
from rtcontrol.agents.spoken import NUMBER_WORDS, shown
from rtcontrol.envs.lander.curriculum import LanderOptions, demonstrations
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol.training.imitation import Recipe
from rtcontrol.training.out_of_scope import Nonsense

RECIPE = Recipe(
    agent,
    texts=(" ".join(sorted(PHRASINGS.vocabulary())), "x y vx vy angle spin legs", NUMBER_WORDS),
    said=shown("lander"),
    nonsense=Nonsense("lander", recognise),
    demonstrations=partial(demonstrations, options=LanderOptions(spoken=0.5)),
    prepared=True,
    config=TrainConfig(samples=480_000),
    shape=ModelShape(hidden=192, heads=6, intermediate=384),
)
