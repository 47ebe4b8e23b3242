"""The recipe of the model for SimpleTool's browser games: their rules' calls in states drawn over each game's range.

No game is played for it; that the text is what the pages send is a test's to say, which asks the pages themselves.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
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
from rtcontrol.models.train.trainer import Progress, TrainConfig, Trainer, last_line
from rtcontrol.models.train.vocabulary import build_tokenizer
from rtcontrol.training.card import shape_of, skill_card, write_card
from rtcontrol.training.word_vectors import MARKS, SCHEMA_PHRASES, SCHEMA_WORDS

SCHEMAS = {game.name: tool_schemas(list(game.tools)) for game in GAMES.values()}
# Of the rows: pong and flappy bird say how far off their goal is, in the arena two pairs of numbers must be subtracted.
SHARES = {"pong": 1.0, "flappy": 1.5, "arena": 6.0}
DISTANCES = (0, 7, 14, 25, 50, 100, 200, 400)  # pixels, by which the arena's rows are asked how far the player is
# What the pages write: pixels, and speeds of one decimal.
NUMBERS = [*map(str, range(-600, 1061)), *(f"{i / 10:.1f}" for i in range(-70, 225))]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
LESSON = "The games' rules are imitated, in states drawn over each game's range: no game is played for it."
HOW = "rtcontrol serve --model FOLDER --http 127.0.0.1:8899 --static DEMOS   (docs/simpletool-games.md)"
SHORTEST, LONGEST, LINEAR = 30.0, 3_000.0, 400.0  # periods of the waves that numbers are told by; unit of their line


def row(game: BrowserGame, rng: random.Random) -> Row:
    """A drawn state, with the call of the game's rule."""
    asked = game.draw(rng)
    call, quotes = game.rule(asked.observation), _aims(asked.observation) if game.name == "arena" else ()
    tools = tuple(SCHEMAS[game.name])
    return Row(asked.instruction, asked.observation, call, asked.history, quotes=quotes, tools=tools)


def rows(seed: int) -> Iterator[Row]:
    """Rows of all games, without end."""
    rng = random.Random(seed)
    while True:
        yield row(GAMES[rng.choices(list(SHARES), list(SHARES.values()))[0]], rng)


def _aims(observation: str) -> tuple[Quote, ...]:
    """Where the player is, by row and by column, for the content head to say: a call alone says little about what must
    be subtracted from what (measured: without, 55 % of the arena's calls right after 25,000 rows)."""
    seen = numbers(observation)
    offs = [there - here for here, there in zip(seen["pos"], seen["player"], strict=True)]
    sides = ("right" if offs[0] > 0 else "left", "down" if offs[1] > 0 else "up")
    far = [max(d for d in DISTANCES if d <= abs(off)) for off in offs]
    said = zip(("column", "row"), sides, far, strict=True)
    return tuple(Quote(start, f" {side} {distance}") for start, side, distance in said)


class GamesTrainer(Trainer):
    """Keeps the rows of one game together within a batch, so that the tree has their tools once in eight rows."""

    def _batch(self, rows: Sequence[Row], rng: random.Random) -> PackedBatch:
        return super()._batch(sorted(rows, key=lambda row: row.instruction), rng)


@dataclass(frozen=True)
class GamesRecipe:
    """One model of all three games."""

    config: TrainConfig = field(default_factory=lambda: TrainConfig(samples=49_152))
    shape: ModelShape = field(default_factory=lambda: ModelShape(hidden=128, heads=4, intermediate=384, context=2048))
    chunk: int = 8_192

    def build(self, seed: int) -> tuple[Any, Tokenizer, ToolsEncoder]:
        """A new model, its tokenizer and the encoder of rows."""
        rng = random.Random(0)
        asked = [game.draw(rng) for game in GAMES.values() for _ in range(1_000)]
        parts = {part for one in asked for part in NUMBER.split(one.instruction)}
        calls = {call for one in asked for call in one.history if not call.isalpha()}
        keys = {key for one in asked for key in re.findall(r"(?:, )?\w+=", one.observation)}
        said = {text for one in asked for text in (one.instruction, one.observation, "; ".join(one.history))}
        tools = [tools_text(schemas) for schemas in SCHEMAS.values()]
        # The pages' set phrases are one token each. "=" stands alone, or the sign of a negative number would be its.
        phrases = (*SCHEMA_PHRASES, *sorted(parts - {""}), *sorted(keys | calls), "=")
        texts = [*tools, *phrases, *sorted(said), "row column", SCHEMA_WORDS, MARKS]
        tokenizer = build_tokenizer(texts, NUMBERS, phrases)
        model = prepare(new_model(self.shape, tokenizer, seed, ordinal=False))
        waves(model.get_input_embeddings().weight, tokenizer)
        wrapped = STTokenizer(tokenizer)
        return model, tokenizer, ToolsEncoder(PromptTemplate(COMPACT, wrapped, "the compact profile"), wrapped)

    def train(self, out: Path, config: TrainConfig, progress: Progress | None = None) -> Path:
        """Train (or go on with the run in `out`) and export to `out/checkpoint`, in bf16; returns that folder."""
        model, tokenizer, encoder = self.build(config.seed)

        def source(chunk: int) -> Sequence[Row]:
            shown = rows(config.seed * 1_000_003 + chunk)
            return [next(shown) for _ in range(min(self.chunk, config.samples))]

        GamesTrainer(model, encoder, source, config, out).run(progress)
        folder = out / "checkpoint"
        export(model, tokenizer, COMPACT, folder, torch.bfloat16)
        TrainingMetadata(tuple(game.tools for game in GAMES.values()), history=HISTORY_LIMIT).write(folder)
        tools = [schema for schemas in SCHEMAS.values() for schema in schemas]
        write_card(folder, skill_card("simpletool", tools, {}, shape_of(model), last_line(out), HOW, LESSON))
        return folder


def waves(weight: torch.Tensor, tokenizer: Tokenizer) -> None:
    """Start the rows of numbers from their value, in place: a line, and sines and cosines, by which attention compares
    two of them by their difference. Decimals count in hundredths."""
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


RECIPE = GamesRecipe()
