"""Walk down token tries to the best child at each node, until a value, or a node whose logits are not computed yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from rtcontrol.models.decode.plan import ANY_TOOL, MAX_CACHED, NO_TOOL, ROOT, SchemaPlan, TokenTrie, TrieNode
from rtcontrol.models.decode.protocol import Budget, NotFinite, PassCost

FUNCTION_BIT = 1 << ANY_TOOL
HeadNode = tuple[int, TrieNode]  # (index of a head, node of its trie)


@dataclass
class HeadState:
    """The evaluated trie nodes of one head. `slots` has the number of each node, and `rows` its logits."""

    slots: dict[TrieNode, int] = field(default_factory=dict)
    rows: dict[TrieNode, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a walk. `node` is a leaf, or, if `pending` is True, a branching node whose logits are not computed
    yet. `visited` has the branching nodes between the root and `node`."""

    node: TrieNode = ROOT
    pending: bool = True
    confidence: float = 1.0
    visited: tuple[TrieNode, ...] = ()


def best_of(scores: Sequence[float], place: int | None = None) -> tuple[int, float]:
    """Return the index of the first largest score (or `place` if it is not None), and the softmax probability of this
    index. Raises NotFinite."""
    if not math.isfinite(sum(scores)):
        raise NotFinite
    maximum = max(scores)
    place = scores.index(maximum) if place is None else place
    return place, math.exp(scores[place] - maximum) / math.fsum(math.exp(score - maximum) for score in scores)


class Walker:
    """Walks the tries of one plan greedily, and chooses the nodes that the next pass evaluates, within a budget.
    `first` has the nodes of a decision's first pass. `column` maps a token id to its column in a row of logits."""

    def __init__(self, plan: SchemaPlan, budget: Budget) -> None:
        self.plan, self.budget = plan, budget
        self.columns = tuple(sorted({t for h in plan.heads for t in h.trie.branching_tokens}))
        self.column = {token: i for i, token in enumerate(self.columns)}
        self.choices = lru_cache(MAX_CACHED)(self._choices)
        self.possible_tools = lru_cache(MAX_CACHED)(self._possible_tools)
        self._below = lru_cache(MAX_CACHED)(self._needed)
        legal_or_several = 0 if budget.forced else 1
        self.start = {k: Walk() for k, h in enumerate(plan.heads) if h.trie.tool_masks(ROOT)[legal_or_several]}
        self._function_first = budget.function_first and 0 in self.start
        self.first = self.next_nodes([HeadState() for _ in plan.heads], None, self.start)

    def walk(
        self,
        head: int,
        state: HeadState,
        tools: int,
        leaf: TrieNode | None = None,
        within: Collection[TrieNode] | None = None,
    ) -> Walk:
        """Walk from the head token to the best legal child at each node. If scores are equal, take the lowest token id.
        `tools` is the mask of tools whose values are legal.

        With a `leaf`, walk to this leaf, to get its probability. With `within`, walk only over these nodes, but compute
        the probability among all legal values. Raises NotFinite."""
        node, confidence = ROOT, 1.0
        visited: list[TrieNode] = []
        while node != leaf:
            columns, children = self.choices(head, node, tools)
            if not children:
                break
            row = state.rows.get(node)
            if len(children) == 1 and not (self.budget.forced and row is None):
                node = children[0]
                continue
            if row is None:
                return Walk(node, True, confidence, tuple(visited))
            scores = [row[c] for c in columns]
            place = None if leaf is None else children.index(leaf[: len(node) + 1])
            if within is not None:
                place = max((i for i, child in enumerate(children) if child in within), key=scores.__getitem__)
            best, share = best_of(scores, place)
            confidence *= share
            visited.append(node)
            node = children[best]
        return Walk(node, False, confidence, tuple(visited))

    def walk_heads(
        self, heads: Sequence[HeadState], walk: Callable[[int, HeadState, int], Walk] | None = None
    ) -> tuple[int | None, dict[int, Walk], Sequence[int]]:
        """Walk all heads with `walk` (None: greedily), starting with the function head. Return the tool (None: it is
        not decided), the walks by head, and the heads whose value for the tool is free."""
        walk = walk or self.walk
        walks = {0: walk(0, heads[0], FUNCTION_BIT)}
        if walks[0].pending:
            tool, tools, active = None, self.possible_tools(walks[0].node), len(self.plan.heads)
        else:
            tool = self.plan.function.trie.value(walks[0].node, ANY_TOOL)
            if tool == NO_TOOL:
                return tool, walks, ()
            tools, active = 1 << tool, 1 + len(self.plan.slots[tool])
        free = []
        for k in range(1, active):
            if tool is not None and tool in self.plan.heads[k].free:
                free.append(k)
            elif self.plan.heads[k].trie.tool_masks(ROOT)[0] & tools:
                walks[k] = walk(k, heads[k], tools)
        return tool, walks, free

    def next_nodes(self, heads: Sequence[HeadState], tool: int | None, walks: dict[int, Walk]) -> list[HeadNode]:
        """Return the (head, trie node) pairs that the next pass evaluates within the budget, parents first."""
        lists: list[list[HeadNode]] = []
        called = self.possible_tools(walks.get(0, Walk()).node) if tool is None else 1 << tool
        for k, head in enumerate(self.plan.heads):
            if k and tool is None and self._function_first:
                break
            tools = called if k else FUNCTION_BIT
            nodes: list[TrieNode] = []
            if k in walks and walks[k].pending:
                nodes = self.nodes(k, heads[k], walks[k].node, tools)
            elif head.free_mask & tools and ROOT not in heads[k].slots:
                nodes = [ROOT]
            lists.append([(k, n) for n in nodes])
        # Take nodes from all heads in turn, so that the limit on the total reduces all heads equally.
        merged = [entry for rank in range(max(map(len, lists))) for nodes in lists for entry in nodes[rank : rank + 1]]
        return sorted(merged[: self.budget.total], key=lambda e: e[0])

    def nodes(self, k: int, state: HeadState, node: TrieNode, tools: int) -> list[TrieNode]:
        """Return the nodes to evaluate so that a walk that is pending at `node` can continue: the ancestors of `node`,
        then the nodes from `node` on that may be needed, breadth-first."""
        while self.budget.paths and len(only := self.choices(k, node, tools)[1]) == 1:
            (node,) = only
        above = [node[:end] for end in range(len(node))]
        missing = [n for n in (*above, *self._below(k, node, tools)) if n not in state.slots]
        return missing if self.budget.paths else missing[: self.budget.per_head]

    def _needed(self, k: int, node: TrieNode, tools: int) -> list[TrieNode]:
        trie = self.plan.heads[k].trie
        return [node] if self.budget.forced else trie.needed_nodes(tools, node, self.budget.per_head)

    def _choices(self, head: int, node: TrieNode, tools: int) -> tuple[list[int], list[TrieNode]]:
        """Return the logits columns and the nodes of the children that lead to a legal value, by ascending token id."""
        legal = self.plan.heads[head].trie.legal_children(node, tools)
        # The token of a single child may have no column (-1), because a single child needs no logits.
        return [self.column.get(t, -1) for t, _ in legal], [c for _, c in legal]

    def _possible_tools(self, node: TrieNode) -> int:
        """Return the mask of the tools whose names are at or below a node of the function trie."""
        leaves = self.plan.function.trie.leaves.items()
        below = [values[ANY_TOOL] for leaf, values in leaves if leaf[: len(node)] == node]
        return sum(1 << tool for tool in below if tool != NO_TOOL)


