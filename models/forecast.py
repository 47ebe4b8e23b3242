"""`auto` budget: what a pass costs here, and how speculative the passes should be at that cost.

A node that is carried needlessly costs a token; a node that is missing may cost a pass. On a GPU a pass of forty tokens
costs what one of ten does, so everything goes into one pass; on a CPU tokens are what a pass is made of.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from rtcontrol.models.engines.base import Budget
from rtcontrol.models.packed import Node, PackedSequence
from rtcontrol.models.passes import Passes
from rtcontrol.models.plan import ANY_TOOL, NO_TOOL, SchemaPlan
from rtcontrol.models.walk import HeadState, Walker

SIZES = (8, 24, 48)  # tokens of the measured passes
ROUNDS = 5
SHARES = (0.0, 0.02, 0.04, 0.07, 0.1, 0.2, 0.35, 0.6, 1.0)
SAMPLES = 64
NEAR = 1.02  # forecasts closer than that are equal: fewer passes win


@dataclass(frozen=True)
class PassCost:
    """Milliseconds of a forward pass: `fixed_ms` + `token_ms` * tokens."""

    fixed_ms: float
    token_ms: float

    def of(self, passes: float, tokens: float) -> float:
        """Milliseconds of `passes` that carry `tokens` in all."""
        return passes * self.fixed_ms + tokens * self.token_ms


def measure_cost(sequence: PackedSequence) -> PassCost:
    """Time a few passes behind the prompt that the sequence holds; the prompt stays cached, its nodes go."""
    prompt = list(sequence.prompt)
    best = dict.fromkeys(SIZES, float("inf"))
    for _ in range(ROUNDS):
        for size in SIZES:
            nodes = [Node(i % sequence.model.config.vocabulary, 0, ()) for i in range(size)]
            sequence.restore(prompt)
            began = time.perf_counter()
            sequence.run(nodes)[-1].cpu()  # waits for a GPU
            best[size] = min(best[size], (time.perf_counter() - began) * 1e3)
    sequence.restore(prompt)
    sizes = torch.tensor(SIZES, dtype=torch.float64)
    took = torch.tensor([best[s] for s in SIZES], dtype=torch.float64)
    slope = float(((sizes - sizes.mean()) * (took - took.mean())).sum() / ((sizes - sizes.mean()) ** 2).sum())
    token = max(slope, 0.0)
    return PassCost(max(float(took.mean()) - token * float(sizes.mean()), 0.0), token)


def has_choice(plan: SchemaPlan, walker: Walker, budget: Budget) -> bool:
    """Whether any node is speculative: else every budget carries the same first pass, and nothing needs measuring."""
    return Passes(plan, walker, budget).first != Passes(plan, walker, replace(budget, share=1.0)).first


def choose_budget(plan: SchemaPlan, walker: Walker, cost: PassCost, limit: Budget) -> tuple[Budget, dict[str, Any]]:
    """The budget within `limit` whose decisions are forecast the fastest when all tools are equally likely, and so are
    the values of each; and what was weighed. The same cost gives the same choice."""
    weighed = []
    for share in SHARES:
        passes = Passes(plan, walker, replace(limit, share=share))
        rng = random.Random(0)
        samples = [_sample(passes, i % len(plan.tools), rng) for i in range(max(SAMPLES, len(plan.tools)))]
        mean_passes = sum(p for p, _ in samples) / len(samples)
        mean_nodes = sum(n for _, n in samples) / len(samples)
        weighed.append((cost.of(mean_passes, mean_nodes), share, mean_passes, mean_nodes, len(passes.first)))
    best = min(w[0] for w in weighed)
    chosen = next(w for w in weighed if w[0] <= best * NEAR)
    found = {"share": chosen[1], "passes": round(chosen[2], 2), "nodes": round(chosen[3], 1), "first_nodes": chosen[4]}
    return replace(limit, share=chosen[1]), found


def _sample(passes: Passes, tool: int, rng: random.Random) -> tuple[int, int]:
    """(passes, nodes) of a decision for a tool with values drawn at random; free values are left out."""
    plan = passes.plan
    goals: dict[int, set[int]] = {}
    for k, head in enumerate(plan.heads):
        mark = ANY_TOOL if k == 0 else tool
        leaves = [n for n, values in head.trie.leaves.items() if mark in values]
        if k == 0:
            leaves = [n for n in leaves if head.trie.leaves[n][ANY_TOOL] == tool]
        up = rng.choice(leaves) if leaves else -1
        goals[k] = set()
        while up >= 0:
            goals[k].add(up)
            up = head.trie.parents[up]
    heads = [HeadState() for _ in plan.heads]
    known: int | None = None
    walks, count, nodes = passes.start, 0, 0
    while any(w.pending for w in walks.values()):
        wanted = passes.wanted(heads, known, walks)
        count, nodes = count + 1, nodes + len(wanted)
        for k, n in wanted:
            row = [0.0] * len(passes.walker.columns)
            for token, child in plan.heads[k].trie.children[n].items():
                if child in goals[k] and token in passes.walker.column:
                    row[passes.walker.column[token]] = 1.0
            heads[k].slots[n] = 0
            heads[k].rows[n] = row
        known, walks, _ = passes.look(heads)
        if known == NO_TOOL:
            break
    return count, nodes
