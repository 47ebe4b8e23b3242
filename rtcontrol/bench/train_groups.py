"""`rtcontrol bench train --shape qwen2.5-0.5b`: packed trees against the paper's separate sequences.

The model under the paper's LoRA: two layers of it in fp32 on a CPU, all in bf16 on a GPU. A group has eight heads, and
tools and prompt of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers as hf

from rtcontrol.bench.train import HEADS
from rtcontrol.models.train.finetune.config import recipe
from rtcontrol.models.train.finetune.dataset import GroupCollator
from rtcontrol.models.train.finetune.model import TreeLM, adapted
from rtcontrol.models.train.packing import PackedBatch, pad_together, separate
from rtcontrol.models.train.rows import EncodedRow, HeadTarget

SHAPE = "qwen2.5-0.5b"
LAYERS, LAYERS_GPU = 2, 24
VOCABULARY = 151_936
PROMPTS = 200, 400  # tokens; with longer ones less of a group is its heads, and more is saved
COUNT, COUNT_GPU = 4, 64  # groups
SEPARATE, TOGETHER = (8, 16, 32), (1, 2, 4)  # sequences, and groups, in a batch
SEPARATE_GPU, TOGETHER_GPU = (8, 16, 32, 64, 128), (1, 2, 4, 8, 16)


def model(device: torch.device) -> TreeLM:
    """Random weights, LoRA of rank 512 on the MLPs, tied embeddings unfrozen."""
    gpu = device.type == "cuda"
    torch.manual_seed(0)
    config = hf.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=LAYERS_GPU if gpu else LAYERS,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with device:
        base = hf.Qwen2ForCausalLM(config)
    return adapted(base.to(torch.bfloat16) if gpu else base, recipe("paper")).to(device).train()


def random_groups(count: int, seed: int = 0) -> list[EncodedRow]:
    """Prompts of 200 to 400 tokens of which no two begin alike; a name of 4 to 9 tokens, two or three values of 1 to 6,
    each with its end token, and null heads: what single calls of the public sets are like."""
    rng = random.Random(seed)

    def ids(least: int, most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(least, most)))

    def head(value: tuple[int, ...]) -> HeadTarget:
        start = (rng.randrange(VOCABULARY), *value)
        return HeadTarget(start, (*start[1:], rng.randrange(VOCABULARY)), (1.0,) * len(start))

    groups = []
    for _ in range(count):
        values = [ids(1, 6) for _ in range(rng.randint(2, 3))]
        heads = [(), ids(4, 9), *values, *[()] * (HEADS - 2 - len(values))]
        groups.append(EncodedRow(ids(*PROMPTS), tuple(map(head, heads))))
    return groups


def compare(count: int | None, progress: Callable[[str], None]) -> dict[str, Any]:
    """Groups a second of each way, forward and backward, gradients gathered over all groups as a step does: by the
    wall's clock, and by the process's own (`per_cpu_s`), which other work on the machine slows down less."""
    gpu = torch.cuda.is_available()
    device, count = torch.device("cuda" if gpu else "cpu"), count or (COUNT_GPU if gpu else COUNT)
    batches_of, together = (SEPARATE_GPU, TOGETHER_GPU) if gpu else (SEPARATE, TOGETHER)
    trained, groups = model(device), random_groups(count)
    prefix = (1,)
    sequences = sorted(separate(prefix, groups), key=lambda b: b.tokens.shape[1])
    ways: dict[str, list[PackedBatch]] = {
        f"separate, length-sorted, batch {n}": [pad_together(sequences[i : i + n]) for i in range(0, len(sequences), n)]
        for n in batches_of
    }
    packed = GroupCollator(prefix)
    ways |= {f"packed, {n} together": [packed.batch(groups[i : i + n]) for i in range(0, count, n)] for n in together}
    wall: dict[str, float] = {}
    cpu: dict[str, float] = {}
    too_large: list[str] = []
    for way, batches in ways.items():
        progress(way)
        try:
            spent = _seconds(trained, [batch.to(device) for batch in batches])
        except torch.cuda.OutOfMemoryError:
            too_large.append(way)
        else:
            wall[way], cpu[way] = (count / seconds for seconds in spent)
        trained.zero_grad()
        if gpu:
            torch.cuda.empty_cache()
    ratios = {"packed_over_separate": _ratio(wall), "packed_over_separate_per_cpu_s": _ratio(cpu)}
    tokens = {way: sum(b.tokens.numel() for b in batches) for way, batches in ways.items()}
    told = {"device": torch.cuda.get_device_name() if gpu else "cpu", "groups": count, "too_large": too_large}
    return {**told, "samples_per_s": wall, "per_cpu_s": cpu, "tokens": tokens, "ratios": ratios}


def _ratio(speeds: dict[str, float]) -> float:
    """Of the best way of each kind."""
    packed, apart = (max(s for way, s in speeds.items() if way.startswith(kind)) for kind in ("packed", "separate"))
    return packed / apart


def _seconds(trained: TreeLM, batches: Sequence[PackedBatch]) -> tuple[float, float]:
    def step(batch: PackedBatch) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=batch.tokens.is_cuda):  # as the trainer has it
            loss = trained(batch)[0]
        loss.backward()

    step(max(batches, key=lambda b: b.tokens.numel()))  # the one that needs most memory
    trained.zero_grad()
    _wait()
    began, worked = time.perf_counter(), time.process_time()
    for batch in batches:
        step(batch)
    _wait()
    return time.perf_counter() - began, time.process_time() - worked


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
