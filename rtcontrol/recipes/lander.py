"""The lander recipe: imitation of the scripted expert on disturbed flights, then DAgger on the model's own flights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rtcontrol.agents.lander import agent
from rtcontrol.agents.lander_phrasings import vocabulary
from rtcontrol.envs.rollout import demonstrations
from rtcontrol.models.plan import compile_plan
from rtcontrol.models.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.train.export import export
from rtcontrol.models.train.policy import TreePolicy
from rtcontrol.models.train.rows import Row, RowEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.trainer import Progress, TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_tokenizer, number_words

CHUNK = 16_384
FLIGHTS = 64
DAGGER_FROM = 0.3  # share of the samples after which the model flies too
DAGGER_EVERY = 2  # then every second chunk is the model's
BETA = 0.3  # share of ticks in such a chunk that the expert flies
CONFIG = TrainConfig(samples=480_000)


def build(seed: int) -> tuple[Any, Tokenizer, RowEncoder]:
    """A new model, its tokenizer and the row encoder."""
    tools = agent.tools.schemas
    texts = [
        tools_text(tools),
        " ".join(sorted(vocabulary())),
        "x y vx vy angle spin legs",
        '{"name": "", "arguments": {}}',
    ]
    tokenizer = build_tokenizer(texts, number_words())
    wrapped = STTokenizer(tokenizer)
    template = PromptTemplate(COMPACT, wrapped, "the compact profile")
    plan = compile_plan(tools, wrapped, agent.allow_null, template.overflow)
    return new_model(ModelShape(), tokenizer, seed), tokenizer, RowEncoder(template, wrapped, plan)


def train(out: Path, config: TrainConfig = CONFIG, progress: Progress | None = None) -> Path:
    """Train (or go on with the run in `out`) and export to `out/checkpoint`; returns that folder."""
    model, tokenizer, encoder = build(config.seed)
    policy = TreePolicy(model, encoder)

    def source(chunk: int) -> Sequence[Row]:
        dagger = chunk * CHUNK >= DAGGER_FROM * config.samples and chunk % DAGGER_EVERY == 1
        flights = demonstrations(
            config.seed * 1_000_003 + chunk, FLIGHTS, policy=policy if dagger else None, beta=BETA if dagger else 0.0
        )
        count = min(CHUNK, config.samples)
        return [Row(r.instruction, r.observation, r.call) for r in itertools.islice(flights, count)]

    Trainer(model, encoder, source, config, out).run(progress)
    export(model, tokenizer, COMPACT, out / "checkpoint")
    return out / "checkpoint"
