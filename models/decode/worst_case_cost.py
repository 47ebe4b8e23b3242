"""The worst call of a tool: how many passes it takes, and how many nodes they carry. Known from the schema and the
tokenizer, before a model is loaded.

Of each head only what branches matters, so its trie is reduced to shapes: nodes below which the same may follow are
one. A million numbers have a few dozen shapes, and all calls can be followed at once, pass by pass.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rtcontrol.models.decode.plan import ANY_TOOL, ROOT, NumberTrie, SchemaPlan, TokenTrie, TrieNode
from rtcontrol.models.decode.protocol import Budget, PassCost
from rtcontrol.models.decode.walk import FUNCTION_BIT, HeadState, Walker

Pending = tuple[int, int]  # the shape of the node that a walk waits for, and how many above it are not evaluated either
LOOKED = 128  # ways in which a step's numbers may lie between round ones, up to which they are told apart


@dataclass
class Shapes:
    """What can follow at a tool's nodes: whether the model chooses there, which shapes come below (in declared order;
    of nodes whose logits may be needed), and how many nodes these are in all."""

    chooses: list[bool] = field(default_factory=list)
    below: list[tuple[int, ...]] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    of: dict[Hashable, int] = field(default_factory=dict)  # by what the trie says is alike

    def add(self, trie: TokenTrie, tool: int, every: bool) -> None:
        """All of a tool's, the root's included; `every`: also of nodes where nothing is chosen, but for leaves."""
        known: dict[tuple[bool, tuple[int, ...]], int] = {}
        looked: dict[Hashable, tuple[bool, list[Hashable]]] = {}
        stack: list[tuple[Hashable, TrieNode]] = [(trie.alike(ROOT, tool), ROOT)]
        while stack:
            alike, node = stack[-1]
            if alike not in looked:
                legal, below = _children(trie, node, tool, every)
                named = [(trie.alike(c, tool), c) for c in below]
                looked[alike] = every or legal > 1, [name for name, _ in named]
                stack += [one for one in named if one[0] not in looked]
                continue
            stack.pop()
            if alike not in self.of:  # all below it are known by now
                shape = looked[alike][0], tuple(self.of[name] for name in looked[alike][1])
                if shape not in known:
                    known[shape] = len(self.below)
                    self.chooses.append(shape[0])
                    self.below.append(shape[1])
                    self.size.append(1 + sum(self.size[s] for s in shape[1]))
                self.of[alike] = known[shape]

    def after(self, pending: Pending, carried: int) -> Iterable[Pending]:
        """Where walks may wait after a pass that carried so many nodes: first those above, then breadth-first."""
        shape, above = pending
        if carried <= above:
            return [(shape, above - carried)]
        order = [shape]
        for at in range(carried - above):
            if at == len(order):
                break
            order += self.below[order[at]]
        return {self.waits(s) for s in order[carried - above :]}

    def waits(self, shape: int) -> Pending:
        """Of a walk that comes to a node of this shape."""
        above = 0
        while not self.chooses[shape]:
            (shape,) = self.below[shape]
            above += 1
        return shape, above


def _children(trie: TokenTrie, node: TrieNode, tool: int, every: bool) -> tuple[int, list[TrieNode]]:
    """How many are legal for a tool, and those that it may need the logits of."""
    found = [(c, legal, several) for c in trie.children(node).values() for legal, several in [trie.tools(c)]]
    count = sum(legal >> tool & 1 for _, legal, _ in found)
    if every:
        return count, [c for c, legal, _ in found if legal >> tool & 1 and trie.children(c)]
    return count, [c for c, _, several in found if several >> tool & 1]


class _Argument:
    """A head that a tool's call has a value of: all walks that are not done yet, each with the most nodes that were
    carried for it."""

    def __init__(self, walker: Walker, k: int, tool: int) -> None:
        self._walker, self._k, head = walker, k, walker.plan.heads[k]
        self._trie, self._budget = head.trie, walker.budget
        self._first = {n for head, n in walker.first if head == k}
        self.nodes = len(self._first)
        self.shapes, self.waiting = Shapes(), dict[Pending, int]()
        self.free = tool in head.free and ROOT not in self._first
        every = self._budget.forced
        if tool not in head.free and self._trie.tools(ROOT)[not every] >> tool & 1:
            if isinstance(self._trie, NumberTrie) and tool in head.grids and head.grids[tool].remainders > LOOKED:
                self._trie = self._trie.finer(tool)
            self.shapes.add(self._trie, tool, every)
            self.waiting = dict.fromkeys(self._after_first(tool, every), self.nodes)

    def _after_first(self, tool: int, every: bool) -> Iterator[Pending]:
        """Where walks wait after the first pass, which is the same for all calls."""
        stack = [ROOT]
        while stack:
            node = stack.pop()
            if node in self._first:
                stack += _children(self._trie, node, tool, every)[1]
            else:
                yield self.shapes.waits(self.shapes.of[self._trie.alike(node, tool)])

    @property
    def longest(self) -> int:
        """The most nodes that are wanted in a pass, once the tool is known."""
        return max(map(self._wanted, self.waiting), default=int(self.free))

    def _wanted(self, pending: Pending) -> int:
        shape, above = pending
        below = 1 if self._budget.forced else min(self.shapes.size[shape], self._budget.per_head)
        return above + below if self._budget.paths else min(above + below, self._budget.per_head)

    def guessed(self, tools: int) -> int:
        """The most nodes that are wanted in a pass while it may be one of these tools."""
        head, limit = self._walker.plan.heads[self._k], self._budget.per_head
        if not (self._trie.tools(ROOT)[0] | head.free_mask) & tools:
            return 0
        needed = self._trie.needed(tools, limit=limit + len(self._first))
        # Beside those: what only leads to one value of each tool, but to several of all.
        longest = max(map(len, self._trie.leaves), default=1)
        above = max([longest, *(grid.longest for grid in head.grids.values())]) - 1
        below = max(sum(n not in self._first for n in needed), 1)
        return above + min(below, limit) if self._budget.paths else min(above + below, limit)

    def carry(self, room: int) -> None:
        """A pass in which there is so much room."""
        before, self.waiting = self.waiting, {}
        if self.free and room:
            self.nodes, self.free = self.nodes + 1, False
        for pending, nodes in before.items():
            carried = min(self._wanted(pending), room)
            self.nodes = max(self.nodes, nodes + carried)
            for after in self.shapes.after(pending, carried):
                self.waiting[after] = max(self.waiting.get(after, 0), nodes + carried)

    def waste(self, nodes: int) -> None:
        """A pass in which so many were carried that turned out to be another tool's."""
        self.nodes += nodes
        self.waiting = {pending: carried + nodes for pending, carried in self.waiting.items()}


