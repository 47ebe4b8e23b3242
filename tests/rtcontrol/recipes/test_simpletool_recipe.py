"""The recipe of the model for SimpleTool's browser games."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from rtcontrol.envs.simpletool import GAMES
from rtcontrol.models.checkpoint.checkpoint import Checkpoint, zoo
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol.run.model_compatibility import trained_on
from rtcontrol.training.recipes.simpletool import RECIPE, SCHEMAS, rows

MOST = 50  # tokens of a request behind its tools


def test_a_request_of_the_pages_is_few_tokens_to_the_games_model() -> None:
    encoder = RECIPE.build(0)[2]
    for row in itertools.islice(rows(1), 300):
        own = encoder.of(row.tools)
        assert len(own.suffix(row)) <= MOST, row
        assert encoder.encode(row).suffix == (*own.prefix[1:], *own.suffix(row))


def test_a_model_of_the_games_recipe_knows_the_tools_of_all_three(tmp_path: Path) -> None:
    folder = RECIPE.train(tmp_path / "run", TrainConfig(samples=64))
    assert all(trained_on(schemas, str(folder)) for schemas in SCHEMAS.values())
    assert sum(p.stat().st_size for p in folder.iterdir()) < 4 << 20
    assert Checkpoint.open(str(folder)).template.profile == "compact"
    for game in GAMES.values():
        row = next(row for row in rows(2) if row.tools == tuple(SCHEMAS[game.name]))
        call = DeciderSpec(str(folder), game.tools).build().decide(row.observation, row.instruction, row.history).call
        assert call is not None and call.name in {schema.name for schema in SCHEMAS[game.name]}


@pytest.mark.parametrize(("name", "least"), [("pong", 0.9), ("flappy", 0.9), ("arena", 0.7)])
def test_the_bundled_model_makes_the_calls_of_the_games_rules(name: str, least: float) -> None:
    game, rng = GAMES[name], random.Random(5)
    own = next(model for model in zoo() if trained_on(SCHEMAS[name], model))
    decider = DeciderSpec(own, game.tools).build()
    asked = [game.draw(rng) for _ in range(100)]
    calls = [decider.decide(one.observation, one.instruction, one.history).call for one in asked]
    assert sum(game.rule(one.observation) == call for one, call in zip(asked, calls, strict=True)) >= least * 100
