"""`rtcontrol bench train`: compare the speed of packed-tree training with that of the paper's separate sequences.

Both train on the same rows. The model has random weights in the shape of Qwen2.5-0.5B, with the paper's LoRA and
trainable tied embeddings: two layers in fp32 on a CPU, all layers in bf16 on a GPU. A row has a prompt and eight heads.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers as hf

from rtcontrol.bench.timing import Progress, wait_for_device
from rtcontrol.models.train.encode import EncodedRow, HeadTarget
from rtcontrol.models.train.finetune import set_trainable
from rtcontrol.models.train.packing import PackedBatch, pack_by_tools, pad_batches, separate_batches, tree_loss
from rtcontrol.models.train.recipe import FinetuneRecipe

HEADS = 8
VOCABULARY = 151_936
PROMPTS = 200, 400  # shortest and longest prompt in tokens; with longer prompts, packing saves more


def measure(samples: int | None, progress: Progress) -> dict[str, Any]:
    """Return the result document of `bench train`: the samples per second of each method.

    Each method is timed for one forward and backward pass over all samples, without an optimizer step.
    """
    gpu = torch.cuda.is_available()
    count = samples or (64 if gpu else 4)
    model, groups = _model(gpu), random_groups(count)
    speeds: dict[str, float] = {}
    batches = _batches(groups)
    for done, (way, parts) in enumerate(batches.items()):
        progress(done, len(batches))
        speeds[way] = count / _seconds(model, [part.to("cuda" if gpu else "cpu") for part in parts])
        model.zero_grad()
    device = torch.cuda.get_device_name() if gpu else "cpu"
    return {"bench": "train", "device": device, "samples": count, "samples_per_s": speeds}


def _model(gpu: bool) -> Any:
    torch.manual_seed(0)
    config = hf.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24 if gpu else 2,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    device = torch.device("cuda" if gpu else "cpu")
    with device:
        base = hf.Qwen2ForCausalLM(config)
    return set_trainable(base.to(torch.bfloat16) if gpu else base, FinetuneRecipe()).to(device).train().get_base_model()


def random_groups(count: int) -> list[EncodedRow]:
    """Return random samples of the size of calls in public data sets. Prompts have no common prefix. A call has a name
    of 4 to 9 tokens and two or three values of 1 to 6 tokens, each with an end token; other heads are null."""
    rng = random.Random(0)

    def ids(minimum: int, maximum: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(minimum, maximum)))

    def head(value: tuple[int, ...]) -> HeadTarget:
        start = (rng.randrange(VOCABULARY), *value)
        return HeadTarget(start, (*start[1:], rng.randrange(VOCABULARY)), (1.0,) * len(start))

    groups = []
    for _ in range(count):
        values = [ids(1, 6) for _ in range(rng.randint(2, 3))]
        heads = [(), ids(4, 9), *values, *[()] * (HEADS - 2 - len(values))]
        groups.append(EncodedRow(ids(*PROMPTS), tuple(map(head, heads))))
    return groups


def _batches(groups: Sequence[EncodedRow]) -> dict[str, list[PackedBatch]]:
    """Return the batches of each method. Separate sequences are sorted by length, to need little padding."""
    sequences = sorted(separate_batches((1,), groups), key=lambda sequence: sequence.tokens.shape[1])
    ways: dict[str, list[PackedBatch]] = {}
    for n in (8, 32, 64):
        parts = [pad_batches(sequences[i : i + n]) for i in range(0, len(sequences), n)]
        ways[f"separate, length-sorted, batch {n}"] = parts
    for n in (1, 4, 16):
        ways[f"packed, {n} together"] = [pack_by_tools((1,), groups[i : i + n]) for i in range(0, len(groups), n)]
    return ways


def _seconds(model: Any, batches: Sequence[PackedBatch]) -> float:
    def step(batch: PackedBatch) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=batch.tokens.is_cuda):  # the trainer does the same
            loss = tree_loss(model, batch)[0]
        loss.backward()

    step(max(batches, key=lambda batch: batch.tokens.numel()))  # warm up with the batch that needs most memory
    model.zero_grad()
    wait_for_device(batches[0].tokens.device)
    began = time.perf_counter()
    for batch in batches:
        step(batch)
    wait_for_device(batches[0].tokens.device)
    return time.perf_counter() - began
