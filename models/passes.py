"""What each forward pass carries: the trie nodes that the walks may need next, within a budget."""

from __future__ import annotations

from collections.abc import Sequence

from rtcontrol.models.engines.base import Budget
from rtcontrol.models.plan import ANY_TOOL, SchemaPlan
from rtcontrol.models.trie import KEPT
from rtcontrol.models.walk import HeadState, Walk, Walker, leaf_value

FUNCTION_BIT = 1 << ANY_TOOL
Entry = tuple[int, int]  # (head, trie node)


class Passes:
    """Chooses the nodes of every pass for one plan; the walks of a decision go on where their nodes are evaluated."""

    def __init__(self, plan: SchemaPlan, walker: Walker, budget: Budget) -> None:
        self.plan, self.walker, self.budget = plan, walker, budget
        self._below: dict[tuple[int, int, int], list[int]] = {}
        self.start = self._start()
        self._function_first = budget.function_first and 0 in self.start
        self.first = self.wanted([HeadState() for _ in plan.heads], None, self.start)

    def _start(self) -> dict[int, Walk]:
        walks = {}
        for k, head in enumerate(self.plan.heads):
            everything = FUNCTION_BIT if k == 0 else self.plan.all_tools
            if head.trie.several[0] & everything or (self.budget.forced and head.trie.legal[0] & everything):
                walks[k] = Walk(0, True, 1.0, ())
        return walks

    def look(self, heads: Sequence[HeadState]) -> tuple[int | None, dict[int, Walk], Sequence[int]]:
        """(tool as far as known, walks of the heads that have tries, heads whose value of that tool is free)."""
        walks = {0: self.walker.walk(0, heads[0], FUNCTION_BIT)}
        if walks[0].pending:
            tool, tools, active = None, self.walker.possible_tools(walks[0].node), len(self.plan.heads)
        else:
            tool = leaf_value(self.plan.function, walks[0].node, ANY_TOOL)
            if tool < 0:
                return tool, walks, ()
            tools, active = 1 << tool, 1 + len(self.plan.slots[tool])
        free = []
        for k in range(1, active):
            if tool is not None and tool in self.plan.heads[k].free:
                free.append(k)
            elif self.plan.heads[k].trie.legal[0] & tools:
                walks[k] = self.walker.walk(k, heads[k], tools)
        return tool, walks, free

    def wanted(self, heads: Sequence[HeadState], tool: int | None, walks: dict[int, Walk]) -> list[Entry]:
        """(head, trie node) of the next pass, parents first, within the budget."""
        lists: list[list[Entry]] = []
        everything = self.plan.all_tools
        if tool is None and 0 in walks and heads[0].slots:
            everything = self.walker.possible_tools(walks[0].node)
        for k, head in enumerate(self.plan.heads):
            tools = FUNCTION_BIT if k == 0 else everything if tool is None else 1 << tool
            nodes: list[int] = []
            if k and tool is None and self._function_first:
                break
            if k in walks and walks[k].pending:
                nodes = self._nodes(k, heads[k], walks[k].node, tools)
            elif head.free_mask & tools and 0 not in heads[k].slots:
                nodes = [0]
            lists.append([(k, n) for n in nodes])
        # The cap on all nodes takes from every head in turn, so that no head starves.
        merged = [entry for rank in range(max(map(len, lists))) for lane in lists for entry in lane[rank : rank + 1]]
        return sorted(merged[: self.budget.total], key=lambda e: e[0])

    def _nodes(self, k: int, state: HeadState, node: int, tools: int) -> list[int]:
        """Nodes to evaluate so that a walk pending at `node` can go on: what leads there, then the nodes below that
        may be needed, breadth-first in declared order."""
        trie = self.plan.heads[k].trie
        while self.budget.paths and len(only := self.walker.choices(k, node, tools)[1]) == 1:
            (node,) = only
        key = (k, node, tools)
        below = self._below.get(key)
        if below is None:
            if len(self._below) >= KEPT:
                self._below.clear()
            below = [node] if self.budget.forced else trie.needed(tools, node, self.budget.per_head)
            self._below[key] = below
        chain: list[int] = []
        up = trie.parents[node]
        while up >= 0 and up not in state.slots:
            chain.append(up)
            up = trie.parents[up]
        new = [n for n in below if n not in state.slots]
        if self.budget.paths:
            return [*reversed(chain), *new]
        return [*reversed(chain), *new][: self.budget.per_head]
