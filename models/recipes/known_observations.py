"""Describe the observations of a bundled model's training in its `rtcontrol.json`, to recognise unfamiliar ones later.

The observations are generated again as in the training (models/recipes/bundled_world.py): the expert and then the model
play disturbed episodes. The weights do not change.

  python models/recipes/known_observations.py lander               five minutes on one core
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace

from bundled_world import EPISODES, EXPERT_SHARE, RECIPES, WorldRecipe
from shared import base_parser, run_script

from rtcontrol.envs.skill import Policy
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.train.observations import ObservationCounts
from rtcontrol.models.train.policy import TreePolicy
from rtcontrol.models.train.scratch import learner_from_base

FIRST_SEED = 900_000_000  # training uses smaller seeds
CHUNK = 4_096  # rows per seed


def add_observations(
    counts: ObservationCounts, recipe: WorldRecipe, rows: int, seed: int, policy: Policy | None
) -> None:
    """Add the observations of `rows` rows to `counts`, from episodes that `policy` plays (None: the expert)."""
    play, share = recipe.plan.demonstrations, 0.0 if policy is None else EXPERT_SHARE
    for first in range(0, rows, CHUNK):
        for step in itertools.islice(play(seed + first, EPISODES, policy=policy, beta=share), CHUNK):
            counts.add(step.observation)


def write_observations(args: argparse.Namespace) -> str:
    """Write the metadata of the model that the command line names, and return a message."""
    recipe, folder = RECIPES[args.model], ZOO / args.model
    metadata = TrainingMetadata.load(folder)
    if metadata is None:
        raise SystemExit(f"{folder} has no training metadata.")
    learner = learner_from_base(args.model, recipe.agent.tools.schemas, allow_null=False)
    counts = ObservationCounts()
    add_observations(counts, recipe, args.rows, FIRST_SEED, None)
    add_observations(counts, recipe, args.rows // 4, 2 * FIRST_SEED, TreePolicy(learner.model, learner.encoder))
    replace(metadata, observed=counts.known().to_dict()).write(folder)
    return f"{counts.rows:,} observations: {folder}"


if __name__ == "__main__":
    parser = base_parser(__doc__, "runs")
    parser.add_argument("model", choices=[*RECIPES], help="which model")
    parser.add_argument("--rows", type=int, default=200_000, help="rows by the expert; the model plays a quarter more")
    run_script(parser, write_observations)
