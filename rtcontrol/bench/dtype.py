"""`rtcontrol bench dtype`: whether bf16 decides like fp32, and like itself: token by token, and many together.

The law: where no choice of a bf16 decision was a near-tie, all ways of asking the same bf16 model give the same call.
Of fp32 there is no law, only a rate: its scores are others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from rtcontrol.bench.situations import Situation
from rtcontrol.bench.timing import rotated
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.decode.walk import FUNCTION_BIT, Entry
from rtcontrol.models.in_flight import InFlightDecode, evaluate
from rtcontrol.models.quantize import size
from rtcontrol.models.runners.registry import ENGINES, installed
from rtcontrol.telemetry.histogram import Series

# Of the largest score that a node was asked for: a margin below that is a near-tie. bf16 rounds at 2^-8 of a value;
# after all layers the ways differed by 0.021 at most where it was measured (four architectures at random, the lander).
TOLERANCE = 2.0**-4
TOGETHER = 16


@dataclass(frozen=True, slots=True)
class Chosen:
    """A call, the smallest margin that led to it, as a part of its row's largest score, and the scores of the children
    of each node (by head and node) that it was chosen at, as parts of that, too."""

    call: Call | None
    margin: float
    scores: dict[Entry, list[float]]


def decide(decider: STDecider, situation: Situation) -> Chosen:
    """One decision of closed heads, with its margin."""
    one = decider.begin(situation.observation, situation.instruction)
    for _ in evaluate(decider.runner, [one]):
        pass
    call = one.decision().call
    column, scores = decider.decoding.core.walker.column, {}
    for k, n in one.deciding.visited:
        row = one.deciding.heads[k].rows[n]
        largest = max(map(abs, row))
        scores[k, n] = [row[column[t]] / largest for t in decider.plan.heads[k].trie.children(n) if t in column]
    return Chosen(call, margin(decider, one, call), scores)


def margin(decider: STDecider, one: InFlightDecode, call: Call | None) -> float:
    """The smallest lead of a choice's best score over its second, as a part of the largest score (as a size) that was
    asked for at the same node; infinite where nothing was chosen."""
    walker, least = decider.decoding.core.walker, math.inf
    tool = 0 if call is None else 1 << decider.plan.tool_index(call.name)
    for k, n in one.deciding.visited:
        row = one.deciding.heads[k].rows[n]
        columns, _ = walker.choices(k, n, tool if k else FUNCTION_BIT)
        if len(columns) > 1:
            best, second = sorted((row[c] for c in columns), reverse=True)[:2]
            least = min(least, (best - second) / max(map(abs, row)))
    return least


def difference(one: Chosen, other: Chosen) -> float:
    """How far the leads of one score over another are apart at most, where both chose at the same node, as a part of
    that node's largest score."""
    most = 0.0
    for node in one.scores.keys() & other.scores.keys():
        apart = [a - b for a, b in zip(one.scores[node], other.scores[node], strict=True)]
        most = max(most, max(apart) - min(apart))
    return most


def compare(
    spec: DeciderSpec, asked: Sequence[Situation], progress: Callable[[], None] = lambda: None, together: int = TOGETHER
) -> dict[str, Any]:
    """Of all situations: how many bf16 calls equal fp32's, its own token by token, and its own of `together` at once;
    how many were near-ties; how many of those that were none differ all the same (by law no own one does); and the
    largest `difference` between packed and token by token."""
    half = replace(spec, dtype="bf16")
    exact, packed, slow, many = replace(spec, dtype="fp32").build(), half.build(), half.build(), half.build()
    slow.decoding.core.set_budget(Budget(1, forced=True))
    equal = dict.fromkeys(("fp32", "token_by_token", "together"), 0)
    clear = dict.fromkeys(equal, 0)
    ties, apart = 0, 0.0
    for i in range(0, len(asked), together):
        chunk = asked[i : i + together]
        batch = many.decide_many([(one.observation, one.instruction) for one in chunk])
        for one, beside in zip(chunk, batch, strict=True):
            own = decide(packed, one)
            tie = own.margin <= TOLERANCE
            ties += tie
            by_token = decide(slow, one)
            apart = max(apart, difference(own, by_token))
            others = {"fp32": decide(exact, one).call, "token_by_token": by_token.call}
            for name, call in {**others, "together": beside.call}.items():
                equal[name] += call == own.call
                clear[name] += call != own.call and not tie
            progress()
    return {
        "decisions": len(asked),
        "equal": equal,
        "near_ties": ties,
        "differ_without_near_tie": clear,
        "largest_difference": round(apart, 4),
        "tolerance": TOLERANCE,
        "together": together,
        "info": packed.info(),
    }


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
        counted = i >= WARM_UP
        ties += tie and counted
        for engine in rotated(engines, i):
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


def compare_quantized(original: STDecider, quantized: DeciderSpec, asked: Sequence[Situation]) -> dict[str, Any]:
    """Of all situations: how many calls are the `same`, and of the others how many are `ties`, near-ties of the
    original's; of both the MiB of their weights in the files, and what the engine computes with."""
    other = quantized.build()
    same = ties = 0
    for one in asked:
        own, theirs = decide(original, one), decide(other, one)
        same += own.call == theirs.call
        ties += own.call != theirs.call and own.margin <= TOLERANCE
    sides = {
        name: {
            "mib": round(size(decider.checkpoint.folder) / 2**20, 2),
            "weights": decider.info().get("weights", "plain"),
        }
        for name, decider in (("original", original), ("quantized", other))
    }
    return {"asked": len(asked), "same": same, "ties": ties, **sides}
