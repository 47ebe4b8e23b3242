"""`rtcontrol bench batch`: many decisions together, beside one alone and beside the bare forward of the same tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.engines.ragged import Part, RaggedBatch
from rtcontrol.report.series import Series

INSTRUCTION = "hover at 0.7"
WARM_UP = 2


def bench_batch(
    model: str,
    tools: Sequence[dict[str, Any]],
    observations: Sequence[str],
    sizes: Sequence[int],
    rounds: int,
    threads: int,
    progress: Callable[[], None],
) -> dict[str, Any]:
    """Milliseconds by size: `together`, and `bare`, the ragged forward over the uncached tokens and first trees alone.
    Both take turns in every round; `alone` is a decision with nothing cached but the prefix."""
    decider = DeciderSpec(model, tuple(tools), threads=threads).build()
    engine: Any = decider.engine
    torch.set_num_threads(threads)
    prefix = decider.template.prefix_ids(decider.plan.tools)
    suffixes = [decider.template.suffix_ids(INSTRUCTION, text) for text in observations]
    core = engine.core
    tree = core.begin().work
    raw: dict[str, dict[int, list[float]]] = {way: {n: [] for n in sizes} for way in ("together", "bare")}
    alone: list[float] = []

    def clock(run: Callable[[], Any]) -> float:
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) * 1e3

    for turn in range(rounds + WARM_UP):
        keep = turn >= WARM_UP
        engine.sequence.start(prefix, 1)
        if engine.sequence.fresh:
            engine.sequence.run(())
        took = clock(partial(engine.decode, suffixes[turn % len(suffixes)]))
        alone += [took] if keep else []
        for size in sizes:
            chosen = [suffixes[(turn + i) % len(suffixes)] for i in range(size)]
            took = clock(partial(engine.decode_many, chosen))
            parts = [(i, _part(ids, tree)) for i, ids in enumerate(chosen)]
            room = max(len(part.tokens) for _, part in parts)
            batch = RaggedBatch(engine.model, len(prefix), size, room)
            bare = clock(partial(batch.run, parts))
            if keep:
                raw["together"][size].append(took)
                raw["bare"][size].append(bare)
        progress()
    return {
        "alone_ms": Series(alone).summary(),
        "ms": {way: {n: Series(values).summary() for n, values in by.items()} for way, by in raw.items()},
        "raw_ms": {"alone": alone, **raw},
        "tokens_each": len(suffixes[0]) + len(tree.tokens),
        "threads": threads,
        "rounds": rounds,
    }


def _part(suffix: Sequence[int], tree: Any) -> Part:
    end = len(suffix)
    parents = [*range(-1, end - 1), *(p + end if p >= 0 else end - 1 for p in tree.parents)]
    return Part([*suffix, *tree.tokens], parents, [*range(end), *(end + d for d in tree.depths)])
