"""A prepared model learns to find any named thing within a few thousand rows, and follows another name elsewhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.policy import TreePolicy
from rtcontrol.models.train.prepared import prepare
from rtcontrol.models.train.probes import with_word_probes
from rtcontrol.models.train.rows import LossWeights, Row, RowEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_tokenizer
from tests.models.small import tool

NAMES = ("red", "blue", "green", "black", "white", "amber", "violet", "silver")
WAYS = ["north", "south", "east", "west"]
TOOLS = tool_schemas([tool("go", way=WAYS)])


def look_up(rng: random.Random) -> Row:
    shown = rng.sample(NAMES, 3)
    where = {name: rng.choice(WAYS) for name in shown}
    seen = " ".join(f"{name} {where[name]}" for name in rng.sample(shown, 3))
    return Row(f"go to the {shown[0]}", seen, Call("go", {"way": where[shown[0]]}))


@pytest.mark.slow
def test_a_prepared_model_learns_a_look_up_and_follows_another_name(tmp_path: Path) -> None:
    words = build_tokenizer(["the call function argument name end first", " ".join(NAMES), tools_text(TOOLS)], ["1"])
    mine = STTokenizer(words)
    plan = compile_plan(TOOLS, mine)
    encoder = RowEncoder(PromptTemplate(COMPACT, mine, ""), mine, plan, LossWeights(quote=0.3))

    def source(chunk: int) -> Sequence[Row]:
        rng = random.Random(chunk)
        return [*with_word_probes((look_up(rng) for _ in range(1024)), rng, 1)]

    shape = ModelShape(hidden=128, layers=4, heads=2, kv_heads=2, intermediate=256)
    model = prepare(new_model(shape, words, 0), words)
    config = TrainConfig(samples=12_000, run=1, group=32, learning_rate=2e-3)
    Trainer(model, encoder, source, config, tmp_path).run()
    rng = random.Random("held out")
    rows = [look_up(rng) for _ in range(300)]
    policy = TreePolicy(model, encoder)
    calls = policy([(row.instruction, row.observation) for row in rows])
    assert sum(call == row.call for call, row in zip(calls, rows, strict=True)) >= 294
    # Another name of those shown: another call, where another direction stands beside it.
    seen = [row.observation.split() for row in rows]
    other = [next(n for n in words[::2] if n not in row.instruction) for words, row in zip(seen, rows, strict=True)]
    swapped = policy([(f"go to the {name}", row.observation) for name, row in zip(other, rows, strict=True)])
    right = [Call("go", {"way": words[words.index(name) + 1]}) for name, words in zip(other, seen, strict=True)]
    assert sum(call == want for call, want in zip(swapped, right, strict=True)) >= 294
