"""A head's token trie: every legal value, as the tokenizer encodes it after the head token, end token included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from rtcontrol.models.grid import NumberGrid

T = TypeVar("T")
END = "$"  # in the text of a number's node: the end token
KEPT = 4096  # computed nodes that are remembered


class TokenTrie:
    """Nodes in insertion order; node 0 is the head token. Tools are bits of an int mask: of the tools that a node leads
    to a value of (`legal`), and to two values or more (`several`).

    A leaf carries typed values, one for each tool it is legal for: it is never parsed back from text.
    """

    def __init__(self, head_token: int) -> None:
        self.tokens = [head_token]
        self.parents = [-1]
        self.depths = [0]
        self.children: list[dict[int, int]] = [{}]
        self.legal = [0]
        self.several = [0]
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
        """Sort children by token id, so that ties go to the lowest id; count the values below."""
        self.children = [dict(sorted(c.items())) for c in self.children]
        self.several = [0] * len(self)
        for node in reversed(range(len(self))):
            once = 0
            for child in self.children[node].values():
                self.several[node] |= self.several[child] | once & self.legal[child]
                once |= self.legal[child]

    @property
    def choices(self) -> set[int]:
        """The tokens between which the model chooses somewhere."""
        return {t for c in self.children if len(c) > 1 for t in c}

    def legal_children(self, node: int, tools: int) -> list[tuple[int, int]]:
        """(token, node) of the children that lead to a value of one of the tools in the mask, by token id."""
        return [(t, c) for t, c in self.children[node].items() if self.legal[c] & tools]

    def needed(self, tools: int, start: int = 0, limit: int | None = None) -> list[int]:
        """The nodes below and including `start` whose logits the walk may need for the given tools: those that branch
        for one of them, and what leads there; breadth-first, children in insertion (declared) order, at most
        `limit`."""
        order = [start] if self.several[start] & tools else []
        for node in order:
            if limit is not None and len(order) >= limit:
                break
            order.extend(c for c in sorted(self.children[node].values()) if self.several[c] & tools)
        return order[:limit]


class _Nodes(list[T]):
    """What is known of each node: of those beyond the listed ones it is computed."""

    def __init__(self, listed: Sequence[T], of: Callable[[int], T]) -> None:
        super().__init__(listed)
        self._of = of

    def __getitem__(self, node: int) -> T:  # type: ignore[override]
        return list.__getitem__(self, node) if node < len(self) else self._of(node)


class _Leaves(dict[int, dict[int, Any]]):
    def __init__(self, listed: Mapping[int, dict[int, Any]], of: Callable[[int], dict[int, Any]]) -> None:
        super().__init__(listed)
        self._of = of

    def __contains__(self, node: object) -> bool:
        return dict.__contains__(self, node) or bool(self._of(node))  # type: ignore[arg-type]

    def __missing__(self, node: int) -> dict[int, Any]:
        return self._of(node)


class NumberTrie(TokenTrie):
    """A trie whose tools may also have the numbers of a grid, `spelled` character by character: nodes that spell one
    are not listed unless a listed value has them, too. Their ids are beyond the list and say what they spell, so a
    trie of a million numbers takes no room, and nothing grows while it is walked."""

    def __init__(self, head_token: int, end_id: int, spelled: Mapping[str, int]) -> None:
        super().__init__(head_token)
        self._spelled = {**spelled, END: end_id}
        self._letters = "".join(self._spelled)
        self._grids: dict[NumberGrid, int] = {}  # the tools that have its numbers

    def add(self, tool: int, grid: NumberGrid) -> None:
        """All numbers of a grid for one tool."""
        self._grids[grid] = self._grids.get(grid, 0) | 1 << tool
        self.legal[0] |= 1 << tool

    def finish(self) -> None:
        super().finish()
        of = {token: letter for letter, token in self._spelled.items()}
        self._texts = {0: ""}  # of the listed nodes that spell a number's beginning
        for node in range(1, len(self)):
            if self.parents[node] in self._texts and self.tokens[node] in of:
                self._texts[node] = self._texts[self.parents[node]] + of[self.tokens[node]]
        self._listed = {text: node for node, text in self._texts.items()}
        self._own = {n: self.children[n] for n in self._texts}
        self._text, self._counts = lru_cache(KEPT)(self._text_of), lru_cache(KEPT)(self._count)
        below = lru_cache(KEPT)(self._below)
        for node, text in self._texts.items():
            legal, several = self._counts(text)
            self.legal[node] |= legal
            self.several[node] |= several
            if leaf := self._leaf(text):
                self.leaves[node] = {**self.leaves.get(node, {}), **leaf}
        self.children = _Nodes([below(n) if n in self._own else c for n, c in enumerate(self.children)], below)
        self.tokens = _Nodes(self.tokens, lambda n: self._spelled[self._text(n)[-1]])
        self.parents = _Nodes(self.parents, lambda n: self._node(self._text(n)[:-1]))
        self.depths = _Nodes(self.depths, lambda n: len(self._text(n)))
        self.legal = _Nodes(self.legal, lambda n: self._counts(self._text(n))[0])
        self.several = _Nodes(self.several, lambda n: self._counts(self._text(n))[1])
        self.leaves = _Leaves(self.leaves, lambda n: self._leaf(self._text(n)) if n >= len(self) else {})

    @property
    def choices(self) -> set[int]:
        return super().choices | {t for own in self._own.values() for t in own} | set(self._spelled.values())

    def _node(self, text: str) -> int:
        """The node that spells a text: a listed one, or a number of its letters."""
        if (listed := self._listed.get(text)) is not None:
            return listed
        code = 0
        for letter in text:
            code = code * (len(self._letters) + 1) + self._letters.index(letter) + 1
        return len(self) + code

    def _text_of(self, node: int) -> str:
        if node < len(self):
            return self._texts[node]
        code, found = node - len(self), ""
        while code:
            code, letter = divmod(code, len(self._letters) + 1)
            found = self._letters[letter - 1] + found
        return found

    def _leaf(self, text: str) -> dict[int, Any]:
        """The numbers that are spelled so, by tool."""
        legal = self._counts(text)[0] if text.endswith(END) else 0
        values = ((grid.value(text[:-1]), tools) for grid, tools in self._grids.items() if tools & legal)
        return {tool: v for v, tools in values for tool in range(tools.bit_length()) if tools >> tool & 1}

    def _count(self, text: str) -> tuple[int, int]:
        """The tools with a number that begins so, and with several."""
        legal = several = 0
        for grid, tools in self._grids.items():
            if text.endswith(END):
                legal |= tools * (grid.below(text[:-1]) > 0 and grid.value(text[:-1]) is not None)
            elif count := grid.below(text):
                legal |= tools
                several |= tools * (count > 1)
        return legal, several

    def _below(self, node: int) -> dict[int, int]:
        """The children of a node that spells a number's beginning."""
        text, own = self._text(node), self._own.get(node, {})
        if text.endswith(END):
            return {}
        more = {t: self._node(text + c) for c, t in self._spelled.items() if self._counts(text + c)[0]}
        return dict(sorted({**more, **own}.items()))
