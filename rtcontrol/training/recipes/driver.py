"""The driver recipe: imitation of the scripted expert on disturbed drives, then DAgger on the model's own drives."""

from __future__ import annotations

from functools import partial

from rtcontrol.agents.road.goals import recognise
from rtcontrol.agents.road.phrasings import PHRASINGS
from rtcontrol.agents.road.tools import LIGHTS, WORDS, agent
from rtcontrol.agents.spoken import NUMBER_WORDS, shown
from rtcontrol.envs.road.curriculum import RoadOptions, demonstrations
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol.training.imitation import Recipe
from rtcontrol.training.out_of_scope import Nonsense
from rtcontrol.training.word_vectors import MARKS, SCHEMA_PHRASES, common_words

RECIPE = Recipe(
    agent,
    texts=(
        " ".join(sorted(PHRASINGS.vocabulary())),
        " ".join((*WORDS, *LIGHTS)),
        common_words(),
        MARKS,
        "don't",
        NUMBER_WORDS,
    ),
    said=shown("road"),
    nonsense=Nonsense("road", recognise),
    demonstrations=partial(demonstrations, options=RoadOptions(spoken=0.5)),
    prepared=True,
    config=TrainConfig(samples=700_000, learning_rate=7e-4, bf16=True),
    shape=ModelShape(hidden=128, heads=2, intermediate=512),
    chunk=8_192,
    dagger_every=2,
    phrases=SCHEMA_PHRASES,
    # First the driving, then the sentences: both at once stay on a plateau.
    early=partial(demonstrations, options=RoadOptions(plain=1.0)),
)
