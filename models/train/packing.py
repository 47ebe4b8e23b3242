"""Packed-tree sequences: one prefix, many samples, all heads in one sequence under a tree mask.

The paper trains every head as its own sequence and names the cost as a limitation ("Training Cost"). Here a token that
several of those sequences share is computed once: each token sees its own ancestors only, at the position it would have
in its own sequence, so losses and gradients are those of the separate sequences.

The mask is block-sparse: samples fall into *runs* of rows that share tokens, and a run sees the prefix and itself. So
attention is computed run by run, at a cost that grows with the samples and not with their square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from rtcontrol.models.train.rows import EncodedRow

RUN_ROWS = 8
ALIKE = 0.75  # of the widest run's tokens: what is shorter is not padded to it, since attention costs their square
SHARED = 1 / 8  # of a suffix: where less is shared with the one before, it costs less to repeat it than to mask it


@dataclass(frozen=True)
class RunSet:
    """Runs that are computed at once, padded to `width` tokens.

    `index`: int64 [runs, width], token of each place (padding: token 0); `valid`: bool [runs, width]; `mask`: bool
    [runs, 1, width, prefix + width], True where a place may see the prefix or a place of its run.
    """

    index: torch.Tensor
    valid: torch.Tensor
    mask: torch.Tensor

    def to(self, device: torch.device | str) -> RunSet:
        return RunSet(self.index.to(device), self.valid.to(device), self.mask.to(device))


@dataclass(frozen=True)
class Blocks:
    """Where attention happens: the first `prefix` tokens causally; then runs, in sets of like width. `order`: int64
    [tokens behind the prefix], the place of each among the valid ones of all sets, one after the other. `positions`:
    int64 [tokens], each one's in its own sequence, of which the longest has `longest` tokens: layers with windows ask.
    """

    prefix: int
    sets: tuple[RunSet, ...]
    order: torch.Tensor
    positions: torch.Tensor
    longest: int

    def to(self, device: torch.device | str) -> Blocks:
        there = (self.order.to(device), self.positions.to(device), self.longest)
        return Blocks(self.prefix, tuple(runs.to(device) for runs in self.sets), *there)


@dataclass(frozen=True)
class PackedBatch:
    """Sequences with labels.

    `tokens`, `positions`: int64 [batch, length]; `label_rows`: int64 [labels], indices into the flattened tokens;
    `labels`: int64 [labels]; `weights`: float32 [labels]; `counted`: bool [labels], False for probes, which are no part
    of a call. `early_rows` and `early_labels`: int64 [early], what these tokens should hold half way through the model.
    `blocks` is set for a tree (batch 1); without it every row is an ordinary causal sequence.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    label_rows: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    counted: torch.Tensor
    early_rows: torch.Tensor
    early_labels: torch.Tensor
    samples: int
    blocks: Blocks | None = None

    def to(self, device: torch.device | str) -> PackedBatch:
        """The same there."""
        there = {f.name: v.to(device) for f in fields(self) if hasattr(v := getattr(self, f.name), "to")}
        return replace(self, **there)


