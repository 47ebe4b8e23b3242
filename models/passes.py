"""What each forward pass carries: the trie nodes that the walks may need next, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rtcontrol.models.engines.base import Budget
from rtcontrol.models.plan import ANY_TOOL, SchemaPlan
from rtcontrol.models.walk import HeadState, Walk, Walker, leaf_value

FUNCTION_BIT = 1 << ANY_TOOL
Entry = tuple[int, int]  # (head, trie node)
MARGIN = 1e-9  # of rounding, where a likelihood equals the share
PRIOR = 4.0  # calls
LEARN_FIRST, LEARN_EVERY = 8, 256  # decisions before the first and between later looks at what was called


class Usage:
    """What was called of late, and so what the next call is likely to be.

    All tools, and all values of one, are equal at first; together they weigh as much as PRIOR calls.
    """

    def __init__(self, tools: int) -> None:
        self._base = PRIOR / tools
        self._tools = [0.0] * (tools + 1)  # the last is the null function head: NO_TOOL is -1
        self._values: dict[tuple[int, int], dict[int, float]] = {}
        self._left = self._every = LEARN_FIRST

    def count(self, tool: int, leaves: Mapping[int, int]) -> bool:
        """Note a call by the leaf of each of its heads; True when it is time to look at the likelihoods again."""
        self._tools[tool] += 1
        for k, leaf in leaves.items():
            known = self._values.setdefault((k, tool), {})
            known[leaf] = known.get(leaf, 0.0) + 1
        self._left -= 1
        if self._left:
            return False
        if self._every == LEARN_EVERY:  # older calls fade
            self._tools = [c / 2 for c in self._tools]
            self._values = {key: {n: c / 2 for n, c in known.items()} for key, known in self._values.items()}
        self._left = self._every = min(2 * self._every, LEARN_EVERY)
        return True

    def tools(self) -> tuple[float, ...]:
        """The likelihood of each tool, and of the null function head."""
        total = sum(self._tools) + PRIOR
        return (*((c + self._base) / total for c in self._tools[:-1]), self._tools[-1] / total)

    def values(self, k: int, tool: int, leaves: Sequence[int]) -> list[float]:
        """The weight of each leaf of a head, for one tool."""
        known = self._values.get((k, tool), {})
        return [PRIOR / len(leaves) + known.get(n, 0.0) for n in leaves]


class Passes:
    """Chooses the nodes of every pass for one plan; the walks of a decision go on where their nodes are evaluated.

    How likely a node will be needed follows from `usage` as it is now.
    """

    def __init__(self, plan: SchemaPlan, walker: Walker, budget: Budget, usage: Usage | None = None) -> None:
        self.plan, self.walker, self.budget = plan, walker, budget
        self._usage = usage or Usage(len(plan.tools))
        self._likely = self._usage.tools()
        self._below: dict[tuple[int, int, int], list[int]] = {}
        self._needs: dict[Entry, dict[int, float]] = {}
        self.start = self._start()
        self.first = self.wanted([HeadState() for _ in plan.heads], None, self.start)

    def _start(self) -> dict[int, Walk]:
        walks = {}
        for k, head in enumerate(self.plan.heads):
            everything = FUNCTION_BIT if k == 0 else self.plan.all_tools
            if head.trie.needed(everything):
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
            if k in walks and walks[k].pending:
                nodes = self._nodes(k, heads[k], walks[k].node, tools)
            elif head.free_mask & tools and 0 not in heads[k].slots:
                likely = self._weight(head.free_mask & tools) / self._weight(tools)
                nodes = [0] if likely >= self.budget.share - MARGIN else []
            lists.append([(k, n) for n in nodes])
        # The cap on all nodes takes from every head in turn, so that no head starves.
        merged = [entry for rank in range(max(map(len, lists))) for lane in lists for entry in lane[rank : rank + 1]]
        return sorted(merged[: self.budget.total], key=lambda e: e[0])

    def _nodes(self, k: int, state: HeadState, node: int, tools: int) -> list[int]:
        """Nodes to evaluate so that a walk pending at `node` can go on: what leads there, then the nodes below that
        are likely enough to be needed, breadth-first in declared order."""
        trie = self.plan.heads[k].trie
        key = (k, node, tools)
        below = self._below.get(key)
        if below is None:
            below = trie.needed(tools, node)
            if self.budget.share:
                below = [n for n in below if self._likelihood(k, n, node, tools) >= self.budget.share - MARGIN]
            self._below[key] = below
        if not below:
            return []
        chain: list[int] = []
        up = trie.parents[node]
        while up >= 0 and up not in state.slots:
            chain.append(up)
            up = trie.parents[up]
        return [*reversed(chain), *(n for n in below if n not in state.slots)][: self.budget.per_head]

    def _likelihood(self, k: int, node: int, pending: int, tools: int) -> float:
        """How likely a walk that is pending at a node will need one below it, from what was called
        of late. Never larger than its parent's."""
        if k == 0:
            needs = self._need(0, ANY_TOOL)
            return needs[node] / needs[pending]
        total = 0.0
        for tool in range(tools.bit_length()):
            if tools >> tool & 1:
                needs = self._need(k, tool)
                if node in needs:
                    total += self._likely[tool] * needs[node] / needs[pending]
        return total / self._weight(tools)

    def _weight(self, tools: int) -> float:
        """The likelihood that one of the tools is called; as long as it may be any, that of a null call included."""
        total = sum(self._likely[t] for t in range(len(self.plan.tools)) if tools >> t & 1)
        return 1.0 if len(self.plan.tools) > 1 and tools == self.plan.all_tools else total

    def _need(self, k: int, tool: int) -> dict[int, float]:
        """The weight of the tool's values below each node that branches for it or leads there."""
        found = self._needs.get((k, tool))
        if found is None:
            trie = self.plan.heads[k].trie
            counts: dict[int, float] = {}
            leaves = [n for n, values in trie.leaves.items() if tool in values]
            if k == 0:
                weights = [self._likely[trie.leaves[n][ANY_TOOL]] for n in leaves]
            else:
                weights = self._usage.values(k, tool, leaves)
            for leaf, weight in zip(leaves, weights, strict=True):
                up = trie.parents[leaf]
                while up >= 0:
                    counts[up] = counts.get(up, 0.0) + weight
                    up = trie.parents[up]
            found = {n: counts[n] for n in trie.needed(1 << tool) if n in counts}
            self._needs[k, tool] = found
        return found
