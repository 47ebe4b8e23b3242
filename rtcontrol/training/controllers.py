"""The bundled skills learn by recipes of their own, which are run here."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rtcontrol.envs import registry
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import owned
from rtcontrol.models.train.trainer import Progress, TrainConfig, process_rank
from rtcontrol.training import simpletool_recipe
from rtcontrol.training.imitation import Recipe, recipe_for

ENVS = {agent: world.name for agent, world in registry.by_agent().items()}
# What is learnt, and how it is tried.
SKILLS = {name: f"Fly it: rtcontrol run --env {env} --model {{}}" for name, env in ENVS.items()} | {
    "simpletool": "Play: rtcontrol serve --model {} --http 127.0.0.1:8899 --static DEMOS (docs/simpletool-games.md)"
}


def recipe_of(skill: str) -> Recipe | simpletool_recipe.GamesRecipe:
    """A bundled skill's recipe. Raises UserError for a skill that is none."""
    if skill not in SKILLS:
        raise UserError(f"There is no bundled skill {skill!r}.", f"Choose one of: {', '.join(SKILLS)}.")
    return recipe_for(registry.by_agent()[skill]) if skill in ENVS else simpletool_recipe.RECIPE


# A base that knows a language learns a world from a part of the rows that a new model needs, in smaller and more steps.
SAMPLES, RATE, WARMUP, GROUP = 120_000, 2e-4, 0.01, 16
WAYS = 12  # drawn sets of tools a chunk
DISTIL = 0.5  # of the loss, by a teacher's scores
CHUNK = 2_048  # rows between which a run is kept: of a large model they take minutes


@dataclass(frozen=True)
class Onward:
    """A skill learnt by the checkpoint `base` in place of a new model. With `any_tools` it learns to read its tools,
    whatever they are called and stand beside; a larger checkpoint of the same tokens may be its `teacher`."""

    base: str
    any_tools: bool = False
    teacher: str | None = None

    def check(self) -> None:
        """Raises UserError for a teacher of other tokens."""
        digests = [Checkpoint.open(model).tokenizer.digest() for model in (self.base, self.teacher or self.base)]
        if digests[0] != digests[1]:
            raise UserError(f"{self.teacher} has other tokens than its student.", "Adopt both from one base.")

    def config(self, own: TrainConfig) -> TrainConfig:
        """The skill's configuration for it."""
        found = replace(own, samples=SAMPLES, learning_rate=RATE, warmup=WARMUP, group=GROUP, bf16=True)
        found = replace(found, distil=0.0 if self.teacher is None else DISTIL)
        return replace(found, group=48, run=8) if self.any_tools else found  # rows of one set of tools share it


def rebuild(
    skill: str,
    out: Path,
    samples: int | None,
    seed: int,
    threads: int | None,
    tell: Progress | None = None,
    onward: Onward | None = None,
) -> Path:
    """Run a skill's recipe in the folder `out`, or go on with it, for so many samples (None: the recipe's own), on a
    new model or `onward` from another; gives the checkpoint's folder. `tell` gets a dict now and then: samples, of,
    seconds, left_s, loss, accuracy. Raises UserError."""
    recipe = recipe_of(skill)
    if onward is not None:
        if not isinstance(recipe, Recipe):
            raise UserError(f"The recipe of {skill} begins with a new model.", "Leave --base out.")
        onward.check()
    if threads:
        torch.set_num_threads(threads)
    config = replace(recipe.config, seed=seed)
    if onward is not None:
        config = onward.config(config)
    if samples:
        config = replace(config, samples=samples)

    def told(line: dict[str, object]) -> None:
        if tell is not None:
            speed = max(float(str(line["samples_per_s"])), 1e-9)
            left = (config.samples - int(str(line["samples"]))) / speed
            tell({**line, "of": config.samples, "left_s": max(0.0, left)})

    try:
        out.mkdir(parents=True, exist_ok=True)
        with nullcontext() if process_rank() else owned(out):
            if onward is None or not isinstance(recipe, Recipe):
                return recipe.train(out, config, told)
            recipe = replace(recipe, chunk=CHUNK)
            return recipe.train(out, config, told, onward.base, WAYS if onward.any_tools else 0, onward.teacher)
    except OSError as error:
        raise UserError(
            f"{out} cannot be written ({error.strerror}).", "Make room, or give another --out; a run there goes on."
        ) from None
