"""The base's last stage: the bundled worlds in one model, their tools under names drawn anew.

Imitation of each world's expert, then DAgger on the model's own episodes, as their own recipes have it; beside them
what the stages before taught, or it would be forgotten.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rtcontrol.envs import registry
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.train.policy import TreeDecider, TreePolicy
from rtcontrol.models.train.rows import Row, ToolsEncoder
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.training.gate import gate_between, heard
from rtcontrol.training.imitation import Recipe, recipe_for

RECIPES = {name: recipe_for(world) for name, world in registry.trained().items()}


@dataclass(frozen=True)
class Worlds:
    """`samples` in chunks: `kept` of them as the stages before, the rest in equal parts of each world, from `parallel`
    episodes each, whose tools are `plain` or under one of so many `ways` a chunk."""

    samples: int = 600_000
    kept: float = 0.3
    parallel: int = 48
    ways: int = 12
    rate: float = 5e-4
    chunk: int = 8_192


class WorldsRun(Trainer):
    """The stage's run; `kept` gives rows of the stages before. `encoder` takes rows with and without a call."""

    def __init__(
        self,
        model: Any,
        encoder: ToolsEncoder,
        stage: Worlds,
        kept: Callable[[Random, int], Sequence[Row]],
        seed: int,
        out: Path,
    ) -> None:
        self._stage, self._kept, self._seed = stage, kept, seed
        # Who plays must act, whatever is said.
        self._acting = {
            name: TreePolicy(model, encoder.acting(tuple(recipe.agent.tools.schemas)))
            for name, recipe in RECIPES.items()
        }
        config = TrainConfig(
            samples=stage.samples,
            seed=seed,
            group=48,
            run=8,
            learning_rate=stage.rate,
            final_rate=0.03,
            warmup=0.01,
            forced_share=0.02,
            bf16=True,
        )
        super().__init__(model, encoder, self.rows, config, out)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"worlds": asdict(self._stage)}

    def rows(self, chunk: int) -> list[Row]:
        """All rows of a chunk."""
        count = min(self._stage.chunk, self.config.samples)
        rng = Random(f"{self._seed}/worlds/{chunk}")
        kept = round(count * self._stage.kept)
        found = [*self._kept(rng, kept)]
        for number, (name, recipe) in enumerate(RECIPES.items()):
            found += self._world(name, recipe, chunk, (count - kept + number) // len(RECIPES), rng)
        return found

    def _world(self, name: str, recipe: Recipe, chunk: int, count: int, rng: Random) -> list[Row]:
        done = chunk * self._stage.chunk / self.config.samples
        early = recipe.early is not None and done < recipe.early_until
        # By twos: where two processes train together, both play or none.
        dagger = done >= recipe.dagger_from and chunk // 2 % recipe.dagger_every == 1
        parallel = min(self._stage.parallel, count)
        acting = self._acting[name] if dagger else None
        shown = recipe.episodes(self._seed * 1_000_003 + chunk, parallel, acting, early)
        rows = recipe.dressed_rows(itertools.islice(shown, count), parallel, self._stage.ways, rng)
        return recipe.mixed(rows, rng, early)


def learnt(model: Any, encoder: ToolsEncoder, seed: int, count: int) -> TrainingMetadata:
    """What the trained model says of itself, with the gate of all worlds together, found on `count` rows of each."""
    understood: list[float] = []
    nonsense: list[float] = []
    rng = Random(f"gate {seed}")
    for recipe in RECIPES.values():
        decide = TreeDecider(model, encoder.of(tuple(recipe.agent.tools.schemas)))
        assert recipe.nonsense is not None, "the worlds of the base are taught what asks for nothing"
        of_nonsense, of_rows = heard(decide, recipe.canonical(-1 - seed, count), recipe.nonsense.held_out, rng)
        nonsense += of_nonsense
        understood += of_rows
    sets = tuple(tuple(recipe.agent.tools.openai()) for recipe in RECIPES.values())
    return TrainingMetadata(sets, history=0, allow_null=True, gate=gate_between(nonsense, understood), any_tools=True)
