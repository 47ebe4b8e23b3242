"""Train the model of SimpleTool's browser games: the calls of a rule for each game, in states drawn over its range.

No game is played. (The bundled model was steered while it trained: see its card.)

  python models/recipes/simpletool.py      half an hour on one core
  rtcontrol serve --model runs/simpletool/checkpoint --http 127.0.0.1:8899 --static DEMOS
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from shared import MARKS, options, printed, run
from tokenizers import Tokenizer

from rtcontrol.envs.simpletool import GAMES, BrowserGame
from rtcontrol.envs.simpletool.game import numbers
from rtcontrol.models.checkpoint.prompt import COMPACT, HISTORY_LIMIT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.adopt import export
from rtcontrol.models.train.packing import PackedBatch
from rtcontrol.models.train.prepared import EMBEDDINGS, prepare
from rtcontrol.models.train.rows import Quote, Row, ToolsEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_tokenizer
from rtcontrol.training.model_size import SCHEMA_PHRASES, SCHEMA_WORDS

SCHEMAS = {game.name: tool_schemas(list(game.tools)) for game in GAMES.values()}
# Of the rows: pong and flappy bird show how far their goal is, in the arena two pairs of numbers must be subtracted.
SHARES = {"pong": 1.0, "flappy": 1.5, "arena": 6.0}
SAMPLES, CHUNK = 49_152, 8_192
SHAPE = ModelShape(hidden=128, heads=4, intermediate=384, context=2048)
DISTANCES = (0, 7, 14, 25, 50, 100, 200, 400)  # pixels, in which the arena's rows quote how far the player is
# What the pages write: pixels, and speeds of one decimal.
NUMBERS = [*map(str, range(-600, 1061)), *(f"{i / 10:.1f}" for i in range(-70, 225))]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
SHORTEST, LONGEST, LINEAR = 30.0, 3_000.0, 400.0  # periods of the waves of numbers; unit of their line


def row(game: BrowserGame, rng: random.Random) -> Row:
    """Return a random state with the call of the game's rule."""
    asked = game.draw(rng)
    call, quotes = game.rule(asked.observation), aims(asked.observation) if game.name == "arena" else ()
    tools = tuple(SCHEMAS[game.name])
    return Row(asked.instruction, asked.observation, call, asked.history, quotes=quotes, tools=tools)


def rows(seed: int) -> Iterator[Row]:
    """Yield rows of all games, without end."""
    rng = random.Random(seed)
    while True:
        yield row(GAMES[rng.choices(list(SHARES), list(SHARES.values()))[0]], rng)


def aims(observation: str) -> tuple[Quote, ...]:
    """Return where the player is, by row and column, for the content head to quote: without it 55 % of the arena's
    calls were right after 25,000 rows."""
    seen = numbers(observation)
    offs = [there - here for here, there in zip(seen["pos"], seen["player"], strict=True)]
    sides = ("right" if offs[0] > 0 else "left", "down" if offs[1] > 0 else "up")
    far = [max(d for d in DISTANCES if d <= abs(off)) for off in offs]
    said = zip(("column", "row"), sides, far, strict=True)
    return tuple(Quote(start, f" {side} {distance}") for start, side, distance in said)


class GamesTrainer(Trainer):
    """Keeps the rows of one game together within a batch, so that they share their tools in the tree."""

    def _batch(self, rows: Sequence[Row], rng: random.Random) -> PackedBatch:
        return super()._batch(sorted(rows, key=lambda row: row.instruction), rng)


def build(seed: int) -> tuple[Any, Tokenizer, ToolsEncoder]:
    """Return a new model, its tokenizer and the row encoder."""
    rng = random.Random(0)
    asked = [game.draw(rng) for game in GAMES.values() for _ in range(1_000)]
    parts = {part for one in asked for part in NUMBER.split(one.instruction)}
    calls = {call for one in asked for call in one.history if not call.isalpha()}
    keys = {key for one in asked for key in re.findall(r"(?:, )?\w+=", one.observation)}
    said = {text for one in asked for text in (one.instruction, one.observation, "; ".join(one.history))}
    tools = [tools_text(schemas) for schemas in SCHEMAS.values()]
    # The pages' set phrases are one token each. "=" stands alone, or it would take the sign of a negative number.
    phrases = (*SCHEMA_PHRASES, *sorted(parts - {""}), *sorted(keys | calls), "=")
    texts = [*tools, *phrases, *sorted(said), "row column", SCHEMA_WORDS, MARKS]
    tokenizer = build_tokenizer(texts, NUMBERS, phrases)
    model = prepare(new_model(SHAPE, tokenizer, seed, ordinal=False))
    waves(model.get_input_embeddings().weight, tokenizer)
    wrapped = STTokenizer(tokenizer)
    return model, tokenizer, ToolsEncoder(PromptTemplate(COMPACT, wrapped, "the compact profile"), wrapped)


def waves(weight: torch.Tensor, tokenizer: Tokenizer) -> None:
    """Start the embeddings of numbers from their value, in place: a line, and sines and cosines, by which attention
    compares two of them by their difference. Decimals count in hundredths."""
    half = weight.shape[1] // 2
    periods = torch.exp(torch.linspace(math.log(SHORTEST), math.log(LONGEST), half))
    line = torch.randn(weight.shape[1]) * EMBEDDINGS
    with torch.no_grad():
        for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
            text = token.removeprefix("Ġ")
            if NUMBER.fullmatch(text):
                value = float(text) * (100 if "." in text else 1)
                turns = 2 * math.pi * value / periods
                weight[index] = torch.cat([turns.sin(), turns.cos()]) * EMBEDDINGS + line * value / LINEAR


def train(out: Path, config: TrainConfig) -> Path:
    """Train (or resume in `out`) and export to `out/checkpoint`, in bf16; returns that folder."""
    model, tokenizer, encoder = build(config.seed)

    def source(chunk: int) -> Sequence[Row]:
        drawn = rows(config.seed * 1_000_003 + chunk)
        return [next(drawn) for _ in range(min(CHUNK, config.samples))]

    GamesTrainer(model, encoder, source, config, out).run(printed("simpletool"))
    folder = out / "checkpoint"
    export(model, tokenizer, COMPACT, folder, torch.bfloat16)
    TrainingMetadata(tuple(game.tools for game in GAMES.values()), history=HISTORY_LIMIT).write(folder)
    return folder


if __name__ == "__main__":
    parser = options(__doc__, "runs/simpletool")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="rows of training (%(default)s)")
    run(parser, lambda given: train(given.out, TrainConfig(given.samples, given.seed)))
