"""A head's token trie: every legal value, as the tokenizer encodes it after the head token, end token included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TokenTrie:
    """Nodes in insertion order; node 0 is the head token. Tools are bits of an int mask.

    A leaf carries typed values, one for each tool it is legal for: it is never parsed back from text.
    """

    def __init__(self, head_token: int) -> None:
        self.tokens = [head_token]
        self.parents = [-1]
        self.depths = [0]
        self.children: list[dict[int, int]] = [{}]
        self.legal = [0]
        self.leaves: dict[int, dict[int, Any]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def insert(self, path: Sequence[int], tool: int, value: Any) -> bool:
        """Add one value's token path for one tool; False when the tool already has a value on this very path."""
        node = 0
        self.legal[0] |= 1 << tool
        for token in path:
            child = self.children[node].get(token)
            if child is None:
                child = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(self.depths[node] + 1)
                self.children.append({})
                self.legal.append(0)
                self.children[node][token] = child
            self.legal[child] |= 1 << tool
            node = child
        values = self.leaves.setdefault(node, {})
        if tool in values:
            return False
        values[tool] = value
        return True

    def finish(self) -> None:
        """Sort children by token id, so that ties go to the lowest id."""
        self.children = [dict(sorted(c.items())) for c in self.children]

    def legal_children(self, node: int, tools: int) -> list[tuple[int, int]]:
        """(token, node) of the children that lead to a value of one of the tools in the mask, by token id."""
        return [(t, c) for t, c in self.children[node].items() if self.legal[c] & tools]

    def branches_for(self, node: int) -> int:
        """The tools for which this node has two legal children or more."""
        once = twice = 0
        for child in self.children[node].values():
            twice |= once & self.legal[child]
            once |= self.legal[child]
        return twice

    def needed(self, tools: int, start: int = 0) -> list[int]:
        """The nodes below and including `start` whose logits the walk may need for the given tools: those that branch
        for one of them, and what leads there; breadth-first, children in insertion (declared) order."""
        found: dict[int, bool] = {}

        order: list[int] = [start]
        for node in order:
            order.extend(c for c in sorted(self.children[node].values()) if self.legal[c] & tools)
        for node in reversed(order):
            below = any(found[c] for c in self.children[node].values() if c in found)
            found[node] = below or bool(self.branches_for(node) & tools)
        return [n for n in order if found[n]]
