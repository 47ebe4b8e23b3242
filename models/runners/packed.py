"""Evaluate uncached prompt tokens and tree nodes as one sequence, on top of the cached tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from rtcontrol.models.decode.core import common_prefix_length
from rtcontrol.models.decode.protocol import Ask, Work
from rtcontrol.models.errors import too_long
from rtcontrol.models.runners.handle import Handle
from rtcontrol.models.runners.lean import LeanModel, Rows

TOGETHER = 64  # decisions in one pass
FEW = 4_096  # ids


Logits = Callable[[Sequence[int], Sequence[int] | None], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Node:
    """A tree node to evaluate: `depth` 0 follows the prompt's last token; `ancestors` are KV slots relative to the
    prompt's end, including nodes of this pass."""

    token: int
    depth: int
    ancestors: tuple[int, ...]


class PackedSequence(Handle):
    """The content of a KV cache: a prompt (prefix and suffix), then the evaluated nodes of the current decision.
    `paths` has for each node the slots that lead there, relative to the prompt's end."""

    def __init__(self, model: LeanModel, slots: int) -> None:
        super().__init__(slots)
        self.model, self.cache = model, model.cache(slots)
        self.columns: dict[tuple[int, ...], torch.Tensor] = {}  # rows of the LM head, by the ids of an ask

    def keep(self, count: int, total: int) -> int:
        self.cache.reserve(count, total, only=True)
        return count

    def cached(self, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of a prompt are cached."""
        return common_prefix_length(self.prompt[: self.done], prompt)

    def restore(self, prompt: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Replace the content by these tokens and their given KV."""
        self.cache.fill(keys, values)
        self.prompt, self.paths, self.done = list(prompt), [], len(prompt)

    def follow(self, other: PackedSequence, prompt: Sequence[int]) -> None:
        """Start a prompt with the leading tokens that another sequence has in common."""
        known = other.cached(prompt)
        self.cache.share(other.cache, known)
        self.prompt, self.paths, self.done = list(prompt[:known]), [], known

    def prefill(self, count: int) -> None:
        """Compute the next `count` tokens of the prompt, and no node."""
        whole = self.prompt
        self.prompt = whole[: self.done + count]
        try:
            self.run(())
        finally:
            self.prompt = whole

    def run(self, nodes: Sequence[Node]) -> torch.Tensor:
        """Evaluate `nodes` together with the uncached part of the prompt; return hidden states [nodes, hidden].

        The nodes take the next slots, in order.
        """
        (hidden,) = run_together(self.model, [(self, nodes)])
        self.ran(nodes)
        return hidden

    def placed(self, work: Work) -> list[Node]:
        """Return the nodes of a work item's tree, with the slots that the nodes will take."""
        tree, paths, base = work.tree, list(self.paths), len(self.paths)
        nodes = []
        for i, (token, parent, depth) in enumerate(zip(tree.tokens, tree.parents, tree.depths, strict=True)):
            above = paths[parent] if parent >= 0 else ()
            paths.append((*above, base + i))
            nodes.append(Node(token, depth, above))
        return nodes

    def rows(self, nodes: Sequence[Node]) -> tuple[list[int], list[int], Rows]:
        """Return the tokens, positions and cache slots of the next pass. Raises UserError if the cache is full."""
        fresh = self.prompt[self.done :]
        past, end = self.done + len(self.paths), len(self.prompt)
        if past + len(fresh) + len(nodes) > self.cache.slots:
            raise too_long(self.cache.slots, end)
        self.cache.reserve(past, past + len(fresh) + len(nodes))
        mask = self.model.mask(past, len(fresh), len(self.paths), tuple([n.ancestors for n in nodes]))
        places = [*range(self.done, end), *(end + n.depth for n in nodes)]
        return fresh + [n.token for n in nodes], places, Rows(self.cache, past, len(places), mask, len(fresh))

    def ran(self, nodes: Sequence[Node]) -> None:
        """Record that the pass which evaluates these nodes is complete."""
        self.done = len(self.prompt)
        self.paths += [(*node.ancestors, i) for i, node in enumerate(nodes, start=len(self.paths))]


def run_together(model: LeanModel, work: Sequence[tuple[PackedSequence, Sequence[Node]]]) -> list[torch.Tensor]:
    """Run one pass for different sequences of a model; return the hidden states [nodes, hidden] of each sequence's
    nodes. A sequence does not change before its `ran` is called."""
    each = [sequence.rows(nodes) for sequence, nodes in work]
    tokens = [t for own, _, _ in each for t in own]
    places = [p for _, own, _ in each for p in own]
    hidden = model.forward(tokens, places, [rows for _, _, rows in each])
    return list(hidden.split([len(nodes) for _, nodes in work])) if len(work) > 1 else [hidden]


def answered(asked: Sequence[tuple[Sequence[Ask], Logits]]) -> list[list[Any]]:
    """Return the answers to the asks of a pass. `logits` returns fp32 rows of a tree's nodes: [nodes, ids], or [nodes,
    vocabulary] for None. The CPU waits for a GPU only once."""
    parts: list[torch.Tensor] = []
    for asks, logits in asked:
        masked = sorted({n for ask in asks if ask.masks is not None for n in ask.nodes})
        legal = _legal(asks) if masked else None
        scores = logits(masked, None if legal is None else legal.tolist()).double() if masked else None
        for ask in asks:
            if scores is None or ask.masks is None:
                parts += [logits(ask.nodes, ask.ids)] if ask.ids and ask.nodes else []
                continue
            rows = scores[[masked.index(n) for n in ask.nodes]]
            mask = torch.from_numpy(ask.masks if legal is None else ask.masks[:, legal]).to(rows.device)
            rows = rows.masked_fill(~mask, -torch.inf)
            best = rows.amax(-1, keepdim=True)
            ids = (rows == best).int().argmax(-1)  # ties go to the first id, as everywhere else
            if legal is not None:
                ids = torch.from_numpy(legal).to(ids.device)[ids]
            parts.append(torch.stack([ids.double(), 1.0 / (rows - best).exp().sum(-1)], -1))
    numbers = iter(torch.cat([part.flatten() for part in parts]).tolist() if parts else ())
    return [[[_row(ask, numbers) for _ in ask.nodes] for ask in asks] for asks, _ in asked]


def _legal(asks: Sequence[Ask]) -> np.ndarray[Any, np.dtype[np.intp]] | None:
    """Return the ids that are legal at some node, or None if they are so many that multiplying the whole vocabulary is
    faster."""
    masks = [ask.masks for ask in asks if ask.masks is not None]
    found = np.flatnonzero(np.logical_or.reduce([mask.any(0) for mask in masks]))
    return found if 0 < len(found) <= FEW < masks[0].shape[1] // 8 else None


def _row(ask: Ask, numbers: Iterator[float]) -> Any:
    # An ask without ids wants keys and values, but no score.
    return (int(next(numbers)), next(numbers)) if ask.masks is not None else list(islice(numbers, len(ask.ids)))
