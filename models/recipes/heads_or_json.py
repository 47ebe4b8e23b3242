"""Compare ways to write a call, on small models that learn a made-up corpus from nothing at equal training tokens.

Experiments (docs/experiments.md): forms (heads, JSON), weights, balance, constraint.

  python models/recipes/heads_or_json.py forms                two minutes a model on one core; three seeds
  python models/recipes/heads_or_json.py weights --seeds 1
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import robot_corpus as corpus
import torch
from shared import options, printed, run
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.files import replace_file
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.loss import label_logits
from rtcontrol.models.train.packing import pack
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.recipe import FinetuneRecipe
from rtcontrol.models.train.rows import EncodedRow, LossWeights, Row, RowEncoder, json_row
from rtcontrol.models.train.scratch import ModelShape, new_model, prepare
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_tokenizer
from rtcontrol.training.model_size import SCHEMA_PHRASES

Form = Literal["heads", "json"]
TOKENS = 0.4e6  # that go through the model in training, prompts and tools included
SHAPE = ModelShape(hidden=128, layers=3, heads=2, kv_heads=2, intermediate=256)
CHUNK, GROUP = 4_096, 32
JUDGED, HELD = 1_000, 7
PLAIN = LossWeights(arguments=(1.6,) * 6, end=1.0)
FLAT, PAPER = LossWeights(1.0, (1.0,) * 6, 1.0), FinetuneRecipe().weights()
# Most functions take one or two arguments.
SKEWED = corpus.Options(shares={0: 1, 1: 40, 2: 35, 3: 15, 4: 6, 5: 2, 6: 1})
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


@dataclass(frozen=True)
class Arm:
    """One setting. `all_heads`: null heads beyond a tool's own are trained, too; `forced`: the share of rows that train
    what a constrained walk never asks for; `weights.end` is also that of JSON's punctuation."""

    form: Form = "heads"
    tokens: float = TOKENS
    corpus: corpus.Options = field(default_factory=corpus.Options)
    weights: LossWeights = PLAIN
    all_heads: bool = False
    forced: float = 1.0
    rate: float = 2e-3


HEADS, JSON = Arm(), Arm("json", weights=replace(PLAIN, end=0.1))
ALL_HEADS = Arm(all_heads=True)
EXPERIMENTS: Mapping[str, Mapping[str, Arm]] = {
    "forms": {
        "heads": HEADS,
        "JSON": JSON,
        "JSON, twice the tokens": replace(JSON, tokens=2 * TOKENS),
        "JSON, rate 0.004": replace(JSON, rate=4e-3),
    },
    "weights": {
        "the paper's": replace(ALL_HEADS, weights=PAPER),
        "the paper's, not focal": replace(ALL_HEADS, weights=replace(PAPER, focal=(1.0,) * 6)),
        "all 1": replace(ALL_HEADS, weights=FLAT),
        "all 1, a row's own heads alone": replace(HEADS, weights=FLAT),
    },
    "balance": {"balanced": HEADS, "as found": replace(HEADS, corpus=SKEWED)},
    "constraint": {
        "1/4 of the tokens": replace(HEADS, tokens=TOKENS / 4),
        "1/2": replace(HEADS, tokens=TOKENS / 2),
        "all": HEADS,
        "all, forced tokens not trained": replace(HEADS, forced=0.0),
    },
}


