"""Runs in vLLM's own environment: one job from a file, what it found on the last line, as JSON."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtcontrol.bench.situations import Situation
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider, decide_together
from rtcontrol.models.decode.protocol import Budget, Cancelled
from rtcontrol.models.decode.walk import FUNCTION_BIT, Entry
from rtcontrol.models.in_flight import InFlightDecode, evaluate

SOME = 12


def compared(torch: STDecider, vllm: STDecider, asked: list[Situation], tolerance: float) -> dict[str, Any]:
    """Both decide of each, one after the other: calls that differ, near-ties, passes and milliseconds."""
    ties, wrong, passes, apart = 0, [], [0, 0], 0.0
    took: dict[str, list[float]] = {"torch": [], "vllm": []}
    for one in asked:
        pair = []
        for i, (name, decider) in enumerate((("torch", torch), ("vllm", vllm))):
            began = time.perf_counter()
            found = decide(decider, one.observation, one.instruction)
            took[name].append((time.perf_counter() - began) * 1e3)
            passes[i] += decider.decoding._last.decision().forward_passes  # type: ignore[union-attr]
            pair.append(found)
        tie = min(p.margin for p in pair) <= tolerance
        ties += tie
        if pair[0].call != pair[1].call:
            wrong.append({"observation": one.observation, "tie": tie, "margins": [p.margin for p in pair]})
        for at in pair[0].scores.keys() & pair[1].scores.keys():
            apart = max(apart, *(abs(a - b) for a, b in zip(pair[0].scores[at], pair[1].scores[at], strict=True)))
    ms = {name: [round(sorted(t)[int(q * len(t))], 2) for q in (0.05, 0.5, 0.9)] for name, t in took.items()}
    return {"asked": len(asked), "ties": ties, "differ": wrong, "passes": passes, "apart": apart, "ms_p5_p50_p90": ms}


def free_values(vllm: STDecider, torch: STDecider, told: list[Situation]) -> dict[str, Any]:
    """Calls with a value that is no listed one, by both."""
    own = [vllm.decide(s.observation, s.instruction).call for s in told]
    theirs = [torch.decide(s.observation, s.instruction).call for s in told]
    return {"equal": sum(a == b for a, b in zip(own, theirs, strict=True)), "calls": [str(c) for c in own]}


def others(spec: DeciderSpec, vllm: STDecider, torch: STDecider, asked: list[Situation]) -> dict[str, Any]:
    """What else the runner's protocol promises."""
    found: dict[str, Any] = {}
    two = [vllm, spec.build(), spec.build()]
    found["one engine"] = len({id(d.runner) for d in two}) == 1
    together = decide_together([(d, (s.observation, s.instruction, ())) for d, s in zip(two, asked, strict=False)])
    alone = [torch.decide(s.observation, s.instruction).call for s in asked[: len(two)]]
    found["together"] = [str(a) for a in together if isinstance(a, Exception)] or [a.call for a in together] == alone  # type: ignore[union-attr]
    many = vllm.decide_many([(s.observation, s.instruction) for s in asked[:SOME]])
    found["many"] = [d.call for d in many] == [torch.decide(s.observation, s.instruction).call for s in asked[:SOME]]
    runner: Any = vllm.runner
    before = dict(runner.figures)
    for s in asked[:SOME]:
        vllm.decide(s.observation, s.instruction)
    found["figures"] = {k: v - before[k] for k, v in runner.figures.items()}
    found["prefix"] = len(vllm.template.prefix_ids(vllm.plan.tools))
    tap = next(iter(sys.modules["rtcontrol.models.runners.vllm_tap"].ScoreTap.of.values()), None)
    found["kept"] = None if tap is None else len(tap.kept)
    patient = vllm.decide_in_steps(asked[0].observation * 20, asked[0].instruction)
    slices = 0
    while True:
        try:
            next(patient)
            slices += 1
        except StopIteration as done:
            own = done.value.call
            break
    found["sliced"] = slices, own == torch.decide(asked[0].observation * 20, asked[0].instruction).call
    found["info"] = vllm.info()
    return found


