"""`rtcontrol bench sizes`: one decision by models of the sizes that people deploy, of random weights, on a GPU."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rtcontrol.bench.decide import WARM_UP, bench_tools
from rtcontrol.bench.shapes import RANDOM, Shaped, eight_token_heads
from rtcontrol.bench.timing import Stopwatch, like, stepped
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.paged import PagedModel
from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.telemetry.histogram import Series

# As their configurations have them (Qwen2.5), but for the vocabulary.
SHAPES = {
    "qwen2.5-0.5b": ModelShape(896, 24, 14, 2, 4864),
    "qwen2.5-1.5b": ModelShape(1536, 28, 12, 2, 8960),
    "qwen2.5-3b": ModelShape(2048, 36, 16, 2, 11008),
}
EVERY_SLOW = 5
MADE_BY: tuple[dict[str, Any], ...] = ({}, {"device": "cuda", "dtype": torch.bfloat16})  # without a GPU, and with one


def a_gpu() -> None:
    """Raises UserError where there is none: on a CPU these take minutes a call."""
    if not torch.cuda.is_available():
        raise UserError("There is no GPU to measure models of these sizes on.", "Name one: rtcontrol bench sizes NAME.")


def bench_sizes(
    names: Sequence[str], decisions: int, dtype: str, threads: int | None, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """By shape: all ways of `bench decide` for four heads whose values have eight tokens, told apart by the last; on a
    GPU one pass also without graphs. Raises UserError for a shape that is none."""
    if unknown := [name for name in names if name not in SHAPES]:
        raise UserError(f"There is no shape {unknown[0]!r}.", f"Choose {', '.join(SHAPES)}.")
    if not names:
        a_gpu()
    gpu = torch.cuda.is_available()
    found, step = dict[str, Any](), stepped(progress, len(names or SHAPES) * (decisions + WARM_UP))
    for name in names or SHAPES:
        with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as folder:
            made = eight_token_heads(Path(folder), decisions + WARM_UP, shape=SHAPES[name], **MADE_BY[gpu])
            found[name] = bench_size(made, dtype, threads, step)
        gc.collect()  # the weights go before the next ones come
        if gpu:
            torch.cuda.empty_cache()
    return found


def bench_size(made: Shaped, dtype: str, threads: int | None, step: Callable[[int], None]) -> dict[str, Any]:
    """Of one checkpoint."""
    spec = DeciderSpec(str(made.folder), tuple(made.tools), dtype=dtype, threads=threads)
    result = bench_tools(spec, made.asked, EVERY_SLOW, step)
    session = replace(spec).build()
    assert isinstance(session.runner, TorchRunner)
    model, raw = session.runner.model, list[float]()
    if isinstance(model, PagedModel):
        watch, kept = Stopwatch(model.device), dict(model.passes)
        model.passes.clear()
        with like(session.runner):
            for i, one in enumerate(made.asked):
                took = watch.time(partial(session.decide, one.observation, one.instruction))[1]
                raw += [took.wall_ms] if i >= WARM_UP else []
        model.passes.update(kept)
        result["ms"]["without_graphs"] = Series(raw).summary()
    result["info"]["model"] = RANDOM
    return result
