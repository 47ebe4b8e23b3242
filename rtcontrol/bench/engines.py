"""`rtcontrol bench engines`: whether engines call the same for the same situations, in how many passes, how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from rtcontrol.bench.dtype import TOLERANCE, decide
from rtcontrol.bench.situations import Situation
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.runners.registry import ENGINES, installed
from rtcontrol.report.series import Series

WARM_UP = 5
NEAR = 1e-4  # in fp32: a lead, as a part of the largest score, that rounding may turn


def compare_engines(
    spec: DeciderSpec,
    engines: Sequence[str],
    asked: Sequence[Situation],
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Of each engine: how many calls equal the first one's, how many of those that differ were no near-tie of it,
    passes, and the milliseconds from text to typed call. They take turns, and who begins changes."""
    scout = replace(spec, engine=engines[0]).build()
    sessions = {engine: replace(spec, engine=engine).build() for engine in engines}
    # A quantised or bf16 engine rounds sooner than fp32.
    exact = all(s.runner.caps.dtype == "fp32" and s.runner.caps.exact for s in sessions.values())
    tolerance, ties = NEAR if exact else TOLERANCE, 0
    took: dict[str, list[float]] = {engine: [] for engine in engines}
    passes, equal, clear = (dict.fromkeys(engines, 0) for _ in range(3))
    for i, one in enumerate(asked):
        known = decide(scout, one)
        tie = known.margin <= tolerance
        counted, turn = i >= WARM_UP, i % len(engines)
        ties += tie and counted
        for engine in (*engines[turn:], *engines[:turn]):
            began = time.perf_counter()
            made = sessions[engine].decide(one.observation, one.instruction)
            if counted:
                took[engine].append((time.perf_counter() - began) * 1e3)
                passes[engine] += made.forward_passes
                equal[engine] += made.call == known.call
                clear[engine] += made.call != known.call and not tie
        progress()
    count = max(len(asked) - WARM_UP, 1)
    found = {
        engine: {
            "equal": equal[engine],
            "differ_without_near_tie": clear[engine],
            "forward_passes": passes[engine] / count,
            "ms": Series(took[engine]).summary(),
            "raw_ms": took[engine],
            "version": import_module(engine).__version__,  # engines are named for their packages
            "info": (scout if engine == engines[0] else sessions[engine]).info(),  # of whoever loaded the weights
        }
        for engine in engines
    }
    absent = [name for name in ENGINES if name not in installed()]
    return {"decisions": count, "near_ties": ties, "tolerance": tolerance, "engines": found, "not_installed": absent}
