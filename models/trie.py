"""A head's token trie: every legal value, as the tokenizer encodes it after the head token, end token included."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rtcontrol.models.grid import NumberGrid

TrieNode = tuple[int, ...]  # the tokens that lead to it from the head token, whose own node is ROOT
ROOT: TrieNode = ()
END = "$"  # in the text of a number's node: the end token
KEPT = 4096  # computed nodes that are remembered


class TokenTrie:
    """Tools are bits of an int mask. A leaf carries typed values, one for each tool it is legal for: it is never parsed
    back from text."""

    def __init__(self, head_token: int) -> None:
        self._head = head_token
        self.leaves: dict[TrieNode, dict[int, Any]] = {}  # the listed ones
        self.held = 0  # tokens, of all listed nodes
        self._children: dict[TrieNode, dict[int, TrieNode]] = {}
        self._tools: dict[TrieNode, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Listed nodes."""
        return len(self._tools)

    def insert(self, path: Sequence[int], tool: int, value: Any) -> bool:
        """Add one value's token path for one tool; False when the tool already has a value on this very path."""
        leaf, bit = tuple(path), 1 << tool
        values = self.leaves.setdefault(leaf, {})
        if tool in values:
            return False
        values[tool] = value
        for end in range(len(leaf) + 1):
            node = leaf[:end]
            if end and node not in self._tools:
                self._children.setdefault(node[:-1], {})[node[-1]] = node
                self.held += end
            legal, several = self._tools.get(node, (0, 0))
            self._tools[node] = legal | bit, several | legal & bit
        return True

    def token(self, node: TrieNode) -> int:
        """The last token of a node."""
        return node[-1] if node else self._head

    def tools(self, node: TrieNode) -> tuple[int, int]:
        """The tools that a node leads to a value of, and those that it leads to several values of."""
        return self._tools.get(node, (0, 0))

    def children(self, node: TrieNode) -> dict[int, TrieNode]:
        """By token, in declared order."""
        return self._children.get(node, {})

    def value(self, leaf: TrieNode, tool: int) -> Any:
        """Of a leaf that is legal for a tool."""
        return self.leaves[leaf][tool]

    def alike(self, node: TrieNode, tool: int) -> Hashable:
        """The same of nodes below which the same may follow for a tool, in the same order (not of all of them)."""
        return node

    @property
    def choices(self) -> set[int]:
        """The tokens between which the model chooses somewhere."""
        return {t for c in self._children.values() if len(c) > 1 for t in c}

    def legal_children(self, node: TrieNode, tools: int) -> list[tuple[int, TrieNode]]:
        """(token, node) of the children that lead to a value of one of the tools in the mask, by token id: so ties go
        to the lowest."""
        return sorted((t, c) for t, c in self.children(node).items() if self.tools(c)[0] & tools)

    def needed(self, tools: int, start: TrieNode = ROOT, limit: int | None = None) -> list[TrieNode]:
        """The nodes below and including `start` whose logits the walk may need for the given tools: those that branch
        for one of them, and what leads there; breadth-first, children in declared order, at most `limit`."""
        order = [start] if self.tools(start)[1] & tools else []
        for node in order:
            if limit is not None and len(order) >= limit:
                break
            order.extend(c for c in self.children(node).values() if self.tools(c)[1] & tools)
        return order[:limit]


class NumberTrie(TokenTrie):
    """A trie whose tools may also have all numbers of a grid, `spelled` character by character: nodes that spell one
    are computed, not listed, so a trie of a million numbers takes no room, and nothing grows while it is walked."""

    def __init__(
        self, head_token: int, end_id: int, spelled: Mapping[str, int], grids: Mapping[int, NumberGrid]
    ) -> None:
        super().__init__(head_token)
        self._spelled = {**spelled, END: end_id}
        self._letters = {token: letter for letter, token in self._spelled.items()}
        self._grids: dict[NumberGrid, int] = {}  # the tools that have its numbers
        for tool, grid in grids.items():
            self._grids[grid] = self._grids.get(grid, 0) | 1 << tool
        self._counted = lru_cache(KEPT)(self._count)

    def tools(self, node: TrieNode) -> tuple[int, int]:
        listed, counted = super().tools(node), self._counted(self._text(node))
        return listed[0] | counted[0], listed[1] | counted[1]

    def children(self, node: TrieNode) -> dict[int, TrieNode]:
        text = self._text(node)
        more = {t: (*node, t) for letter, t in self._spelled.items() if self._counted(text + letter)[0]}
        return super().children(node) | more

    def alike(self, node: TrieNode, tool: int) -> Hashable:
        grid = self._grid(tool)
        if grid is None or super().children(node):  # listed children may come in another order
            return node
        return grid.alike(self._text(node))

    def finer(self, tool: int) -> NumberTrie:
        """The same with all numbers between a tool's own, as many decimals as they have."""
        grids = {t: g.finer() if t == tool else g for g, tools in self._grids.items() for t in _bits(tools)}
        made = NumberTrie(self._head, self._spelled[END], self._spelled, grids)
        for leaf, values in self.leaves.items():
            for owner, value in values.items():
                made.insert(leaf, owner, value)
        return made

    def value(self, leaf: TrieNode, tool: int) -> Any:
        if tool in self.leaves.get(leaf, ()):
            return super().value(leaf, tool)
        grid = self._grid(tool)
        assert grid is not None
        return grid.value(self._text(leaf).removesuffix(END))

    @property
    def choices(self) -> set[int]:
        joined = {t for node, own in self._children.items() if self._counted(self._text(node))[0] for t in own}
        return super().choices | joined | set(self._spelled.values())

    def _grid(self, tool: int) -> NumberGrid | None:
        return next((grid for grid, tools in self._grids.items() if tools >> tool & 1), None)

    def _text(self, node: TrieNode) -> str:
        """What a node spells; what is no number's beginning has characters that none has."""
        return "".join(self._letters.get(token, "?") for token in node)

    def _count(self, text: str) -> tuple[int, int]:
        """The tools with a number that begins so, and with several."""
        legal = several = 0
        for grid, tools in self._grids.items():
            if text.endswith(END):
                legal |= tools * (grid.value(text[:-1]) is not None)
            elif count := grid.below(text):
                legal |= tools
                several |= tools * (count > 1)
        return legal, several


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
