"""The baseline: constrained parallel heads, a forward pass a token, in the same engine with the same cache.

Each head is walked alone over the union of all tools' values, as an engine must that does not know the function yet; a
value that is illegal for the chosen function is decoded again, restricted (design, section 4).
"""

from __future__ import annotations

import math
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.decoder import PackedDecoder
from rtcontrol.models.engines.base import NotFinite
from rtcontrol.models.packed import Node
from rtcontrol.models.plan import ANY_TOOL, NO_TOOL
from rtcontrol.models.schema import ABSENT


class _Head:
    """One head under way: where its walk stands, and the KV slots of its path."""

    def __init__(self, decoder: PackedDecoder, k: int, tools: int, skip_forced: bool) -> None:
        self.k, self.tools = k, tools
        self._decoder, self._skip = decoder, skip_forced
        self._trie = decoder.plan.heads[k].trie
        self.node = 0
        self.slots: list[int] = []
        self.pending: list[int] = [0]  # trie nodes whose tokens go into the next pass
        self._settle()

    @property
    def done(self) -> bool:
        return self.node in self._trie.leaves

    def nodes(self, base: int) -> list[Node]:
        """The pending nodes, to be put at KV slots from `base`."""
        found = []
        for i, n in enumerate(self.pending):
            found.append(Node(self._trie.tokens[n], self._trie.depths[n], (*self.slots, *range(base, base + i))))
        return found

    def advance(self, base: int, row: list[float]) -> None:
        """The pass is done: choose the next token from the logits at the last pending node."""
        self.slots += range(base, base + len(self.pending))
        columns, children = self._decoder.walker.choices(self.k, self.node, self.tools)
        values = [row[c] for c in columns]
        if len(values) > 1 and not math.isfinite(sum(values)):
            raise NotFinite
        # A single legal token is taken without a look at the logits, as a mask would force it.
        self.node = children[values.index(max(values)) if len(values) > 1 else 0]
        self.pending = [] if self.done else [self.node]
        self._settle()

    def _settle(self) -> None:
        """With forced tokens skipped: follow them to the next branching node, and carry the chain in one pass."""
        while self._skip and not self.done:
            _, children = self._decoder.walker.choices(self.k, self.node, self.tools)
            if len(children) > 1:
                return
            self.node = children[0]
            self.pending.append(self.node)
        if self.done:
            self.pending = []


def token_by_token(decoder: PackedDecoder, skip_forced: bool) -> tuple[Call | None, int]:
    """(call, heads decoded again) for the prompt that was started on the decoder's sequence; closed schemas only."""
    plan = decoder.plan
    heads = [
        _Head(decoder, k, 1 << ANY_TOOL if k == 0 else plan.all_tools, skip_forced) for k in range(len(plan.heads))
    ]
    _run(decoder, heads)
    tool = plan.function.trie.leaves[heads[0].node][ANY_TOOL]
    if tool == NO_TOOL:
        return None, 0
    arguments: dict[str, Any] = {}
    again = 0
    for k, slot in enumerate(plan.slots[tool], start=1):
        head = heads[k]
        if tool not in plan.heads[k].trie.leaves[head.node]:
            head = _Head(decoder, k, 1 << tool, skip_forced)
            _run(decoder, [head])
            again += 1
        value = plan.heads[k].trie.leaves[head.node][tool]
        if value is not ABSENT:
            arguments |= slot.arguments(value)
    return Call(plan.tools[tool].name, arguments), again


def _run(decoder: PackedDecoder, heads: list[_Head]) -> None:
    while active := [h for h in heads if not h.done]:
        nodes: list[Node] = []
        places = []
        for head in active:
            places.append((decoder.sequence.nodes + len(nodes), len(nodes) + len(head.pending) - 1))
            nodes += head.nodes(places[-1][0])
        hidden = decoder.sequence.run(nodes)
        rows = decoder.logits(hidden[[last for _, last in places]])
        for head, (base, _), row in zip(active, places, rows, strict=True):
            head.advance(base, row)
