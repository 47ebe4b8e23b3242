"""What a call of each tool costs at worst: known from the schema and the tokenizer, before a model is loaded; and by
what a pass costs, which of two layouts the passes have: everything at once, or the function first.

A node that is carried needlessly costs a token; a node that is missing costs a pass. On a GPU a pass of forty tokens
costs what one of ten does, so everything goes into one; on a CPU tokens are what a pass is made of, and arguments of
tools that are not called need not be carried. It is decided once, when the plan is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rtcontrol.models.engines.base import Budget
from rtcontrol.models.plan import ANY_TOOL, NO_TOOL, HeadPlan, SchemaPlan
from rtcontrol.models.trie import ROOT, TrieNode
from rtcontrol.models.walk import HeadState, Walker

WORST = 1.5  # so much more than the other's its worst call may cost, where a layout is chosen for its mean
NEAR = 1.02  # costs closer than that are equal: fewer passes win
LOOKED = 128  # branching tokens of unlisted numbers up to which the worst is looked for


@dataclass(frozen=True)
class PassCost:
    """Milliseconds of a forward pass: `fixed_ms` + `token_ms` * tokens, and `choice_ms` for each of them that is asked
    for the best of the whole vocabulary."""

    fixed_ms: float
    token_ms: float
    choice_ms: float = 0.0

    def of(self, passes: int, tokens: int) -> float:
        """Milliseconds of `passes` that carry `tokens` in all."""
        return passes * self.fixed_ms + tokens * self.token_ms

    def worth(self, choosing: bool = True) -> int:
        """So many guessed nodes cost what a pass of one costs; `choosing` among the whole vocabulary, or few ids."""
        one = max(self.token_ms + self.choice_ms * choosing, 1e-3)
        return int((self.fixed_ms + one) / one)


def fitted(took: Mapping[int, float], choice_ms: float) -> PassCost:
    """From milliseconds of passes by their tokens."""
    sizes = np.array(list(took), float)
    ms = np.array(list(took.values()))
    token = max(float(np.polyfit(sizes, ms, 1)[0]), 0.0)
    return PassCost(max(float(ms.mean()) - token * float(sizes.mean()), 0.0), token, choice_ms)


def worst_call(walker: Walker, tool: int) -> tuple[int, int]:
    """(passes, nodes) of the call of a tool whose values come last in the order in which nodes are carried; of a free
    value the head's own token alone."""
    plan = walker.plan
    goals = [_last_leaf(plan, k, tool) for k in range(len(plan.heads))]
    heads = [HeadState() for _ in plan.heads]
    known: int | None = None
    walks, count, nodes = walker.start, 0, 0
    while True:
        wanted = walker.wanted(heads, known, walks)
        if wanted:
            count, nodes = count + 1, nodes + len(wanted)
        for k, n in wanted:
            row, goal = [0.0] * len(walker.columns), goals[k]
            if goal[: len(n)] == n and (follows := goal[len(n) : len(n) + 1]) and follows[0] in walker.column:
                row[walker.column[follows[0]]] = 1.0
            heads[k].slots[n] = 0
            heads[k].rows[n] = row
        known, walks, free = walker.look(heads)
        if known == NO_TOOL or not (
            any(w.pending for w in walks.values()) or any(ROOT not in heads[k].slots for k in free)
        ):
            return count, nodes


def _last_leaf(plan: SchemaPlan, k: int, tool: int) -> TrieNode:
    """Of the tool's values the one whose last branching node is carried last, or a beginning that leads to no other."""
    trie = plan.heads[k].trie
    if k == 0:
        return next(leaf for leaf, values in trie.leaves.items() if values[ANY_TOOL] == tool)
    tools, node, limit = 1 << tool, ROOT, looked_at(plan.heads[k], tool)
    while order := trie.needed(tools, node, limit):
        # Of more nodes than are looked at, the last one below each.
        last = order[-1] if len(order) != limit else node
        below = [c for c in trie.children(last).values() if trie.tools(c)[0] & tools]
        node = sorted(below, key=lambda c: bool(trie.tools(c)[1] & tools))[-1]
    return node


def looked_at(head: HeadPlan, tool: int) -> int | None:
    """At how many nodes: of numbers that are not listed there may be any number."""
    return LOOKED if tool in head.grids else None


def choose_layout(plan: SchemaPlan, limit: Budget, measured: Callable[[], PassCost]) -> tuple[Budget, dict[str, Any]]:
    """The budget whose calls cost less when all tools are equally likely, unless its worst call costs much more than
    the other's; and what was weighed, nothing where both are the same. The same cost gives the same choice."""
    walkers = [Walker(plan, budget) for budget in (limit, replace(limit, function_first=True))]
    if walkers[0].first == walkers[1].first:
        return limit, {"layout": "everything"}
    cost, weighed = measured(), []
    for walker in walkers:
        spent = [worst_call(walker, tool) for tool in range(len(plan.tools))]
        costs = [cost.of(*s) for s in spent]
        weighed.append((sum(costs) / len(costs), max(costs), max(p for p, _ in spent), walker))
    everything, first = weighed
    chosen = first if first[0] * NEAR < everything[0] and first[1] <= WORST * everything[1] else everything
    layout = "function first" if chosen is first else "everything"
    told = {"layout": layout, "passes": chosen[2], "first_nodes": len(chosen[3].first)}
    return chosen[3].budget, {**told, "pass_ms": round(cost.fixed_ms, 3), "token_ms": round(cost.token_ms, 4)}
