"""`rtcontrol bench all`: every figure of docs/benchmarks.md, one JSON file a bench; goes on where it stopped."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rtcontrol.bench import crowd as bench_crowd
from rtcontrol.bench import decide as decide_bench
from rtcontrol.bench import pretrained as pretrained_bench
from rtcontrol.bench.batch import SIZES, bench_batch
from rtcontrol.bench.chat import bench_chat, tokenizer_of_qwen
from rtcontrol.bench.dtype import TOLERANCE, WARM_UP, compare, compare_engines
from rtcontrol.bench.equal import bench_equal
from rtcontrol.bench.heads import bench_heads
from rtcontrol.bench.load import load as bench_load
from rtcontrol.bench.memory import bench_memory
from rtcontrol.bench.options import BenchOptions
from rtcontrol.bench.prefix import bench_prefix
from rtcontrol.bench.pretrained import gemma_file
from rtcontrol.bench.serving import ServingOptions, bench_serving, python_with_vllm
from rtcontrol.bench.situations import AGENTS, schemas, situations
from rtcontrol.bench.sizes import a_gpu, bench_sizes
from rtcontrol.bench.speculative import bench_speculative
from rtcontrol.bench.timing import Progress, stepped, summaries, without_raw
from rtcontrol.bench.wire import BLOCK
from rtcontrol.bench.wire import bench as bench_wire
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import replace_file
from rtcontrol.models.runners.registry import installed
from rtcontrol.telemetry.histogram import Series
from rtcontrol.telemetry.run_folder import describe

BUSY = 0.5  # of the machine's load before a bench begins
EVERY_SLOW = 5  # situations: the JSON ways decide one of them
# Schemas of `decide`, and the function that every way is held to; `long` is written in the lander's words.
HELD = {"bundled": None, "long": None, "long_arguments": "land_now"}


def decide(
    options: BenchOptions,
    decisions: int,
    worst: int,
    progress: Progress,
    ready: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """The document of `bench decide`: `decisions` in all ways, `worst` by one pass and its floor. `ready` is given the
    document of each list of tools when it is measured."""
    document: dict[str, Any] = {"bench": "decide", "agent": options.agent, "model": options.model}
    names = tuple(HELD) if options.agent == "lander" else ("bundled",)
    asked, found = situations(options.agent, max(decisions, worst) + decide_bench.WARM_UP), dict[str, Any]()
    step = stepped(progress, len(names) * len(asked))
    for name in names:
        spec = options.spec(name.removesuffix("_arguments"))
        found[name] = decide_bench.bench_tools(
            spec, asked, EVERY_SLOW, step, HELD[name], decisions + decide_bench.WARM_UP
        )
        ready({**document, "schemas": {name: found[name]}, "part": True})
    return {**document, "schemas": found}


def batch(options: BenchOptions, rounds: int, progress: Progress, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """The document of `bench batch`."""
    asked = situations(options.agent, 1_000)
    result = bench_batch(options.spec("bundled"), asked, sizes, rounds, stepped(progress, rounds))
    return {"bench": "batch", "agent": options.agent, "model": options.model, "result": result}


def heads(options: BenchOptions, rounds: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench heads`."""
    asked = situations(options.agent, 200)
    result = bench_heads(options.spec("bundled"), asked, rounds, stepped(progress, rounds))
    return {"bench": "heads", "agent": options.agent, "model": options.model, "result": result}


