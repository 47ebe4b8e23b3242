"""Walking the tries: from the logits of evaluated nodes to typed values, or to the nodes to evaluate next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from rtcontrol.models.engines.base import NotFinite
from rtcontrol.models.plan import ANY_TOOL, NO_TOOL, SchemaPlan
from rtcontrol.models.trie import KEPT, ROOT, TrieNode


@dataclass
class HeadState:
    """What is known of one head during one decision: the evaluated trie nodes, each with its KV slot and logits row."""

    slots: dict[TrieNode, int] = field(default_factory=dict)
    rows: dict[TrieNode, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a walk ended: at a leaf, or (`pending`) before a branching node without logits."""

    node: TrieNode = ROOT
    pending: bool = True
    confidence: float = 1.0
    visited: tuple[TrieNode, ...] = ()


class Walker:
    """Greedy walks over one plan's tries; `column` maps a token id to its place in a logits row."""

    def __init__(self, plan: SchemaPlan) -> None:
        self.plan = plan
        tokens = {t for h in plan.heads for t in h.trie.choices}
        self.forced = False  # whether nodes without a choice wait for their logits, too
        self.columns = sorted(tokens)
        self.column = {token: i for i, token in enumerate(self.columns)}
        # Of numbers there are as many choices as there are values.
        self.choices = lru_cache(KEPT)(self._choices)
        self.possible_tools = lru_cache(KEPT)(self._possible_tools)

    def walk(self, head: int, state: HeadState, tools: int) -> Walk:
        """Follow the largest logit among legal children from the head token; ties go to the lowest token id.

        Raises NotFinite."""
        node, confidence = ROOT, 1.0
        visited: list[TrieNode] = []
        while True:
            columns, children = self.choices(head, node, tools)
            if not children:
                return Walk(node, False, confidence, tuple(visited))
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

    def _choices(self, head: int, node: TrieNode, tools: int) -> tuple[list[int], list[TrieNode]]:
        """Logits columns and child nodes that lead to a legal value, by ascending token id; none after a leaf."""
        legal = self.plan.heads[head].trie.legal_children(node, tools)
        # A forced child needs no logits, so its token may have no column.
        return [self.column.get(t, -1) for t, _ in legal], [c for _, c in legal]

    def _possible_tools(self, node: TrieNode) -> int:
        """The tools whose names lie at or below a node of the function trie."""
        leaves = self.plan.function.trie.leaves.items()
        below = [values[ANY_TOOL] for leaf, values in leaves if leaf[: len(node)] == node]
        return sum(1 << tool for tool in below if tool != NO_TOOL)
