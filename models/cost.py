"""What passes cost, and how many the worst call of a tool takes: known from the schema, before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rtcontrol.models.passes import Passes
from rtcontrol.models.plan import ANY_TOOL, NO_TOOL, HeadPlan, SchemaPlan
from rtcontrol.models.walk import HeadState

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

    @property
    def worth(self) -> int:
        """So many guessed nodes cost what a pass of one costs."""
        one = max(self.token_ms + self.choice_ms, 1e-3)
        return int((self.fixed_ms + one) / one)

    def told(self) -> dict[str, float]:
        """For people."""
        return {"pass_ms": round(self.fixed_ms, 3), "token_ms": round(self.token_ms, 4)}


def fitted(took: Mapping[int, float], choice_ms: float) -> PassCost:
    """From milliseconds of passes by their tokens."""
    sizes = np.array(list(took), float)
    ms = np.array(list(took.values()))
    token = max(float(np.polyfit(sizes, ms, 1)[0]), 0.0)
    return PassCost(max(float(ms.mean()) - token * float(sizes.mean()), 0.0), token, choice_ms)


def worst_call(passes: Passes, tool: int) -> tuple[int, int]:
    """(passes, nodes) of the call of a tool whose values come last in the order in which nodes are carried; of a free
    value the head's own token alone."""
    plan = passes.plan
    goals = [_last_path(plan, k, tool) for k in range(len(plan.heads))]
    heads = [HeadState() for _ in plan.heads]
    known: int | None = None
    walks, count, nodes = passes.start, 0, 0
    while True:
        wanted = passes.wanted(heads, known, walks)
        if wanted:
            count, nodes = count + 1, nodes + len(wanted)
        for k, n in wanted:
            row = [0.0] * len(passes.walker.columns)
            for token, child in plan.heads[k].trie.children[n].items():
                if child in goals[k] and token in passes.walker.column:
                    row[passes.walker.column[token]] = 1.0
            heads[k].slots[n] = 0
            heads[k].rows[n] = row
        known, walks, free = passes.look(heads)
        if known == NO_TOOL or not (
            any(w.pending for w in walks.values()) or any(0 not in heads[k].slots for k in free)
        ):
            return count, nodes


def _last_path(plan: SchemaPlan, k: int, tool: int) -> set[int]:
    """The nodes that lead to the tool's value whose last branching node is carried last."""
    trie = plan.heads[k].trie
    if k == 0:
        return _path(trie.parents, next(n for n, values in trie.leaves.items() if values[ANY_TOOL] == tool))
    tools, node, limit = 1 << tool, 0, looked_at(plan.heads[k], tool)
    while order := trie.needed(tools, node, limit):
        # Of more nodes than are looked at, the last one below each.
        last = order[-1] if len(order) != limit else node
        below = [c for _, c in trie.legal_children(last, tools)]
        node = max(below, key=lambda c: (bool(trie.several[c] & tools), c))
    return _path(trie.parents, node)


def looked_at(head: HeadPlan, tool: int) -> int | None:
    """At how many nodes: of numbers that are not listed there may be any number."""
    return LOOKED if tool in head.grids else None


def _path(parents: list[int], node: int) -> set[int]:
    found = set()
    while node >= 0:
        found.add(node)
        node = parents[node]
    return found
