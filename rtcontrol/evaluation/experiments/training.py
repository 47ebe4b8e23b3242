"""One run: a small model, trained from nothing on so many tokens of the corpus in one form."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from rtcontrol.evaluation.experiments import corpus
from rtcontrol.evaluation.experiments.corpus import CorpusOptions, CorpusSample
from rtcontrol.evaluation.experiments.forms import Form, FormEncoder
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.data.stats import call_json
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.models.train.packing import pack
from rtcontrol.models.train.prepared import prepare
from rtcontrol.models.train.rows import LossWeights, Row, RowEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.trainer import Progress, TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_tokenizer
from rtcontrol.training.word_vectors import SCHEMA_PHRASES

SHAPE = ModelShape(hidden=128, layers=3, heads=2, kv_heads=2, intermediate=256)
CHUNK, GROUP = 4_096, 32
PLAIN = LossWeights(arguments=(1.6,) * 6, end=1.0)
MEASURED = 1_024  # rows whose tokens are counted
# What this corpus' definitions repeat, beside `SCHEMA_PHRASES`; none of it stands in a call.
PHRASES = (
    '": {"type": "integer", "minimum": ',
    '": {"type": "string", "enum": ["',
    '": {"type": "string", "maxLength": ',
    ', "maximum": ',
    ', "multipleOf": ',
    '"]}, "',
    '}, "',
)
PUNCTUATION = '{"name": "", "arguments": {"": "", "": 1, }} true false : , ; % " . "'


@dataclass(frozen=True)
class Setting:
    """What a run is. `tokens` that go through the model in training, the same for all forms; `all_heads`: null heads
    beyond a tool's own are asked for, too; `forced`: the share of the rows that teach what a constrained walk never
    asks for; `weights.end` is that of JSON's punctuation, too."""

    tokens: float
    form: Form = "heads"
    grouped: bool = False
    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    weights: LossWeights = PLAIN
    all_heads: bool = False
    forced: float = 1.0
    rate: float = 2e-3
    shape: ModelShape = SHAPE


@dataclass(frozen=True)
class FormLearner:
    """A model with what turns rows into its ids."""

    model: Any
    tokenizer: Tokenizer
    heads: RowEncoder
    encoder: FormEncoder


@cache
def vocabulary(form: Form = "heads") -> Tokenizer:
    """The corpus' words and numbers, whole; for JSON all runs of marks of its calls, too: so it takes fewest tokens."""
    texts = [tools_text(tool_schemas(corpus.tools(grouped))) for grouped in (False, True)]
    shown = list(itertools.islice(corpus.samples(0, CorpusOptions(places=2)), 4_000))
    texts += [text for one in shown for text in (one.instruction, one.observation)]
    texts += [call_json(one.call) for one in shown] if form == "json" else [PUNCTUATION]
    return build_tokenizer(texts, [str(n) for n in range(100)], (*SCHEMA_PHRASES, *PHRASES))


def learner(setting: Setting, seed: int, tokenizer: Tokenizer) -> FormLearner:
    """A new model, by `seed`."""
    wrapped = STTokenizer(tokenizer)
    template = PromptTemplate(COMPACT, wrapped, "the compact profile")
    plan = compile_plan(tool_schemas(corpus.tools(setting.grouped)), wrapped)
    heads = RowEncoder(template, wrapped, plan, setting.weights)
    model = prepare(new_model(setting.shape, tokenizer, seed), tokenizer, (1, 2))
    return FormLearner(
        model, tokenizer, heads, FormEncoder(heads, setting.form, setting.all_heads, setting.weights.end)
    )


def loaded(setting: Setting, checkpoint: Path) -> FormLearner:
    """What was trained."""
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    return replace(learner(setting, 0, vocabulary(setting.form)), model=model)


def taken(samples: Iterator[CorpusSample], count: int, tools: tuple[ToolSchema, ...] = ()) -> list[Row]:
    """The next ones as rows."""
    return [Row(s.instruction, s.observation, s.call, tools=tools) for s in itertools.islice(samples, count)]


def tokens_a_row(encoder: FormEncoder, some: Sequence[Row], forced: bool = True) -> float:
    """Tokens that go through the model for one row of a batch in training, its part of the prefix included."""
    total = 0
    for i in range(0, len(some), GROUP):
        total += pack(encoder.prefix, [encoder.encode(row, forced) for row in some[i : i + GROUP]]).tokens.shape[1]
    return total / len(some)


def train(
    setting: Setting, seed: int, tokenizer: Tokenizer, out: Path, progress: Progress | None = None
) -> tuple[FormLearner, dict[str, Any]]:
    """The trained model (a run that was stopped goes on), and what is told of it: rows, tokens a row, loss, seconds."""
    made = learner(setting, seed, tokenizer)
    some = taken(corpus.samples(-1, setting.corpus), MEASURED)
    each = tokens_a_row(made.encoder, some, setting.forced >= 1)
    count = round(setting.tokens / each)
    config = TrainConfig(count, seed, GROUP, 1, setting.rate, forced_share=setting.forced, bf16=True)

    def source(chunk: int) -> Sequence[Row]:
        return taken(corpus.samples(seed * 1_000_003 + chunk, setting.corpus), CHUNK)

    trainer = Trainer(made.model, made.encoder, source, config, out)  # type: ignore[arg-type]
    last: dict[str, Any] = {}

    def told(line: dict[str, Any]) -> None:
        last.update(line)
        if progress:
            progress({**line, "of": config.samples})

    trainer.run(told)
    seconds = round(trainer.seconds, 1)
    return made, {"rows": trainer.samples, "tokens_a_row": round(each, 1), "loss": last.get("loss"), "seconds": seconds}