def prefix(options: BenchOptions, rounds: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench prefix`."""
    asked, step = situations(options.agent, 200), stepped(progress, 2 * rounds)
    found = {name: bench_prefix(options.spec(name), asked, rounds, step) for name in ("bundled", "long")}
    return {"bench": "prefix", "agent": options.agent, "model": options.model, "schemas": found}


def memory(
    options: BenchOptions, sessions: int, progress: Progress, lists: tuple[str, ...] = ("bundled", "long")
) -> dict[str, Any]:
    """The document of `bench memory`."""
    step = stepped(progress, 3)
    result = bench_memory(options.model, options.agent, sessions, lambda _: step(), lists)
    return {"bench": "memory", "agent": options.agent, "model": options.model, "result": result}


def dtype(options: BenchOptions, decisions: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench dtype`."""
    own = [(options.agent, options.model, name) for name in ("bundled", "long")]
    others = [(name, name, "bundled") for name in AGENTS if name != options.agent] if options.model in AGENTS else []
    step = stepped(progress, decisions * len(own + others))
    found = {}
    for agent, model, name in own + others:
        spec = DeciderSpec(model, tuple(schemas(agent)[name]), threads=options.threads)
        title = f"{model}, {'its own tools' if name == 'bundled' else name}"
        found[title] = compare(spec, situations(agent, decisions), step)
    return {"bench": "dtype", "agent": options.agent, "model": options.model, "results": found}


def pretrained(
    options: BenchOptions,
    models: Sequence[str],
    decisions: int,
    dtypes: Sequence[str],
    progress: Progress,
    ready: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """The document of `bench pretrained`; without models, of Gemma's cuts."""
    asked, tools = situations(options.agent, decisions + pretrained_bench.WARM_UP), schemas(options.agent)["bundled"]
    before = round(os.getloadavg()[0], 2)

    def document(found: dict[str, Any]) -> dict[str, Any]:
        load = [before, round(os.getloadavg()[0], 2)]
        told = {"instructions": pretrained_bench.instructions(), "tolerance": TOLERANCE, "load": load}
        busy = before > BUSY  # by others: our own work counts afterwards
        return {"bench": "pretrained", "agent": options.agent, **told, "busy": busy, "models": found}

    with ExitStack() as stack:
        chosen = list(models) or stack.enter_context(pretrained_bench.gemmas())
        found = pretrained_bench.bench_pretrained(
            chosen, tools, asked, dtypes, options.threads, progress, lambda part: ready(document(part))
        )
    return document(found)


def equal(
    options: BenchOptions, decisions: int, dtypes: Sequence[str], seed: int, keep: Path | None, progress: Progress
) -> dict[str, Any]:
    """The document of `bench equal`."""
    result = bench_equal(options.model, dtypes, decisions, seed, options.threads, keep, progress)
    return {"bench": "equal", "model": options.model, "result": result}


def _equal_gemma(options: BenchOptions, progress: Progress) -> dict[str, Any]:
    with pretrained_bench.gemmas((18,)) as (model,):
        own = replace(options, model=model, threads=options.threads or 1)
        found = equal(own, 10 if options.quick else 500, pretrained_bench.dtypes_here(), 0, None, progress)
    return {**found, "model": "Gemma 3 270M"}


def engines(options: BenchOptions, names: Sequence[str], decisions: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench engines`; without names, of all engines that are installed."""
    asked = situations(options.agent, decisions + WARM_UP)
    result = compare_engines(options.spec("bundled"), names or installed(), asked, stepped(progress, len(asked)))
    return {"bench": "engines", "agent": options.agent, "model": options.model, "result": result}


def wire(options: BenchOptions, trips: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench wire`."""
    step = stepped(progress, trips)
    found = bench_wire(trips, options.model, lambda _: step(BLOCK))
    ms, over = (summaries(found[key]) for key in ("ms", "over_decide_ms"))
    raw = {"raw_ms": found["ms"], "raw_over_decide_ms": found["over_decide_ms"]}
    rest = {"bytes": found["bytes"], "observation_bytes": found["observation_bytes"], "trips": trips}
    return {"bench": "wire", "model": options.model, "ms": ms, "over_decide_ms": over, **raw, **rest}


# Clients, their rate, the model, and whether an HTTP client with new tools and long prompts is beside them.
LOADS = ((8, 16.0, "noop", False), (50, 2.0, "noop", False), (1, 30.0, "lander", True))


def load(seconds: float, progress: Progress, cases: Sequence[tuple[int, float, str, bool]] = LOADS) -> dict[str, Any]:
    """The document of `bench load`."""
    found, step = [], stepped(progress, seconds * len(cases))
    for clients, hz, model, http in cases:
        one = bench_load(clients, hz, seconds, model, step, http)
        way, answers = one.pop("way_ms"), one.pop("http_s")
        answered = {"answers": len(answers), "s": Series(answers).summary()} if http else None
        found.append({**one, "way_ms": Series(way).summary(), "raw_way_ms": way, "http": answered})
    return {"bench": "load", "cases": found}


def crowd(
    members: int, hz: float, seconds: float, model: str, door: tuple[int, float, float], rounds: int, progress: Progress
) -> dict[str, Any]:
    """The document of `bench crowd`; the `door`'s members, their rate and its seconds."""
    step = stepped(progress, seconds + door[2] + rounds + 2)
    found = {
        "batch": bench_crowd.batches(model, rounds, step=step),
        "crowd": bench_crowd.serve(members, hz, seconds, model, 2 * hz, True, step),
        "door": bench_crowd.serve(*door, "noop", door[1], True, step),
    }
    return {"bench": "crowd", **found}


def serving(options: ServingOptions, decisions: int, python: Path, progress: Progress) -> dict[str, Any]:
    """The document of `bench serving`."""
    return {"bench": "serving", "cases": bench_serving(options, decisions, python, progress)}


def chat(
    model: str | None, agents: Sequence[str], decisions: int, threads: int | None, progress: Progress
) -> dict[str, Any]:
    """The document of `bench chat`."""
    return {"bench": "chat", **bench_chat(model, agents, decisions, threads, progress)}


def speculative(decisions: int, threads: int | None, progress: Progress) -> dict[str, Any]:
    """The document of `bench speculative`."""
    return {"bench": "speculative", "result": bench_speculative(decisions, threads, progress)}


def sizes(options: BenchOptions, names: Sequence[str], decisions: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench sizes`."""
    found = bench_sizes(names, decisions, options.dtype, options.threads, progress)
    return {"bench": "sizes", "shapes": found}


Measure = Callable[[BenchOptions, Progress], dict[str, Any]]


def _of(agent: str) -> Measure:
    def run(options: BenchOptions, progress: Progress) -> dict[str, Any]:
        own = BenchOptions(agent, agent, options.dtype, options.threads)
        return decide(own, 20 if options.quick else 300, 20 if options.quick else 1_000, progress)

    return run


MEASURES: dict[str, Measure] = {
    "decide": lambda o, p: decide(o, 20 if o.quick else 300, 20 if o.quick else 1_000, p),
    **{f"decide-{agent}": _of(agent) for agent in AGENTS[1:]},
    "serving": lambda o, p: serving(ServingOptions(), 10 if o.quick else 100, python_with_vllm(), p),
    "chat": lambda o, p: chat(None, (), 2 if o.quick else 60, o.threads, p),
    "speculative": lambda o, p: speculative(4 if o.quick else 60, o.threads, p),
    "sizes": lambda o, p: sizes(o, (), 10 if o.quick else 30, p),
    "batch": lambda o, p: batch(o, 2 if o.quick else 30, p, SIZES[:4] if o.quick else SIZES),
    "heads": lambda o, p: heads(o, 3 if o.quick else 100, p),
    "prefix": lambda o, p: prefix(o, 2 if o.quick else 20, p),
    "memory": lambda o, p: memory(o, 2 if o.quick else 20, p),
    "wire": lambda o, p: wire(o, 100 if o.quick else 2_000, p),
    "load": lambda o, p: load(2.0 if o.quick else 20.0, p, LOADS[:1] if o.quick else LOADS),
    "crowd": lambda o, p: crowd(
        64, 5.0, 2.0 if o.quick else 600.0, "lander", (500, 5.0, 2.0 if o.quick else 60.0), 3 if o.quick else 20, p
    ),
    "dtype": lambda o, p: dtype(o, 16 if o.quick else 300, p),
    "engines": lambda o, p: engines(o, (), 8 if o.quick else 500, p),
    "equal": _equal_gemma,
    "pretrained": lambda o, p: pretrained(
        replace(o, threads=o.threads or 1), (), 10 if o.quick else 100, pretrained_bench.dtypes_here(), p
    ),
}


# What a bench needs that is not everywhere; raises UserError.
NEEDS: dict[str, Callable[[], Any]] = {
    "serving": python_with_vllm,
    "chat": tokenizer_of_qwen,
    "sizes": a_gpu,
    "pretrained": gemma_file,
}


def missing(name: str) -> str | None:
    """Why a bench cannot be measured here."""
    try:
        NEEDS.get(name, lambda: None)()
    except UserError as error:
        return f"{error.what} {error.remedy}"
    return None


def path_of(folder: Path, name: str) -> Path:
    """Where the figures of a bench stand: on a machine with a GPU apart from those of its CPU."""
    return folder / f"{name}{'-gpu' if torch.cuda.is_available() else ''}.json"


def measure(name: str, options: BenchOptions, folder: Path, progress: Progress) -> bool:
    """Measure and write what is not there yet; whether it had to be."""
    path = path_of(folder, name)
    if path.exists():
        return False
    # Before anything is measured: the load is the others'. The kernel's build says nothing to a reader.
    machine, began = {**describe(), "system": platform.system()}, datetime.now(UTC)
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    found = without_raw(MEASURES[name](options, progress))
    document = {**found, "quick": options.quick, "measured": began.strftime("%Y-%m-%d"), "machine": machine}
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(document, indent=1) + "\n")
    return True
