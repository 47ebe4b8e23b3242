"""What each forward pass carries: the trie nodes that the walks may need next, within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rtcontrol.models.engines.base import Budget
from rtcontrol.models.plan import ANY_TOOL, NO_TOOL, SchemaPlan
from rtcontrol.models.trie import KEPT, ROOT, TrieNode
from rtcontrol.models.walk import HeadState, Walk, Walker

FUNCTION_BIT = 1 << ANY_TOOL
Entry = tuple[int, TrieNode]  # a head's node


class Passes:
    """Chooses the nodes of every pass for one plan; the walks of a decision go on where their nodes are evaluated."""

    def __init__(self, plan: SchemaPlan, walker: Walker, budget: Budget) -> None:
        self.plan, self.walker, self.budget = plan, walker, budget
        self._below = lru_cache(KEPT)(self._needed)
        legal_or_several = 0 if budget.forced else 1
        self.start = {k: Walk() for k, h in enumerate(plan.heads) if h.trie.tools(ROOT)[legal_or_several]}
        self._function_first = budget.function_first and 0 in self.start
        self.first = self.wanted([HeadState() for _ in plan.heads], None, self.start)

    def look(self, heads: Sequence[HeadState]) -> tuple[int | None, dict[int, Walk], Sequence[int]]:
        """(tool as far as known, walks of the heads that have tries, heads whose value of that tool is free)."""
        walks = {0: self.walker.walk(0, heads[0], FUNCTION_BIT)}
        if walks[0].pending:
            tool, tools, active = None, self.walker.possible_tools(walks[0].node), len(self.plan.heads)
        else:
            tool = self.plan.function.trie.value(walks[0].node, ANY_TOOL)
            if tool == NO_TOOL:
                return tool, walks, ()
            tools, active = 1 << tool, 1 + len(self.plan.slots[tool])
        free = []
        for k in range(1, active):
            if tool is not None and tool in self.plan.heads[k].free:
                free.append(k)
            elif self.plan.heads[k].trie.tools(ROOT)[0] & tools:
                walks[k] = self.walker.walk(k, heads[k], tools)
        return tool, walks, free

    def wanted(self, heads: Sequence[HeadState], tool: int | None, walks: dict[int, Walk]) -> list[Entry]:
        """(head, trie node) of the next pass, parents first, within the budget."""
        lists: list[list[Entry]] = []
        called = self.walker.possible_tools(walks.get(0, Walk()).node) if tool is None else 1 << tool
        for k, head in enumerate(self.plan.heads):
            if k and tool is None and self._function_first:
                break
            tools = called if k else FUNCTION_BIT
            nodes: list[TrieNode] = []
            if k in walks and walks[k].pending:
                nodes = self._nodes(k, heads[k], walks[k].node, tools)
            elif head.free_mask & tools and ROOT not in heads[k].slots:
                nodes = [ROOT]
            lists.append([(k, n) for n in nodes])
        # The cap on all nodes takes from every head in turn, so that no head starves.
        merged = [entry for rank in range(max(map(len, lists))) for lane in lists for entry in lane[rank : rank + 1]]
        return sorted(merged[: self.budget.total], key=lambda e: e[0])

    def _nodes(self, k: int, state: HeadState, node: TrieNode, tools: int) -> list[TrieNode]:
        """Nodes to evaluate so that a walk pending at `node` can go on: what leads there, then the nodes below that
        may be needed, breadth-first in declared order."""
        above = [node[:end] for end in range(len(node))]
        return [n for n in (*above, *self._below(k, node, tools)) if n not in state.slots][: self.budget.per_head]

    def _needed(self, k: int, node: TrieNode, tools: int) -> list[TrieNode]:
        trie = self.plan.heads[k].trie
        return [node] if self.budget.forced else trie.needed(tools, node, self.budget.per_head)