class FormEncoder:
    """Encodes rows in one form, for `Trainer`: heads next to each other, or JSON."""

    def __init__(self, heads: RowEncoder, arm: Arm) -> None:
        self.prefix, self.tokenizer = heads.prefix, heads.tokenizer
        self._heads, self._arm = heads, arm

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Return ids and labels; without `forced` heads leave out what a constrained walk never asks for."""
        assert row.call is not None
        form, plan = self._arm.form, self._heads.plan
        found = self._heads.encode(row, forced or form != "heads")
        if not forced and form == "heads":
            return found
        if form == "json":
            return json_row(found, self.tokenizer, row.call, self._arm.weights.end, "<|im_end|>")
        own = found.heads[: 1 + len(plan.slots[plan.tool_index(row.call.name)])]
        return found if self._arm.all_heads else replace(found, heads=own)


@cache
def vocabulary(form: Form) -> Tokenizer:
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


def trained_and_judged(arm: Arm, seed: int, out: Path, name: str) -> dict[str, Any]:
    """Train one model (or resume in `out`) and count its right calls of held-out samples."""
    tokenizer = vocabulary("json" if arm.form == "json" else "heads")
    wrapped = STTokenizer(tokenizer)
    plan = compile_plan(tool_schemas(corpus.tools()), wrapped)
    heads = RowEncoder(PromptTemplate(COMPACT, wrapped, "the compact profile"), wrapped, plan, arm.weights)
    encoder: Any = FormEncoder(heads, arm)
    model = prepare(new_model(SHAPE, tokenizer, seed), tokenizer, (1, 2))
    measured, total = rows_of(corpus.samples(-1, arm.corpus), 1_024), 0
    for at in range(0, len(measured), GROUP):
        some = [encoder.encode(row, arm.forced >= 1) for row in measured[at : at + GROUP]]
        total += pack(encoder.prefix, some).tokens.shape[1]
    count = round(arm.tokens * len(measured) / total)

    def source(chunk: int) -> Sequence[Row]:
        return rows_of(corpus.samples(seed * 1_000_003 + chunk, arm.corpus), CHUNK)

    config = TrainConfig(count, seed, GROUP, 1, arm.rate, forced_share=arm.forced, bf16=True, save_every_s=10.0)
    Trainer(model, encoder, source, config, out).run(printed(name))
    own = replace(arm.corpus, held_out=True)
    found: dict[str, Any] = {"rows": count, "tokens_a_row": round(total / len(measured), 1)}
    for title, judged in {
        "own": own,
        **({"balanced": corpus.Options(held_out=True)} if arm.corpus == SKEWED else {}),
    }.items():
        samples = list(itertools.islice(corpus.samples(HELD, judged), JUDGED))
        found[f"{title}, free"] = [sum(free(model, encoder, samples)), JUDGED]
        if arm.form == "heads":
            found[f"{title}, constrained"] = [sum(constrained(TreeDecider(model, heads), samples)), JUDGED]
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


def result(arm: Arm, seed: int, out: Path, name: str) -> dict[str, Any]:
    """Return what a run found; a finished one is read from its folder, which arms of one setting share."""
    said = json.dumps(asdict(arm), sort_keys=True)
    folder = out / f"{arm.form}-{hashlib.sha256(said.encode()).hexdigest()[:10]}-{seed}"
    if not (folder / "result.json").is_file():
        found = trained_and_judged(arm, seed, folder, f"{name}, seed {seed}")
        replace_file(folder / "result.json", json.dumps(found) + "\n")
    known: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    return known


def share(counts: Sequence[Sequence[int]]) -> str:
    """Return the mean share of the seeds, half its 95 % interval, and each seed's share, in percent."""
    shares = [100 * right / count for right, count in counts]
    each = ", ".join(f"{one:.1f}" for one in shares)
    if len(shares) not in T_95:
        return each
    return f"{fmean(shares):.1f} ± {T_95[len(shares)] * stdev(shares) / math.sqrt(len(shares)):.1f}: {each}"


def compare(given: argparse.Namespace) -> str:
    """Run an experiment and return its table."""
    lines = []
    seeds = range(given.seed, given.seed + given.seeds)
    for name, arm in EXPERIMENTS[given.experiment].items():
        arm = replace(arm, tokens=arm.tokens * given.scale)
        found = [result(arm, seed, given.out, name) for seed in seeds]
        told = {key: share([one[key] for one in found]) for key, value in found[0].items() if isinstance(value, list)}
        rows = f"{found[0]['rows']:,} rows of {found[0]['tokens_a_row']} tokens"
        lines.append("; ".join([f"{name}: {rows}", *(f"{key} {value}" for key, value in told.items())]))
    return "\n".join(["Right calls, % (mean ± 95 %: each seed)", *lines])


if __name__ == "__main__":
    parser = options(__doc__, "runs/heads_or_json")
    parser.add_argument("experiment", choices=[*EXPERIMENTS], help="what is compared")
    parser.add_argument("--seeds", type=int, default=3, help="models of each arm (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the training tokens, for a trial (%(default)s)")
    run(parser, compare)
