"""Packed-tree sequences: one prefix, many samples, all heads in one sequence under a tree mask.

The paper trains every head as its own sequence and names the cost as a limitation ("Training Cost"). Here a token that
several of those sequences share is computed once: each token sees its own ancestors only, at the position it would have
in its own sequence, so losses and gradients are those of the separate sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rtcontrol.models.train.rows import EncodedRow


@dataclass(frozen=True)
class PackedBatch:
    """`batch` trees, padded to `length` tokens.

    `tokens`, `positions`: int64 [batch, length]; `mask`: bool [batch, 1, length, length], True where a query row may
    see a key column; `label_rows`: int64 [labels], indices into the flattened [batch * length] tokens; `labels`: int64
    [labels]; `weights`: float32 [labels].
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    label_rows: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    samples: int


class _Tree:
    """One tree under construction: parallel lists, a node's parent always before it."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.labels: list[tuple[int, int, float]] = []
        self.root = self.chain(-1, prefix)
        self._shared: tuple[tuple[int, ...], list[int]] = ((), [])

    def chain(self, parent: int, ids: Sequence[int]) -> int:
        for token in ids:
            self.tokens.append(token)
            self.parents.append(parent)
            parent = len(self.tokens) - 1
        return parent

    def suffix(self, ids: tuple[int, ...]) -> int:
        """Hang a suffix below the prefix; tokens it shares with the one before it are not repeated. Its last node."""
        before, nodes = self._shared
        common = 0
        while common < min(len(before), len(ids)) and before[common] == ids[common]:
            common += 1
        nodes = nodes[:common]
        start = len(self.tokens)
        end = self.chain(nodes[-1] if nodes else self.root, ids[common:])
        self._shared = (ids, [*nodes, *range(start, len(self.tokens))])
        return end

    def add(self, row: EncodedRow) -> None:
        """Hang one row's suffix and heads below the prefix."""
        end = self.suffix(row.suffix)
        for head in row.heads:
            parent = end
            for token, label, weight in zip(head.ids, head.labels, head.weights, strict=True):
                parent = self.chain(parent, (token,))
                self.labels.append((parent, label, weight))


def pack(prefix: Sequence[int], groups: Sequence[Sequence[EncodedRow]]) -> PackedBatch:
    """Pack each group of rows into one tree below its own copy of `prefix`; sort a group's rows by suffix to share more.

    A group must not be empty.
    """
    trees = []
    for group in groups:
        tree = _Tree(prefix)
        for row in group:
            tree.add(row)
        trees.append(tree)
    return _batch(trees, sum(len(g) for g in groups))


def pack_nodes(prefix: Sequence[int], suffixes: Sequence[tuple[int, ...]], nodes: Sequence[tuple[int, int]]) -> PackedBatch:
    """One tree with the same `nodes` (token, index of the parent node or -1) below every suffix, to read their logits:
    `label_rows` lists the nodes of the first suffix, then those of the second, ...; the labels mean nothing."""
    tree = _Tree(prefix)
    for ids in suffixes:
        end = tree.suffix(ids)
        placed: list[int] = []
        for token, parent in nodes:
            placed.append(tree.chain(placed[parent] if parent >= 0 else end, (token,)))
            tree.labels.append((placed[-1], 0, 1.0))
    return _batch([tree], len(suffixes))


def _batch(trees: Sequence[_Tree], samples: int) -> PackedBatch:
    length = max(len(t.tokens) for t in trees)
    tokens = np.zeros((len(trees), length), np.int64)
    positions = np.zeros((len(trees), length), np.int64)
    mask = np.zeros((len(trees), 1, length, length), np.bool_)
    rows: list[int] = []
    labels: list[int] = []
    weights: list[float] = []
    for b, tree in enumerate(trees):
        n = len(tree.tokens)
        tokens[b, :n] = tree.tokens
        see = mask[b, 0]
        for i, parent in enumerate(tree.parents):
            if parent >= 0:
                see[i, : parent + 1] = see[parent, : parent + 1]
                positions[b, i] = positions[b, parent] + 1
            see[i, i] = True
        # A padding row must see something, or its softmax is 0/0.
        see[np.arange(n, length), np.arange(n, length)] = True
        for node, label, weight in tree.labels:
            rows.append(b * length + node)
            labels.append(label)
            weights.append(weight)
    return PackedBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.from_numpy(mask),
        torch.tensor(rows),
        torch.tensor(labels),
        torch.tensor(weights),
        samples,
    )


def separate(prefix: Sequence[int], rows: Sequence[EncodedRow]) -> list[PackedBatch]:
    """The paper's form: every head of every row is its own causal sequence, one batch each (baseline and oracle)."""
    batches = []
    for row in rows:
        for head in row.heads:
            batches.append(pack(prefix, [[EncodedRow(row.suffix, (head,))]]))
    return batches


def pad_together(batches: Sequence[PackedBatch]) -> PackedBatch:
    """Several single-tree batches as one padded batch."""
    length = max(b.tokens.shape[1] for b in batches)
    count = len(batches)
    tokens = torch.zeros((count, length), dtype=torch.int64)
    positions = torch.zeros((count, length), dtype=torch.int64)
    mask = torch.eye(length, dtype=torch.bool).expand(count, 1, length, length).clone()
    rows = []
    for i, batch in enumerate(batches):
        n = batch.tokens.shape[1]
        tokens[i, :n], positions[i, :n], mask[i, :, :n, :n] = batch.tokens[0], batch.positions[0], batch.mask[0]
        rows.append(batch.label_rows + i * length)
    labels = torch.cat([b.labels for b in batches])
    weights = torch.cat([b.weights for b in batches])
    return PackedBatch(tokens, positions, mask, torch.cat(rows), labels, weights, count)