def stopped(vllm: STDecider, torch: STDecider, asked: list[Situation]) -> dict[str, Any]:
    """A decision that is given up between two steps of its first pass."""
    runner: Any = vllm.runner
    step, steps = runner.engine.step, []

    def late() -> Any:
        steps.append(1)
        if len(steps) == 2:
            vllm.cancel()
        return step()

    runner.engine.step = late
    long = asked[0].observation * 40
    try:
        vllm.decide(long, asked[0].instruction)
        gone = False
    except Cancelled:
        gone = True
    runner.engine.step = step
    left = runner.engine.has_unfinished_requests()
    again = vllm.decide(long, asked[0].instruction)
    whole = len(vllm.template.suffix_ids(asked[0].instruction, long))
    same = again.call == torch.decide(long, asked[0].instruction).call
    return {"gone": gone, "steps": len(steps), "left": left, "same": same, "tokens": whole}


def main(job: dict[str, Any]) -> dict[str, Any]:
    spec = DeciderSpec(job["model"], tuple(job["tools"]), engine="vllm", dtype=job["dtype"], threads=1)
    asked = [Situation(told, seen) for told, seen in job["asked"]]
    torch = replace(spec, engine="torch", model=job.get("original", job["model"])).build()
    began = time.perf_counter()
    vllm = spec.build()
    found: dict[str, Any] = {"load_s": round(time.perf_counter() - began, 1), "caps": vllm.runner.caps.to_dict()}
    check = job["check"]
    if check == "calls":
        found |= compared(torch, vllm, asked, job["tolerance"])
    if check == "others":
        found |= others(spec, vllm, torch, asked)
    if check == "free":
        found |= free_values(vllm, torch, asked)
    if check == "stopped":
        found |= stopped(vllm, torch, asked)
    if check == "forced":
        slow = replace(spec, budget_per_head=1).build()
        slow.decoding.core.set_budget(Budget(1, forced=True))
        found |= compared(torch, slow, asked, job["tolerance"])
    return found


# How narrowly a decision was made.


# Of the largest score that a node was asked for: a margin below that is a near-tie. bf16 rounds at 2^-8 of a value;
# after all layers the ways differed by 0.021 at most where it was measured (four architectures at random, the lander).
TOLERANCE = 2.0**-4


@dataclass(frozen=True, slots=True)
class ScoredCall:
    """A call, the smallest margin that led to it, as a part of its row's largest score, and the scores of the children
    of each node (by head and node) that it was chosen at, as parts of that, too."""

    call: Call | None
    margin: float
    scores: dict[Entry, list[float]]


def decide(decider: STDecider, observation: str, instruction: str) -> ScoredCall:
    """Make one decision of closed heads, with its margin."""
    one = decider.begin(observation, instruction)
    for _ in evaluate(decider.runner, [one]):
        pass
    call = one.decision().call
    column, scores = decider.decoding.core.walker.column, {}
    for k, n in one.deciding.visited:
        row = one.deciding.heads[k].rows[n]
        largest = max(map(abs, row))
        scores[k, n] = [row[column[t]] / largest for t in decider.plan.heads[k].trie.children(n) if t in column]
    return ScoredCall(call, _margin(decider, one, call), scores)


def _margin(decider: STDecider, one: InFlightDecode, call: Call | None) -> float:
    """Return the smallest lead of a choice's best score over its second, as a part of the largest score (as a size)
    that was asked for at the same node; infinite where nothing was chosen."""
    walker, least = decider.decoding.core.walker, math.inf
    tool = 0 if call is None else 1 << decider.plan.tool_index(call.name)
    for k, n in one.deciding.visited:
        row = one.deciding.heads[k].rows[n]
        columns, _ = walker.choices(k, n, tool if k else FUNCTION_BIT)
        if len(columns) > 1:
            best, second = sorted((row[c] for c in columns), reverse=True)[:2]
            least = min(least, (best - second) / max(map(abs, row)))
    return least


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(Path(sys.argv[1]).read_text())), default=str))
