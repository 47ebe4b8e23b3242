"""`rtcontrol bench prefix`: what a cached prefix saves, when a session is opened and in a decision."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rtcontrol.bench.situations import Situation
from rtcontrol.bench.timing import Stopwatch, Turns, like
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.runners.torch_runner import TorchRunner

WARM_UP = 1
OPENINGS = ("computed", "disk")
DECISIONS = ("cached", "nothing_cached")


@contextmanager
def empty_cache() -> Iterator[Path]:
    """A prefix cache on disk of its own, empty, for as long as this takes."""
    before = os.environ.get("RTCONTROL_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RTCONTROL_CACHE"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["RTCONTROL_CACHE"]
            else:
                os.environ["RTCONTROL_CACHE"] = before


def bench_prefix(
    spec: DeciderSpec, asked: Sequence[Situation], rounds: int, progress: Callable[[], None]
) -> dict[str, Any]:
    """Milliseconds to open a session and to its first decision, the prefix `computed` or from `disk`; and of a decision
    behind a `cached` prefix or with `nothing_cached`. The weights are loaded once, before; all take turns."""
    first = spec.build()  # keeps the weights, and compiles what compiles once
    first.decoding.handle.forget()  # on a GPU its pages would be shared
    assert isinstance(first.runner, TorchRunner)
    watch = Stopwatch(first.runner.model.device)
    names = [*(f"open_{way}" for way in OPENINGS), *(f"first_{way}" for way in OPENINGS), *DECISIONS]
    turns = Turns(names, WARM_UP)
    with empty_cache() as folder, like(first.runner) as threads:
        for turn, _ in turns.over(range(rounds + WARM_UP)):
            took: dict[str, float] = {}
            a, b, c = (asked[(turn + i) % len(asked)] for i in range(3))
            shutil.rmtree(folder / "prefix", ignore_errors=True)
            for source in OPENINGS:
                made, opened = watch.time(spec.build)
                assert made.prefix.source == source, made.prefix
                took[f"open_{source}"] = opened.wall_ms
                took[f"first_{source}"] = opened.wall_ms + _decides(watch, made, a)
                took["cached"] = _decides(watch, made, b)
                made.decoding.handle.forget()
                took["nothing_cached"] = _decides(watch, made, c)
                made.decoding.handle.forget()
            turns.add(took)
            if turns.counted:
                progress()
    return {
        **turns.figures(),
        "prefix_tokens": first.prefix.tokens,
        "threads": threads,
        "rounds": rounds,
        "info": first.info(),
    }


def _decides(watch: Stopwatch, decider: STDecider, situation: Situation) -> float:
    _, took = watch.time(lambda: decider.decide(situation.observation, situation.instruction))
    return took.wall_ms