class _Function:
    """The function head, whose value is known: the tool's name."""

    def __init__(self, walker: Walker, tool: int) -> None:
        self._walker, self.state = walker, HeadState()
        leaves = walker.plan.function.trie.leaves.items()
        self._leaf = next(leaf for leaf, values in leaves if values.get(ANY_TOOL) == tool)
        self.carry([n for k, n in walker.first if k == 0])

    def carry(self, nodes: Iterable[TrieNode]) -> None:
        self.state.slots.update(dict.fromkeys(nodes, 0))

    @property
    def pending(self) -> TrieNode | None:
        for node in (self._leaf[:end] for end in range(len(self._leaf))):
            several = len(self._walker.choices(0, node, FUNCTION_BIT)[1]) > 1
            if node not in self.state.slots and (several or self._walker.budget.forced):
                return node
        return None


def worst_call(walker: Walker, tool: int) -> tuple[int, int]:
    """(passes, nodes): the most that a call of the tool takes, each of them, be it of different calls; of a free value
    the head's own token alone.

    No call takes more; and one takes as many, but in three cases. Where the function is not known after the first pass,
    what arguments carry until it is counts as another tool's. Where heads crowd each other out of `budget.total` after
    the first pass, each gets what is left when all others want the most that they may want then. And of a step that is
    odd (16.67), all numbers between count as well."""
    total = walker.budget.total
    function = _Function(walker, tool)
    heads = [_Argument(walker, k, tool) for k in range(1, len(walker.plan.heads))]
    passes, crowded, sent = int(bool(walker.first)), False, len(walker.first)
    own = len(function.state.slots)
    while True:
        wanted: list[TrieNode] = []
        if (node := function.pending) is not None:
            wanted = walker.nodes(0, function.state, node, FUNCTION_BIT)
        tools = 1 << tool if node is None else walker.possible_tools(node)
        known = tools == 1 << tool
        if known and (node is None or not walker.budget.function_first):
            longest = [head.longest for head in heads]
        else:
            longest = [0 if walker.budget.function_first else head.guessed(tools) for head in heads]
        longest = [len(wanted), *longest]
        if not any(longest):
            return passes, sent if crowded else own + sum(head.nodes for head in heads)
        passes, sent, crowded = passes + 1, sent + min(sum(longest), total), crowded or sum(longest) > total
        rooms = [_room(longest, k, total) for k in range(len(longest))]
        function.carry(wanted[: rooms[0]])
        own += min(len(wanted), rooms[0])
        for head, room, most in zip(heads, rooms[1:], longest[1:], strict=True):
            head.carry(room) if known else head.waste(most)


def _room(longest: Sequence[int], k: int, total: int) -> int:
    """Of `total` nodes so many are surely left to a head: each gets one in turn, until it has all it wants."""
    rank = 0
    while rank < longest[k] and sum(min(n, rank + (j < k)) for j, n in enumerate(longest)) < total:
        rank += 1
    return rank


WORST = 1.5  # so much more than the other's its worst call may cost, where a layout is chosen for its mean
NEAR = 1.02  # costs closer than that are equal: fewer passes win


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
