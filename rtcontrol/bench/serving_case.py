"""One case of `rtcontrol bench serving`, in a process of its own: a job on standard input, lines of JSON out.

All ways are asked for the same situations in turns; who begins changes from one to the next.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from rtcontrol.bench.situations import Situation
from rtcontrol.bench.timing import Stopwatch, Turns, like, rotated
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.telemetry.histogram import Series

T = TypeVar("T")
WARM_UP = 10
TRIED = 6  # situations by each number of threads
OURS, BASELINES = "one_pass", ("simpletool", "simpletool_best", "vllm_json")


def quickest(made: Sequence[T], decide: Callable[[T, Situation], Any], asked: Sequence[Situation]) -> T:
    """Of several of one kind the one that decides soonest, now and here."""
    took = [Series() for _ in made]
    for one in asked if len(made) > 1 else ():
        for each, spent in zip(made, took, strict=True):
            began = time.perf_counter()
            decide(each, one)
            spent.add(time.perf_counter() - began)
    return min(zip(made, took, strict=True), key=lambda pair: pair[1].percentile(50.0) if pair[1].count else 0.0)[0]


def counts_of(threads: int | None) -> list[int]:
    """Numbers of threads to try: as told, else one and all."""
    return [threads] if threads is not None else sorted({1, torch.get_num_threads()})


def measure(job: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    """Milliseconds by way, from text to typed call, and what each wrote."""
    from rtcontrol.bench.vllm_ways import BestForm, InProcess, JsonForm, Published

    asked = [Situation(*one) for one in job["asked"]]
    dtype, limit, tools = job["dtype"], job["limit"], tuple(job["tools"])
    spec = DeciderSpec(job["model"], tools, dtype=dtype)
    sessions = [replace(spec, threads=n).build() for n in counts_of(job["threads"])]
    ours = quickest(sessions, lambda session, one: session.decide(one.observation, one.instruction), asked[:TRIED])
    published = Published(ours, dtype, limit)  # before the other engine: it chooses for all that come
    folder, backend = ours.checkpoint.folder, job["backend"]
    forms = [BestForm(ours, InProcess(folder, dtype, n, backend), limit) for n in counts_of(job["vllm_threads"])]
    best = quickest(forms, BestForm.decide, asked[:TRIED])
    engine, written = best.engine, JsonForm(ours, best.engine)
    assert published.prompts(asked[0]) == best.prompts(asked[0]), "the same prompts"
    ways: dict[str, Callable[[Situation], Any]] = {
        OURS: lambda one: ours.decide(one.observation, one.instruction),
        **dict(zip(BASELINES, (published.decide, best.decide, written.decide), strict=True)),
    }
    turns = Turns(ways, WARM_UP)
    counts: list[dict[str, float]] = []
    watch = Stopwatch(torch.device("cpu"))
    try:
        with like(ours.runner) as threads:  # type: ignore[arg-type]
            for i, one in turns.over(asked):
                found, told = dict[str, Any](), dict[str, float]()
                for way in rotated(ways, -i):
                    with published.awake() if way == BASELINES[0] else nullcontext():
                        found[way], took = watch.time(lambda run=ways[way], one=one: run(one))  # type: ignore[misc]
                    turns.add({way: took.wall_ms})
                    if way != OURS:
                        by = published if way == BASELINES[0] else engine
                        told |= {f"{way}_tokens": by.tokens, f"{way}_cached": by.cached}
                        told |= {f"{way}_steps": engine.steps} if by is engine else {}
                made = found.pop(OURS)
                told |= {"one_pass_passes": made.forward_passes, "one_pass_tokens": made.tokens}
                told |= {f"{way}_equal": call == made.call for way, call in found.items()}
                told |= {f"{way}_legal": call is not None for way, call in found.items()}
                if turns.counted:
                    counts.append(told)
                progress(i + 1)
    finally:
        published.close()
    return {
        **turns.figures(),
        "counts": {name: round(float(np.mean([c[name] for c in counts])), 3) for name in counts[0]},
        "decisions": len(counts),
        "heads": len(ours.plan.heads),
        "prompt_tokens": len(best.prompts(asked[-1])[0]) - 1,
        "threads": {"ours": threads, "vllm": engine.threads},
        "backend": backend,
        "info": ours.info(),
    }


def main() -> None:
    """Progress and the result, a line each."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that vLLM's processes, which stand still, are ended
    job = json.load(sys.stdin)
    print(json.dumps({"result": measure(job, lambda done: print(json.dumps({"done": done}), flush=True))}))


if __name__ == "__main__":
    main()
