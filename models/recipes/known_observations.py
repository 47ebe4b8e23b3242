"""Describe the observations of a bundled model's training in its `rtcontrol.json`, to recognise unfamiliar ones later.

The observations are generated again as in the training (models/recipes/bundled_world.py, village.py): the expert, then
the model play disturbed episodes; villagers get random situations. The weights do not change.

  python models/recipes/known_observations.py lander               five minutes on one core
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import village
from bundled_world import EPISODES, EXPERT_SHARE, RECIPES, WorldRecipe
from shared import base_parser, run_script

from rtcontrol.envs.skill import Policy
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.train.observations import ObservationCounts
from rtcontrol.models.train.policy import TreePolicy
from rtcontrol.models.train.scratch import learner_from_base

VILLAGE = "village"  # its recipe is `village.situations`
FIRST_SEED = 900_000_000  # training uses smaller seeds
CHUNK = 4_096  # rows per seed


def observations(name: str, rows: int) -> Iterator[str]:
    """Yield the observations of new rows, made as in the training of a model."""
    if name == VILLAGE:
        yield from (village.situations(random.Random(f"{FIRST_SEED}/{n}"))[1] for n in range(rows))
        return
    recipe = RECIPES[name]
    learner = learner_from_base(name, recipe.agent.tools.schemas, allow_null=False)
    yield from played(recipe, rows, FIRST_SEED, None)
    yield from played(recipe, rows // 4, 2 * FIRST_SEED, TreePolicy(learner.model, learner.encoder))


def played(recipe: WorldRecipe, rows: int, seed: int, policy: Policy | None) -> Iterator[str]:
    """Yield the observations of new rows, in episodes that `policy` plays (None: the expert)."""
    play, share = recipe.plan.demonstrations, 0.0 if policy is None else EXPERT_SHARE
    for first in range(0, rows, CHUNK):
        steps = itertools.islice(play(seed + first, EPISODES, policy=policy, beta=share), CHUNK)
        yield from (step.observation for step in steps)


def write_observations(args: argparse.Namespace) -> str:
    """Write the metadata of the model that the command line names, and return a message."""
    folder = ZOO / args.model
    metadata = TrainingMetadata.load(folder)
    if metadata is None:
        raise SystemExit(f"{folder} has no training metadata.")
    counts = ObservationCounts()
    for observation in observations(args.model, args.rows):
        counts.add(observation)
    replace(metadata, observed=counts.known().to_dict()).write(folder)
    return f"{counts.rows:,} observations: {folder}"


if __name__ == "__main__":
    parser = base_parser(__doc__, "runs")
    parser.add_argument("model", choices=[*RECIPES, VILLAGE], help="which model")
    parser.add_argument("--rows", type=int, default=200_000, help="rows by the expert; the model plays a quarter more")
    run_script(parser, write_observations)
