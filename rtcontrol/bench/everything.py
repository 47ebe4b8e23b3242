"""`rtcontrol bench all`: every figure of docs/benchmarks.md, one JSON file a bench; goes on where it stopped."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rtcontrol.bench.batch import SIZES, bench_batch
from rtcontrol.bench.decide import WARM_UP, bench_tools
from rtcontrol.bench.dtype import compare
from rtcontrol.bench.heads import bench_heads
from rtcontrol.bench.memory import bench_memory
from rtcontrol.bench.prefix import bench_prefix
from rtcontrol.bench.situations import AGENTS, schemas, situations
from rtcontrol.bench.timing import without_raw
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.record.machine import describe

Progress = Callable[[int, int], None]  # done, of
# Schemas of `decide`, and the function that every way is held to; `long` is written in the lander's words.
HELD = {"bundled": None, "long": None, "long_arguments": "land_now"}


@dataclass(frozen=True)
class Options:
    """What is common to the benches of decisions. `quick`: a few of each, to see that it works."""

    model: str = "lander"
    agent: str = "lander"
    dtype: str = "auto"
    threads: int | None = None
    quick: bool = False

    def spec(self, tools: str) -> DeciderSpec:
        """A session with the agent's own tools (`bundled`) or `long`."""
        return DeciderSpec(self.model, tuple(schemas(self.agent)[tools]), dtype=self.dtype, threads=self.threads)


def decide(options: Options, decisions: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench decide`."""
    names = tuple(HELD) if options.agent == "lander" else ("bundled",)
    asked, found = situations(options.agent, decisions + WARM_UP), dict[str, Any]()
    every, done = max(5, decisions // 100), 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(done, len(names) * len(asked))

    for name in names:
        spec = options.spec(name.removesuffix("_arguments"))
        found[name] = bench_tools(spec, asked, every, step, HELD[name])
    return {"bench": "decide", "agent": options.agent, "model": options.model, "schemas": found}


def _counted(progress: Progress, total: int) -> Callable[[], None]:
    done = iter(range(1, total + 1))
    return lambda: progress(next(done), total)


def batch(options: Options, rounds: int, progress: Progress, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """The document of `bench batch`."""
    asked = situations(options.agent, 1_000)
    result = bench_batch(options.spec("bundled"), asked, sizes, rounds, _counted(progress, rounds))
    return {"bench": "batch", "agent": options.agent, "model": options.model, "result": result}


def heads(options: Options, rounds: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench heads`."""
    asked = situations(options.agent, 200)
    result = bench_heads(options.spec("bundled"), asked, rounds, _counted(progress, rounds))
    return {"bench": "heads", "agent": options.agent, "model": options.model, "result": result}


def prefix(options: Options, rounds: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench prefix`."""
    asked, step = situations(options.agent, 200), _counted(progress, 2 * rounds)
    found = {name: bench_prefix(options.spec(name), asked, rounds, step) for name in ("bundled", "long")}
    return {"bench": "prefix", "agent": options.agent, "model": options.model, "schemas": found}


def memory(
    options: Options, sessions: int, progress: Progress, lists: tuple[str, ...] = ("bundled", "long")
) -> dict[str, Any]:
    """The document of `bench memory`."""
    step = _counted(progress, 3)
    result = bench_memory(options.model, options.agent, sessions, lambda _: step(), lists)
    return {"bench": "memory", "agent": options.agent, "model": options.model, "result": result}


def dtype(options: Options, decisions: int, progress: Progress) -> dict[str, Any]:
    """The document of `bench dtype`."""
    own = [(options.agent, options.model, name) for name in ("bundled", "long")]
    others = [(name, name, "bundled") for name in AGENTS if name != options.agent] if options.model in AGENTS else []
    step = _counted(progress, decisions * len(own + others))
    found = {}
    for agent, model, name in own + others:
        spec = DeciderSpec(model, tuple(schemas(agent)[name]), threads=options.threads)
        title = f"{model}, {'its own tools' if name == 'bundled' else name}"
        found[title] = compare(spec, situations(agent, decisions), step)
    return {"bench": "dtype", "agent": options.agent, "model": options.model, "results": found}


Measure = Callable[[Options, Progress], dict[str, Any]]


def _of(agent: str) -> Measure:
    def run(options: Options, progress: Progress) -> dict[str, Any]:
        own = Options(agent, agent, options.dtype, options.threads)
        return decide(own, 20 if options.quick else 300, progress)

    return run


MEASURES: dict[str, Measure] = {
    "decide": lambda o, p: decide(o, 20 if o.quick else 1_000, p),
    "decide-paddle": _of("paddle"),
    "decide-driver": _of("driver"),
    "batch": lambda o, p: batch(o, 2 if o.quick else 30, p, SIZES[:4] if o.quick else SIZES),
    "heads": lambda o, p: heads(o, 3 if o.quick else 100, p),
    "prefix": lambda o, p: prefix(o, 2 if o.quick else 20, p),
    "memory": lambda o, p: memory(o, 2 if o.quick else 20, p),
    "dtype": lambda o, p: dtype(o, 16 if o.quick else 300, p),
}


def path_of(folder: Path, name: str) -> Path:
    """Where the figures of a bench stand: on a machine with a GPU apart from those of its CPU."""
    return folder / f"{name}{'-gpu' if torch.cuda.is_available() else ''}.json"


def measure(name: str, options: Options, folder: Path, progress: Progress) -> bool:
    """Measure and write what is not there yet; whether it had to be."""
    path = path_of(folder, name)
    if path.exists():
        return False
    # Before anything is measured: the load is the others'. The kernel's build says nothing to a reader.
    machine, began = {**describe(), "system": platform.system()}, datetime.now(UTC)
    found = without_raw(MEASURES[name](options, progress))
    document = {**found, "quick": options.quick, "measured": began.strftime("%Y-%m-%d"), "machine": machine}
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(temporary, path)
    return True
