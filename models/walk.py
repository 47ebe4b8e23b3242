"""Walking the tries: from the logits of evaluated nodes to typed values, or to the nodes to evaluate next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.models.engines.base import NotFinite
from rtcontrol.models.plan import ANY_TOOL, HeadPlan, SchemaPlan
from rtcontrol.models.trie import KEPT


@dataclass
class HeadState:
    """What is known of one head during one decision: the evaluated trie nodes, each with its KV slot and logits row."""

    slots: dict[int, int] = field(default_factory=dict)
    rows: dict[int, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a walk ended: at a leaf with its value, or (`pending`) before a branching node without logits."""

    node: int
    pending: bool
    confidence: float
    visited: tuple[int, ...]


class Walker:
    """Greedy walks over one plan's tries; `column` maps a token id to its place in a logits row."""

    def __init__(self, plan: SchemaPlan) -> None:
        self.plan = plan
        tokens = {t for h in plan.heads for t in h.trie.choices}
        self.forced = False  # whether nodes without a choice wait for their logits, too
        self.columns = sorted(tokens)
        self.column = {token: i for i, token in enumerate(self.columns)}
        self._possible: dict[int, int] = {}
        self._choices: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}

    def choices(self, head: int, node: int, tools: int) -> tuple[list[int], list[int]]:
        """Logits columns and child nodes that lead to a legal value, by ascending token id."""
        key = (head, node, tools)
        found = self._choices.get(key)
        if found is None:
            legal = self.plan.heads[head].trie.legal_children(node, tools)
            # A forced child needs no logits, so its token may have no column.
            found = ([self.column.get(t, -1) for t, _ in legal], [c for _, c in legal])
            if len(self._choices) >= KEPT:  # of numbers there are as many as there are values
                self._choices.clear()
            self._choices[key] = found
        return found

    def walk(self, head: int, state: HeadState, tools: int) -> Walk:
        """Follow the largest logit among legal children from the head token; ties go to the lowest token id.

        Raises NotFinite."""
        leaves = self.plan.heads[head].trie.leaves
        node, confidence = 0, 1.0
        visited: list[int] = []
        while node not in leaves:
            columns, children = self.choices(head, node, tools)
            if len(children) == 1 and not (self.forced and node not in state.rows):
                node = children[0]
                continue
            row = state.rows.get(node)
            if row is None:
                return Walk(node, True, confidence, tuple(visited))
            values = [row[c] for c in columns]
            if not math.isfinite(sum(values)):
                raise NotFinite
            best = max(values)
            confidence /= math.fsum(math.exp(v - best) for v in values)
            visited.append(node)
            node = children[values.index(best)]
        return Walk(node, False, confidence, tuple(visited))

    def possible_tools(self, node: int) -> int:
        """The tools whose names lie at or below a node of the function trie."""
        if node in self._possible:
            return self._possible[node]
        trie = self.plan.function.trie
        mask, stack = 0, [node]
        while stack:
            n = stack.pop()
            index = trie.leaves.get(n, {}).get(ANY_TOOL, -1)
            mask |= 1 << index if index >= 0 else 0
            stack.extend(trie.children[n].values())
        self._possible[node] = mask
        return mask


def leaf_value(head: HeadPlan, node: int, tool: int) -> Any:
    """The typed value at a leaf, for a tool."""
    return head.trie.leaves[node][tool]
