"""Evaluate uncached prompt tokens and tree nodes of several sequences in one packed pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from rtcontrol.models.decode.core import common_prefix_length
from rtcontrol.models.decode.protocol import ScoreQuery, WorkItem
from rtcontrol.models.errors import prompt_too_long
from rtcontrol.models.runners.handle import Handle
from rtcontrol.models.runners.lean import LeanModel, SequenceRows

MAX_BATCH = 64  # maximum number of decisions in one pass
MAX_LEGAL = 4_096  # up to this number of legal tokens, only their logits are computed


Logits = Callable[[Sequence[int], Sequence[int] | None], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Node:
    """A tree node to evaluate. A node of `depth` 0 follows the prompt's last token. `ancestors` are the KV slots of its
    ancestors, counted from the prompt's end."""

    token: int
    depth: int
    ancestors: tuple[int, ...]


class PackedSequence(Handle):
    """A handle with a KV cache, which contains the prompt and then the evaluated nodes of the current decision. `paths`
    has for each node the slots of its path, counted from the prompt's end."""

    def __init__(self, model: LeanModel, slots: int) -> None:
        super().__init__(slots)
        self.model, self.cache = model, model.cache(slots)
        self.columns: dict[tuple[int, ...], torch.Tensor] = {}  # by token ids: cached rows of the LM head

    def keep_prefix(self, count: int, total: int) -> int:
        self.cache.reserve(count, total, release_rest=True)
        return count

    def cached_length(self, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of `prompt` are cached."""
        return common_prefix_length(self.prompt[: self.computed], prompt)

    def restore(self, prompt: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Replace the cached prompt by `prompt`, with these keys and values."""
        self.cache.fill(keys, values)
        self.prompt, self.paths, self.computed = list(prompt), [], len(prompt)

    def copy_prefix(self, other: PackedSequence, prompt: Sequence[int]) -> None:
        """Replace the prompt by the leading tokens of `prompt` that the other sequence has cached, with their KV."""
        count = other.cached_length(prompt)
        self.cache.copy_from(other.cache, count)
        self.prompt, self.paths, self.computed = list(prompt[:count]), [], count

    def prefill(self, count: int) -> None:
        """Compute the next `count` tokens of the prompt."""
        whole = self.prompt
        self.prompt = whole[: self.computed + count]
        try:
            self.run(())
        finally:
            self.prompt = whole

    def run(self, nodes: Sequence[Node]) -> torch.Tensor:
        """Evaluate the uncached part of the prompt and `nodes`, which take the next slots in order; return hidden
        states [nodes, hidden]."""
        (hidden,) = run_together(self.model, [(self, nodes)])
        self.record_pass(nodes)
        return hidden

    def nodes_of(self, work: WorkItem) -> list[Node]:
        """Return the nodes of a work item's tree, with the slots of their ancestors."""
        tree, paths, base = work.tree, list(self.paths), len(self.paths)
        nodes = []
        for i, (token, parent, depth) in enumerate(zip(tree.tokens, tree.parents, tree.depths, strict=True)):
            above = paths[parent] if parent >= 0 else ()
            paths.append((*above, base + i))
            nodes.append(Node(token, depth, above))
        return nodes

    def rows(self, nodes: Sequence[Node]) -> tuple[list[int], list[int], SequenceRows]:
        """Return the tokens, positions and rows of the next pass. Raises UserError if the cache is full."""
        fresh = self.prompt[self.computed :]
        past, end = self.computed + len(self.paths), len(self.prompt)
        if past + len(fresh) + len(nodes) > self.cache.slots:
            raise prompt_too_long(self.cache.slots, end)
        self.cache.reserve(past, past + len(fresh) + len(nodes))
        mask = self.model.mask(past, len(fresh), len(self.paths), tuple([n.ancestors for n in nodes]))
        places = [*range(self.computed, end), *(end + n.depth for n in nodes)]
        return fresh + [n.token for n in nodes], places, SequenceRows(self.cache, past, len(places), mask, len(fresh))

    def record_pass(self, nodes: Sequence[Node]) -> None:
        """Record that a pass has evaluated the rest of the prompt and these nodes."""
        self.computed = len(self.prompt)
        self.paths += [(*node.ancestors, i) for i, node in enumerate(nodes, start=len(self.paths))]


def run_together(model: LeanModel, work: Sequence[tuple[PackedSequence, Sequence[Node]]]) -> list[torch.Tensor]:
    """Run one pass for several sequences, and return the hidden states [nodes, hidden] of each sequence's nodes. The
    caller must then call `record_pass` of each sequence."""
    inputs = [sequence.rows(nodes) for sequence, nodes in work]
    tokens = [t for part, _, _ in inputs for t in part]
    places = [p for _, part, _ in inputs for p in part]
    hidden = model.forward(tokens, places, [rows for _, _, rows in inputs])
    return list(hidden.split([len(nodes) for _, nodes in work])) if len(work) > 1 else [hidden]


def compute_answers(requests: Sequence[tuple[Sequence[ScoreQuery], Logits]]) -> list[list[Any]]:
    """Return the answers to all queries of a pass, by tree. A tree's `logits(nodes, ids)` returns fp32 logits [nodes,
    ids], or [nodes, vocabulary] if `ids` is None. The CPU waits for the GPU only once."""
    parts: list[torch.Tensor] = []
    for queries, logits in requests:
        masked = sorted({n for query in queries if query.masks is not None for n in query.nodes})
        legal = _legal_ids(queries) if masked else None
        scores = logits(masked, None if legal is None else legal.tolist()).double() if masked else None
        for query in queries:
            if scores is None or query.masks is None:
                parts += [logits(query.nodes, query.ids)] if query.ids and query.nodes else []
                continue
            rows = scores[[masked.index(n) for n in query.nodes]]
            mask = torch.from_numpy(query.masks if legal is None else query.masks[:, legal]).to(rows.device)
            rows = rows.masked_fill(~mask, -torch.inf)
            best = rows.amax(-1, keepdim=True)
            ids = (rows == best).int().argmax(-1)  # the lowest id, if several logits are equal
            if legal is not None:
                ids = torch.from_numpy(legal).to(ids.device)[ids]
            parts.append(torch.stack([ids.double(), 1.0 / (rows - best).exp().sum(-1)], -1))
    numbers = iter(torch.cat([part.flatten() for part in parts]).tolist() if parts else ())
    return [[[_next_row(query, numbers) for _ in query.nodes] for query in queries] for queries, _ in requests]


def _legal_ids(queries: Sequence[ScoreQuery]) -> np.ndarray[Any, np.dtype[np.intp]] | None:
    """Return the token ids that are legal at some node, or None if computing the logits of the whole vocabulary is
    faster."""
    masks = [query.masks for query in queries if query.masks is not None]
    ids = np.flatnonzero(np.logical_or.reduce([mask.any(0) for mask in masks]))
    return ids if 0 < len(ids) <= MAX_LEGAL < masks[0].shape[1] // 8 else None


def _next_row(query: ScoreQuery, numbers: Iterator[float]) -> Any:
    # A query without ids and masks only computes keys and values, so it gets no scores.
    return (int(next(numbers)), next(numbers)) if query.masks is not None else list(islice(numbers, len(query.ids)))
