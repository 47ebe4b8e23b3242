"""`rtcontrol bench train`: packed-tree training against the paper's separate sequences, same rows, same model."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.train.loss import tree_loss
from rtcontrol.models.train.packing import PackedBatch, pack, pad_together, separate
from rtcontrol.models.train.rows import EncodedRow, HeadTarget
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.vocabulary import build_tokenizer, number_words

PROMPT = 300
PREFIX = 200
HEADS = 8
BASELINE_BATCHES = (4, 8, 16, 32, 64)


def random_rows(count: int, tokens: int, seed: int, shared_prefix: bool) -> tuple[list[int], list[EncodedRow]]:
    """Prompts of 300 tokens with eight heads of 1 to 8 value tokens. Each row its own prompt, or the first 200 tokens
    the same for all."""
    rng = random.Random(seed)
    prefix = [rng.randrange(tokens) for _ in range(PREFIX if shared_prefix else 1)]
    rows = []
    for _ in range(count):
        suffix = tuple(rng.randrange(tokens) for _ in range(PROMPT - len(prefix)))
        heads = []
        for _ in range(HEADS):
            ids = tuple(rng.randrange(tokens) for _ in range(1 + rng.randint(1, 8)))
            heads.append(HeadTarget(ids, (*ids[1:], rng.randrange(tokens)), (1.0,) * len(ids)))
        rows.append(EncodedRow(suffix, tuple(heads)))
    return prefix, rows


def compare(rows: int, shape: ModelShape, progress: Callable[[str], None]) -> dict[str, Any]:
    """Samples a second of each way (forward, backward; a sample is one row with all its heads)."""
    tokenizer = build_tokenizer(["a b c"], number_words())
    wrapped = STTokenizer(tokenizer)
    model = new_model(shape, tokenizer, 0).train()
    prefix, each = random_rows(rows, wrapped.size, 0, shared_prefix=False)
    found: dict[str, Any] = {}
    for batch in BASELINE_BATCHES:
        progress(f"separate sequences, batch {batch}")
        sequences = sorted(separate(prefix, each), key=lambda b: b.tokens.shape[1])
        parts = [pad_together(sequences[i : i + batch]) for i in range(0, len(sequences), batch)]
        found[f"separate, batch {batch}"] = rows / _seconds(model, parts)
    for group in (1, 2, 4, 8):
        progress(f"packed tree, one sample a sequence, {group} together")
        found[f"packed, {group} together"] = rows / _seconds(
            model, [pack(prefix, each[i : i + group]) for i in range(0, rows, group)]
        )
    progress("packed trees sharing a prefix of 200 tokens")
    shared, together = random_rows(rows, wrapped.size, 1, shared_prefix=True)
    found["packed, prefix shared by 32"] = rows / _seconds(
        model, [pack(shared, together[i : i + 32]) for i in range(0, rows, 32)]
    )
    best = max(v for k, v in found.items() if k.startswith("separate"))
    packed = max(v for k, v in found.items() if "together" in k)
    return {
        "samples_per_s": found,
        "ratios": {
            "packed_over_separate": packed / best,
            "shared_prefix_over_packed": found["packed, prefix shared by 32"] / packed,
        },
    }


def _seconds(model: Any, batches: Sequence[PackedBatch]) -> float:
    tree_loss(model, batches[0])[0].backward()
    model.zero_grad()
    began = time.perf_counter()
    for batch in batches:
        tree_loss(model, batch)[0].backward()
        model.zero_grad()
    return time.perf_counter() - began