class _Tree:
    """A tree under construction: parallel lists, a node's parent always before it; `runs` are ranges of tokens."""

    def __init__(self, prefix: Sequence[int]) -> None:
        if not prefix:
            raise ValueError("a packed tree needs a prefix of at least one token")
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.labels: list[tuple[int, int, float, bool]] = []
        self.early: list[tuple[int, int]] = []
        self.root = self.chain(-1, prefix)
        self.runs: list[int] = []  # where each run starts
        self._rows = 0
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
        if common <= SHARED * len(ids) or self._rows == RUN_ROWS:
            self.runs.append(len(self.tokens))
            self._rows = common = 0
        self._rows += 1
        nodes = nodes[:common]
        start = len(self.tokens)
        end = self.chain(nodes[-1] if nodes else self.root, ids[common:])
        self._shared = (ids, [*nodes, *range(start, len(self.tokens))])
        return end

    def add(self, row: EncodedRow) -> None:
        """Hang one row's suffix and heads below the prefix."""
        end = self.suffix(row.suffix)
        self.early += [(self._shared[1][at], label) for at, label in row.early]
        for head in row.heads:
            parent = end
            if head.early is not None:
                self.early.append((len(self.tokens), head.early))
            for token, label, weight in zip(head.ids, head.labels, head.weights, strict=True):
                parent = self.chain(parent, (token,))
                if weight:
                    self.labels.append((parent, label, weight, not head.probe))

    def batch(self, samples: int) -> PackedBatch:
        length, prefix = len(self.tokens), self.root + 1
        positions = np.zeros(length, np.int64)
        for i, parent in enumerate(self.parents):
            positions[i] = positions[parent] + 1 if parent >= 0 else 0
        return PackedBatch(
            torch.tensor([self.tokens]),
            torch.from_numpy(positions)[None],
            torch.tensor([n for n, _, _, _ in self.labels]),
            torch.tensor([t for _, t, _, _ in self.labels]),
            torch.tensor([w for _, _, w, _ in self.labels]),
            torch.tensor([c for _, _, _, c in self.labels]),
            *_early(self.early),
            samples,
            self._blocks(length, prefix, positions),
        )

    def _blocks(self, length: int, prefix: int, positions: np.ndarray) -> Blocks:
        ends = [*self.runs[1:], length]
        runs = sorted(zip(self.runs, ends, strict=True), key=lambda run: run[0] - run[1])
        sets: list[RunSet] = []
        while runs:
            width = runs[0][1] - runs[0][0]
            alike = [run for run in runs if run[1] - run[0] >= ALIKE * width]
            sets.append(self._run_set(alike, width, prefix))
            runs = runs[len(alike) :]
        order = torch.cat([s.index[s.valid] for s in sets]).argsort()
        return Blocks(prefix, tuple(sets), order, torch.from_numpy(positions), int(positions.max()) + 1)

    def _run_set(self, runs: Sequence[tuple[int, int]], width: int, prefix: int) -> RunSet:
        index = np.zeros((len(runs), width), np.int64)
        valid = np.zeros((len(runs), width), np.bool_)
        mask = np.zeros((len(runs), 1, width, prefix + width), np.bool_)
        # Padding places see the prefix too, or their softmax is 0/0.
        mask[..., :prefix] = True
        for r, (start, end) in enumerate(runs):
            n = end - start
            index[r, :n] = np.arange(start, end)
            valid[r, :n] = True
            see = mask[r, 0, :, prefix:]
            for i in range(n):
                parent = self.parents[start + i] - start
                if parent >= 0:
                    see[i, :i] = see[parent, :i]
                see[i, i] = True
        return RunSet(torch.from_numpy(index), torch.from_numpy(valid), torch.from_numpy(mask))


def _early(asked: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows, labels = torch.tensor(asked, dtype=torch.int64).reshape(-1, 2).unbind(1)
    return rows, labels


def pack(prefix: Sequence[int], rows: Sequence[EncodedRow]) -> PackedBatch:
    """One tree of all rows below one copy of `prefix`; neighbours with a common start of their suffix share it."""
    tree = _Tree(prefix)
    for row in rows:
        tree.add(row)
    return tree.batch(len(rows))


def pack_nodes(prefix: Sequence[int], each: Sequence[tuple[Sequence[int], Sequence[tuple[int, int]]]]) -> PackedBatch:
    """One tree of suffixes, below each its own nodes (token, index of the parent node or -1), to read their logits:
    `label_rows` lists the nodes of the first suffix, then those of the second, ...; the labels mean nothing."""
    tree = _Tree(prefix)
    for ids, nodes in each:
        end = tree.suffix(tuple(ids))
        placed: list[int] = []
        for token, parent in nodes:
            placed.append(tree.chain(placed[parent] if parent >= 0 else end, (token,)))
            tree.labels.append((placed[-1], 0, 1.0, True))
    return tree.batch(len(each))


def separate(prefix: Sequence[int], rows: Sequence[EncodedRow]) -> list[PackedBatch]:
    """The paper's form: every head of every row is its own causal sequence, one batch each (baseline and oracle)."""
    batches = []
    for row in rows:
        for k, head in enumerate(row.heads):
            ids = [*prefix, *row.suffix, *head.ids]
            asked = [i for i, weight in enumerate(head.weights) if weight]
            early = [(len(prefix) + at, label) for at, label in row.early if k == 0]
            early += [] if head.early is None else [(len(ids) - len(head.ids), head.early)]
            batches.append(
                PackedBatch(
                    torch.tensor([ids]),
                    torch.arange(len(ids))[None],
                    torch.tensor(asked) + len(ids) - len(head.ids),
                    torch.tensor(head.labels)[asked],
                    torch.tensor(head.weights)[asked],
                    torch.full((len(asked),), not head.probe),
                    *_early(early),
                    1,
                )
            )
    return batches


def pad_together(batches: Sequence[PackedBatch]) -> PackedBatch:
    """Several causal sequences as one batch, padded on the right (where a causal mask hides the padding)."""
    length = max(b.tokens.shape[1] for b in batches)
    tokens = torch.zeros((len(batches), length), dtype=torch.int64)
    rows, early = [], []
    for i, batch in enumerate(batches):
        tokens[i, : batch.tokens.shape[1]] = batch.tokens[0]
        rows.append(batch.label_rows + i * length)
        early.append(batch.early_rows + i * length)
    return PackedBatch(
        tokens,
        torch.arange(length).expand(len(batches), length),
        torch.cat(rows),
        torch.cat([b.labels for b in batches]),
        torch.cat([b.weights for b in batches]),
        torch.cat([b.counted for b in batches]),
        torch.cat(early),
        torch.cat([b.early_labels for b in batches]),
        len(batches),
    )
