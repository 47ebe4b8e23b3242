"""The driver recipe: imitation of the scripted expert on disturbed drives, then DAgger on the model's own drives.

Its model is scored by its seven goals with several values, some told as their opposite, and by phrasings of each.
"""

from __future__ import annotations

from functools import partial

from rtcontrol.agents.road.goals import KINDS, RoadGoal
from rtcontrol.agents.road.phrasings import seen_words, unseen_words, vocabulary
from rtcontrol.agents.road.tools import LIGHTS, WORDS, agent
from rtcontrol.envs.road.curriculum import RoadOptions, demonstrations
from rtcontrol.envs.road.skill import SKILL
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol.recipes.imitation import Recipe
from rtcontrol.recipes.score import Trial
from rtcontrol.recipes.words import MARKS, SCHEMA_PHRASES, common_words

RECIPE = Recipe(
    agent,
    texts=(" ".join(sorted(vocabulary())), " ".join((*WORDS, *LIGHTS)), common_words(), MARKS, "don't"),
    demonstrations=demonstrations,
    config=TrainConfig(samples=471_000, bf16=True),
    shape=ModelShape(hidden=128, heads=4, intermediate=512),
    chunk=8_192,
    dagger_every=2,
    phrases=SCHEMA_PHRASES,
    # First the driving, then the sentences: both at once stay on a plateau.
    early=partial(demonstrations, options=RoadOptions(plain=1.0)),
)

_LEFT, _RIGHT = RoadGoal("lane", "left"), RoadGoal("lane", "right")
_TURN_LEFT, _TURN_RIGHT = RoadGoal("turn", "left"), RoadGoal("turn", "right")
TRIAL = Trial(
    SKILL,
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
    seen_words=seen_words,
    unseen_words=unseen_words,
)
