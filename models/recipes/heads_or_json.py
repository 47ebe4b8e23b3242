"""Compare heads with JSON as ways to write a call: small models learn a made-up corpus from nothing, at equal tokens.

python models/recipes/heads_or_json.py --seeds 1      two minutes a model on one core; three seeds: docs/experiments.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import robot_corpus as corpus
import torch
from shared import options, printed, run
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.loss import label_logits
from rtcontrol.models.train.packing import pack
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.rows import EncodedRow, LossWeights, Row, RowEncoder, json_row
from rtcontrol.models.train.scratch import ModelShape, new_model, prepare
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_tokenizer
from rtcontrol.training.model_size import SCHEMA_PHRASES

TOKENS = 400_000  # that go through the model in training, prompts and tools included
SHAPE = ModelShape(hidden=128, layers=3, heads=2, kv_heads=2, intermediate=256)
CHUNK, GROUP = 4_096, 32
JUDGED, HELD = 1_000, 7
WEIGHTS, PUNCTUATION_WEIGHT = LossWeights(arguments=(1.6,) * 6, end=1.0), 0.1
ARMS = {"heads": ("heads", 1), "JSON": ("json", 1), "JSON, twice the tokens": ("json", 2)}  # form, times TOKENS
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
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t of 97.5 %, by seeds


class FormEncoder:
    """Encodes rows in one form, for `Trainer`: a row's own heads next to each other, or JSON."""

    def __init__(self, heads: RowEncoder, form: str) -> None:
        self.prefix, self.tokenizer = heads.prefix, heads.tokenizer
        self._heads, self._form = heads, form

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Return ids and labels."""
        assert row.call is not None
        found, plan = self._heads.encode(row), self._heads.plan
        if self._form == "json":
            return json_row(found, self.tokenizer, row.call, PUNCTUATION_WEIGHT, "<|im_end|>")
        return replace(found, heads=found.heads[: 1 + len(plan.slots[plan.tool_index(row.call.name)])])


@cache
def vocabulary(form: str) -> Tokenizer:
    """Return the corpus' words and numbers, whole; for JSON also the runs of marks of its calls."""
    texts = [tools_text(tool_schemas(corpus.tools()))]
    shown = list(itertools.islice(corpus.samples(0), 4_000))
    texts += [text for one in shown for text in (one.instruction, one.observation)]
    calls = [json.dumps(one.call.to_dict(), ensure_ascii=False) for one in shown]
    texts += calls if form == "json" else [PUNCTUATION]
    return build_tokenizer(texts, [str(n) for n in range(100)], (*SCHEMA_PHRASES, *PHRASES))


def rows_of(samples: Iterator[corpus.Sample], count: int) -> list[Row]:
    """Return the next samples as rows."""
    return [Row(s.instruction, s.observation, s.call) for s in itertools.islice(samples, count)]


def trained_and_judged(form: str, tokens: float, seed: int, out: Path, name: str) -> dict[str, Any]:
    """Train one model (or resume in `out`) and count its right calls of held-out samples."""
    tokenizer = vocabulary(form)
    wrapped = STTokenizer(tokenizer)
    plan = compile_plan(tool_schemas(corpus.tools()), wrapped)
    heads = RowEncoder(PromptTemplate(COMPACT, wrapped, "the compact profile"), wrapped, plan, WEIGHTS)
    encoder: Any = FormEncoder(heads, form)
    model = prepare(new_model(SHAPE, tokenizer, seed), tokenizer, (1, 2))
    measured, total = rows_of(corpus.samples(-1), 1_024), 0
    for at in range(0, len(measured), GROUP):
        total += pack(encoder.prefix, [encoder.encode(row) for row in measured[at : at + GROUP]]).tokens.shape[1]
    count = round(tokens * len(measured) / total)

    def source(chunk: int) -> Sequence[Row]:
        return rows_of(corpus.samples(seed * 1_000_003 + chunk), CHUNK)

    config = TrainConfig(count, seed, GROUP, 1, 2e-3, forced_share=1.0, bf16=True, save_every_s=10.0)
    Trainer(model, encoder, source, config, out).run(printed(name))
    found: dict[str, Any] = {"rows": count, "tokens_a_row": round(total / len(measured), 1)}
    samples = list(itertools.islice(corpus.samples(HELD, held_out=True), JUDGED))
    found["free"] = [sum(free(model, encoder, samples)), JUDGED]
    if form == "heads":
        found["constrained"] = [sum(constrained(TreeDecider(model, heads), samples)), JUDGED]
    return found


def free(model: Any, encoder: FormEncoder, samples: Sequence[corpus.Sample]) -> list[bool]:
    """Return of each sample whether its call is right if each token is the likeliest of all: so it is if every token of
    the right call is the likeliest after those before it, which one forward over the right calls shows."""
    right: list[bool] = []
    model.eval()
    for at in range(0, len(samples), GROUP):
        encoded = [encoder.encode(row) for row in rows_of(iter(samples[at : at + GROUP]), GROUP)]
        with torch.no_grad():
            batch = pack(encoder.prefix, encoded)
            best = (label_logits(model, batch).argmax(-1) == batch.labels).tolist()
        for row in encoded:
            count = sum(bool(weight) for head in row.heads for weight in head.weights)
            right.append(all(best[:count]))
            best = best[count:]
    return right


def constrained(decide: TreeDecider, samples: Sequence[corpus.Sample]) -> list[bool]:
    """Return the same for the tree decoder, which is held to the tools."""
    found: list[bool] = []
    for at in range(0, len(samples), GROUP):
        some = samples[at : at + GROUP]
        calls = decide([Row(s.instruction, s.observation, None) for s in some])
        found += [call == s.call for call, s in zip(calls, some, strict=True)]
    return found


def share(counts: Sequence[Sequence[int]]) -> str:
    """Return the mean share of the seeds, half its 95 % interval, and each seed's share, in percent."""
    shares = [100 * right / count for right, count in counts]
    each = ", ".join(f"{one:.1f}" for one in shares)
    if len(shares) not in T_95:
        return each
    return f"{fmean(shares):.1f} ± {T_95[len(shares)] * stdev(shares) / math.sqrt(len(shares)):.1f}: {each}"


def compare(given: argparse.Namespace) -> str:
    """Train each form with each seed and return the table."""
    lines = []
    for name, (form, times) in ARMS.items():
        tokens, found = TOKENS * times * given.scale, []
        for seed in range(given.seed, given.seed + given.seeds):
            folder = given.out / f"{form}-{tokens:.0f}-{seed}"
            found.append(trained_and_judged(form, tokens, seed, folder, f"{name}, seed {seed}"))
        told = {key: share([one[key] for one in found]) for key, value in found[0].items() if isinstance(value, list)}
        rows = f"{found[0]['rows']:,} rows of {found[0]['tokens_a_row']} tokens"
        lines.append("; ".join([f"{name}: {rows}", *(f"{key} {value}" for key, value in told.items())]))
    return "\n".join(["Right calls, % (mean ± 95 %: each seed)", *lines])


if __name__ == "__main__":
    parser = options(__doc__, "runs/heads_or_json")
    parser.add_argument("--seeds", type=int, default=3, help="models of each form (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the training tokens, for a trial (%(default)s)")
    run(parser, compare)
