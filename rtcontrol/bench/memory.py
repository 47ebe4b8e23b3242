"""`rtcontrol bench memory`: what a model and each of its sessions take, in processes of their own.

RSS is all that is in memory, USS what no other process shares; from the kernel's own account (/proc).
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ != "__main__":  # they bring the libraries that the process of its own measures
    from rtcontrol.bench.prefix import empty_cache
    from rtcontrol.bench.situations import schemas, situations
    from rtcontrol.models.errors import UserError

EACH = 2  # decisions of a session
MIB = 1 << 20
SMAPS = Path("/proc/self/smaps_rollup")
QWEN = "qwen2_tokenizer/tokenizer.json"  # in $RTCONTROL_DATA
DATA = "RTCONTROL_DATA"


def used() -> dict[str, float]:
    """MiB of this process: {"rss", "uss"}."""
    gc.collect()
    found = {"rss": 0, "uss": 0}
    for line in SMAPS.read_text().splitlines():
        name, _, rest = line.partition(":")
        size = int(rest.split()[0]) << 10 if rest.endswith("kB") else 0
        found["rss"] += size if name == "Rss" else 0
        found["uss"] += size if name in ("Private_Clean", "Private_Dirty", "Private_Hugetlb") else 0
    return {name: round(size / MIB, 2) for name, size in found.items()}


def bench_memory(
    model: str, agent: str, sessions: int, step: Callable[[str], None], lists: Sequence[str]
) -> dict[str, Any]:
    """Of the model with each of these lists of tools, and, where $RTCONTROL_DATA is, of a random model of few
    parameters with Qwen2's tokenizer of 151,665 tokens."""
    if not SMAPS.exists():
        raise UserError("This system has no /proc/self/smaps_rollup.", "Run it on Linux.")
    cases: dict[str, Any] = {}
    with empty_cache() as folder:
        for tools in lists:
            step(f"{model}, {tools}")
            cases[f"{model}, {tools}"] = _apart(model, agent, tools, sessions)
        if (qwens := qwen_file()) is not None:
            step("a model with Qwen2's tokenizer")
            qwen = _random_model(qwens, folder / "qwen")
            cases["Qwen2's tokenizer, bundled"] = _apart(qwen, agent, "bundled", sessions)
    return {"sessions": sessions, "cases": cases}


def qwen_file() -> Path | None:
    """Qwen2's tokenizer, where $RTCONTROL_DATA is."""
    path = Path(os.environ.get(DATA, ""), QWEN)
    return path if os.environ.get(DATA) and path.is_file() else None


def _apart(model: str | Path, agent: str, tools: str, sessions: int) -> dict[str, Any]:
    asked = [(one.observation, one.instruction) for one in situations(agent, EACH * (sessions + 1))]
    told = json.dumps([str(model), schemas(agent)[tools], asked])
    command = [sys.executable, "-m", "rtcontrol.bench.memory"]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"The measuring process ended with {done.returncode}: {done.stderr[-800:]}", "See its words.")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _random_model(tokenizer_file: Path, folder: Path) -> Path:
    from tokenizers import Tokenizer

    from rtcontrol.bench.shapes import random_weights
    from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
    from rtcontrol.models.train.scratch import ModelShape
    from rtcontrol.models.train.vocabulary import add_st_tokens

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    add_st_tokens(tokenizer, ST_TOKENS)
    shape = ModelShape(hidden=32, layers=2, heads=2, kv_heads=1, intermediate=32)
    return random_weights(folder, shape, tokenizer)


def measure(model: str, tools: list[dict[str, Any]], asked: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """In this process: MiB by stage, each since the one before, and seconds to open the sessions; each decides EACH of
    the (observation, instruction) pairs."""
    start = used()
    from rtcontrol.models.decider import DeciderSpec, STDecider
    from rtcontrol.models.runners import torch_runner

    sessions = len(asked) // EACH - 1
    stages: dict[str, dict[str, float]] = {}
    before = used()
    stages["python and libraries"] = before

    def stage(name: str, parts: int = 1) -> None:
        nonlocal before
        now = used()
        stages[name] = {k: round((now[k] - before[k]) / parts, 2) for k in now}
        before = now

    spec = DeciderSpec(model, tuple(tools))
    held: list[STDecider] = []
    opened: list[float] = []

    def open_some(count: int) -> None:
        for _ in range(count):
            began = time.perf_counter()
            made = spec.build()
            opened.append(time.perf_counter() - began)
            held.append(made)
            for one in asked[EACH * (len(held) - 1) : EACH * len(held)]:
                made.decide(*one)

    open_some(1)
    stage("model and first session")
    open_some(sessions)
    stage("each further session", sessions)
    weights = sum(p.stat().st_size for p in held[0].checkpoint.folder.glob("*.safetensors"))
    assert isinstance(held[0].runner, torch_runner.TorchRunner)
    return {
        "mib": {"bare python": start, **stages, "all": before},
        "weights_mib": round(weights / MIB, 2),
        "vocabulary": held[0].tokenizer.size,
        "prefix_tokens": held[0].prefix.tokens,
        "open_s": {"first": round(opened[0], 4), "further": round(sorted(opened[1:])[len(opened[1:]) // 2], 4)},
    }


if __name__ == "__main__":
    print(json.dumps(measure(*json.load(sys.stdin))))