MAX_WORST_RATIO = 1.5  # maximum ratio of worst costs at which the layout with lower mean cost is chosen
EQUAL_RATIO = 1.02  # costs whose ratio is smaller than this count as equal


def worst_call_cost(walker: Walker, tool: int) -> tuple[int, int]:
    """Return the maximum number of passes for a call of the tool, and about how many nodes these passes evaluate. Of
    free values, only the head tokens are counted."""
    first, per_head = {*walker.first}, walker.budget.per_head
    function = next(leaf for leaf, values in walker.plan.function.trie.leaves.items() if values.get(ANY_TOOL) == tool)
    choices = [end for end in range(len(function)) if len(walker.choices(0, function[:end], FUNCTION_BIT)[1]) > 1]
    waits = [end for end in range(max(choices, default=-1) + 1) if (0, function[:end]) not in first]
    passes, nodes = 0, len(first) + len(waits)
    for k, head in enumerate(walker.plan.heads[1 : 1 + len(walker.plan.slots[tool])], start=1):
        carried = [n for head, n in walker.first if head == k]
        if tool in head.free:
            left = 0 if ROOT in carried else 1
        else:
            left = _passes_after(head.trie, tool, carried, per_head)
            nodes += min(len(head.trie.needed_nodes(1 << tool, limit=per_head)), per_head) if left else 0
        passes = max(passes, left)
    return bool(first) + len(waits) + passes, nodes


def _passes_after(trie: TokenTrie, tool: int, evaluated_nodes: Sequence[TrieNode], per_head: int) -> int:
    """Return the maximum number of passes for a head after a pass that evaluated the `evaluated_nodes`."""
    below = [ROOT] if not evaluated_nodes else [c for n in evaluated_nodes for c in trie.children(n).values()]
    known = set(evaluated_nodes)
    waits = [n for n in below if n not in known and trie.tool_masks(n)[1] >> tool & 1]
    nodes = (trie.needed_nodes(1 << tool, n, per_head) for n in waits)
    return max((1 + _passes_after(trie, tool, each, per_head) for each in nodes), default=0)


def choose_layout(plan: SchemaPlan, limit: Budget, measure: Callable[[], PassCost]) -> tuple[Budget, dict[str, Any]]:
    """Choose between evaluating all heads at once and evaluating the function first. Return the budget with the lower
    mean cost over all tools (unless its worst call costs much more), and the figures of this choice."""
    walkers = [Walker(plan, budget) for budget in (limit, replace(limit, function_first=True))]
    if walkers[0].first == walkers[1].first:
        return limit, {"layout": "everything"}
    cost, weighed = measure(), []
    for walker in walkers:
        spent = [worst_call_cost(walker, tool) for tool in range(len(plan.tools))]
        costs = [cost.total_ms(*s) for s in spent]
        weighed.append((sum(costs) / len(costs), max(costs), max(p for p, _ in spent), walker))
    everything, first = weighed
    is_cheaper = first[0] * EQUAL_RATIO < everything[0] and first[1] <= MAX_WORST_RATIO * everything[1]
    chosen = first if is_cheaper else everything
    layout = "function first" if chosen is first else "everything"
    report = {"layout": layout, "passes": chosen[2], "first_nodes": len(chosen[3].first)}
    return chosen[3].budget, {**report, "pass_ms": round(cost.fixed_ms, 3), "token_ms": round(cost.token_ms, 4)}
