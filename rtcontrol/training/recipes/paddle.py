"""The paddle recipe: imitation of the scripted expert on disturbed games, then DAgger on the model's own games."""

from __future__ import annotations

from functools import partial

from rtcontrol.agents.paddle.goals import recognise
from rtcontrol.agents.paddle.phrasings import PHRASINGS
from rtcontrol.agents.paddle.tools import WORDS, agent
from rtcontrol.agents.spoken import shown
from rtcontrol.envs.paddle.curriculum import PaddleOptions, demonstrations
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol.training.imitation import Recipe
from rtcontrol.training.out_of_scope import Nonsense
from rtcontrol.training.word_vectors import MARKS, common_words

RECIPE = Recipe(
    agent,
    texts=(" ".join(sorted(PHRASINGS.vocabulary())), " ".join(WORDS), common_words(), MARKS, "don't"),
    said=shown("paddle"),
    nonsense=Nonsense("paddle", recognise),
    prepared=True,
    demonstrations=partial(demonstrations, options=PaddleOptions(spoken=0.6)),
    config=TrainConfig(samples=340_000),
    shape=ModelShape(hidden=192, heads=6, intermediate=384),
    chunk=8_192,
    # Seven ways to act and thousands of sentences at once stay on a plateau: first the acting, then the sentences.
    early=partial(demonstrations, options=PaddleOptions(plain=1.0)),
)
