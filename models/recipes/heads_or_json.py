"""Compare two output formats of calls, parallel heads and JSON text: train small models from scratch on a synthetic
corpus, with equal numbers of tokens, and count right calls.

python models/recipes/heads_or_json.py --seeds 1      two minutes a model on one core; three seeds: docs/evaluation.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import robot_corpus as corpus
import torch
from shared import base_parser, progress_printer, run_script
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.data.row import Row
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.encode import EncodedRow, HeadTarget, LossWeights, RowEncoder
from rtcontrol.models.train.packing import label_logits, pack_rows
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.scratch import SCHEMA_PHRASES, ModelShape, initialise_weights, new_model
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_tokenizer

TOKENS = 400_000  # tokens in training, including prompts and tools
SHAPE = ModelShape(hidden=128, layers=3, heads=2, kv_heads=2, intermediate=256)
CHUNK, GROUP = 4_096, 32
TEST_ROWS, TEST_SEED = 1_000, 7  # number and seed of the held-out rows
WEIGHTS, PUNCTUATION_WEIGHT = LossWeights(arguments=(1.6,) * 6, end=1.0), 0.1
EXPERIMENTS = {"heads": ("heads", 1), "JSON": ("json", 1), "JSON, twice the tokens": ("json", 2)}  # factor of TOKENS
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
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile of Student's t, by the number of seeds


class FormEncoder:
    """Encodes rows for `Trainer` in one output format: "heads" or "json"."""

    def __init__(self, heads: RowEncoder, form: str) -> None:
        self.prefix, self.tokenizer = heads.prefix, heads.tokenizer
        self._heads, self._form = heads, form

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Return the token ids, labels and weights of a row."""
        assert row.call is not None
        encoded, plan = self._heads.encode(row), self._heads.plan
        if self._form == "heads":
            return replace(encoded, heads=encoded.heads[: 1 + len(plan.slots[plan.tool_index(row.call.name)])])
        # The label is the call as JSON text, directly after the prompt.
        tokens = self.tokenizer.encode(json.dumps(row.call.to_dict(), ensure_ascii=False))
        weights = [1.0 if re.search(r"\w", self.tokenizer.decode([token])) else PUNCTUATION_WEIGHT for token in tokens]
        text = (*tokens, self.tokenizer.special_id("<|im_end|>"))
        chain = HeadTarget((encoded.suffix[-1], *tokens), text, (*weights, PUNCTUATION_WEIGHT))
        return replace(encoded, suffix=encoded.suffix[:-1], heads=(chain,))


@cache
def form_tokenizer(form: str) -> Tokenizer:
    """Return a tokenizer with one token for each word and number of the corpus, and for JSON's punctuation."""
    texts = [tools_text(tool_schemas(corpus.tool_definitions()))]
    sample = take_rows(corpus.random_rows(0), 4_000)
    texts += [text for row in sample for text in (row.instruction, row.observation)]
    calls = [json.dumps(row.call.to_dict(), ensure_ascii=False) for row in sample]
    texts += calls if form == "json" else [PUNCTUATION]
    return build_tokenizer(texts, [str(n) for n in range(100)], (*SCHEMA_PHRASES, *PHRASES))


def take_rows(rows: Iterator[Row], count: int) -> list[Row]:
    """Return the next `count` rows."""
    return list(itertools.islice(rows, count))


def train_and_evaluate(form: str, tokens: float, seed: int, out: Path, name: str) -> dict[str, Any]:
    """Train one model (or resume in `out`), and count its right calls on held-out rows."""
    tokenizer = form_tokenizer(form)
    wrapped = STTokenizer(tokenizer)
    plan = compile_plan(tool_schemas(corpus.tool_definitions()), wrapped)
    heads = RowEncoder(PromptTemplate(COMPACT, wrapped, "the compact profile"), wrapped, plan, WEIGHTS)
    encoder: Any = FormEncoder(heads, form)
    model = initialise_weights(new_model(SHAPE, tokenizer, seed), tokenizer, (1, 2))
    measured, total = take_rows(corpus.random_rows(-1), 1_024), 0
    for at in range(0, len(measured), GROUP):
        total += pack_rows(encoder.prefix, [encoder.encode(row) for row in measured[at : at + GROUP]]).tokens.shape[1]
    count = round(tokens * len(measured) / total)

    def source(chunk: int) -> Sequence[Row]:
        return take_rows(corpus.random_rows(seed * 1_000_003 + chunk), CHUNK)

    config = TrainConfig(count, seed, GROUP, 1, 2e-3, forced_share=1.0, bf16=True, save_every_s=10.0)
    Trainer(model, encoder, source, config, out).run(progress_printer(name))
    result: dict[str, Any] = {"rows": count, "tokens_a_row": round(total / len(measured), 1)}
    samples = take_rows(corpus.random_rows(TEST_SEED, held_out=True), TEST_ROWS)
    result["free"] = [sum(free_results(model, encoder, samples)), TEST_ROWS]
    if form == "heads":
        result["constrained"] = [sum(constrained_results(TreeDecider(model, heads), samples)), TEST_ROWS]
    return result


def free_results(model: Any, encoder: FormEncoder, samples: Sequence[Row]) -> list[bool]:
    """Return for each sample whether unconstrained greedy decoding gives the right call: each of the call's tokens must
    be the most probable token after the tokens before it."""
    right: list[bool] = []
    model.eval()
    for at in range(0, len(samples), GROUP):
        encoded = [encoder.encode(row) for row in samples[at : at + GROUP]]
        with torch.no_grad():
            batch = pack_rows(encoder.prefix, encoded)
            best = (label_logits(model, batch).argmax(-1) == batch.labels).tolist()
        for row in encoded:
            count = sum(bool(weight) for head in row.heads for weight in head.weights)
            right.append(all(best[:count]))
            best = best[count:]
    return right


def constrained_results(decide: TreeDecider, samples: Sequence[Row]) -> list[bool]:
    """Return for each sample whether decoding gives the right call if it is constrained to legal calls."""
    chunks = [samples[at : at + GROUP] for at in range(0, len(samples), GROUP)]
    return [call == row.call for chunk in chunks for call, row in zip(decide(chunk), chunk, strict=True)]


def format_shares(counts: Sequence[Sequence[int]]) -> str:
    """Format (right, count) pairs as percentages: mean ± half of its 95 % interval (Student's t), then each seed's."""
    shares = [100 * right / count for right, count in counts]
    percentages = ", ".join(f"{value:.1f}" for value in shares)
    if len(shares) not in T_95:
        return percentages
    return f"{fmean(shares):.1f} ± {T_95[len(shares)] * stdev(shares) / math.sqrt(len(shares)):.1f}: {percentages}"


def compare(args: argparse.Namespace) -> str:
    """Run all experiments with all seeds, and return the results as lines of text."""
    lines = []
    for name, (form, times) in EXPERIMENTS.items():
        tokens, results = TOKENS * times * args.scale, []
        for seed in range(args.seed, args.seed + args.seeds):
            folder = args.out / f"{form}-{tokens:.0f}-{seed}"
            results.append(train_and_evaluate(form, tokens, seed, folder, f"{name}, seed {seed}"))
        kinds = [kind for kind in ("free", "constrained") if kind in results[0]]
        shares = {kind: format_shares([each[kind] for each in results]) for kind in kinds}
        rows = f"{results[0]['rows']:,} rows of {results[0]['tokens_a_row']} tokens"
        lines.append("; ".join([f"{name}: {rows}", *(f"{key} {value}" for key, value in shares.items())]))
    return "\n".join(["Right calls, % (mean ± 95 %: each seed)", *lines])


if __name__ == "__main__":
    parser = base_parser(__doc__, "runs/heads_or_json")
    parser.add_argument("--seeds", type=int, default=3, help="models of each form (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the training tokens, for a trial (%(default)s)")
    run_script(parser, compare)
