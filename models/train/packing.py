"""Pack a prefix, many rows and all their heads into one tree of tokens, and compute the training loss of the tree.

The SimpleTool paper trains each head as a separate sequence ("Training Cost"). In a tree, tokens that several sequences
share are computed once. Each token attends only to its ancestors, and has the same position as in its separate
sequence, so losses and gradients are equal.

Rows that share tokens form a *run*. A run attends to the prefix and itself, so attention is computed for each run, and
its cost is linear in the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from rtcontrol.models.train.encode import EncodedRow

RUN_ROWS = 8  # maximum number of rows in a run
MIN_WIDTH_SHARE = 0.75  # limits padding: a run has at least 75 % of the tokens of the widest run in its set
MIN_SHARED = 1 / 8  # rows of a run share at least this part of a suffix's tokens; below it, copies are cheaper
ATTENTION = "rtcontrol_tree"
EARLY_LAYERS = 2  # early labels are trained on the states after this layer
EARLY_WEIGHT = 0.5  # weight of early labels in the loss
STEPS_HEAD, STEPS_SCORES = 64, 1 << 18  # unfused attention needs at least 64 head dimensions and at most 2^18 scores
Device = torch.device | str


@dataclass(frozen=True)
class RunSet:
    """Runs of similar length, whose attention is computed together, padded to `width` tokens.

    `index` (int64 [runs, width]) has the token at each place (padding: token 0), `valid` (bool [runs, width]) is False
    for padding. `mask` (bool [runs, 1, width, prefix + width]) is True where a place attends to a token.
    """

    index: torch.Tensor
    valid: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class Blocks:
    """The blocks of a tree's attention: the first `prefix` tokens, and sets of runs. `order` (int64 [tokens after the
    prefix]) has the index of each token among the valid places of all sets."""

    prefix: int
    sets: tuple[RunSet, ...]
    order: torch.Tensor


@dataclass(frozen=True)
class PackedBatch:
    """A batch of sequences with labels.

    `tokens` and `positions` are int64 [batch, length]. `label_rows` (int64 [labels]) are indices of labelled tokens in
    the flattened batch, with `labels` (int64) and `weights` (float32); `counted` (bool) is False for probes, which are
    not a part of a call. `early_rows` and `early_labels` (int64 [early]) are tokens and labels after EARLY_LAYERS.
    `blocks` is set for a tree (batch 1); without it each row is an ordinary causal sequence.
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

    def to(self, device: Device) -> PackedBatch:
        """Return the same batch on a device."""
        batch: PackedBatch = _move_to(self, device)
        return batch


def _move_to(value: Any, device: Device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_move_to(item, device) for item in value)
    if is_dataclass(value):
        return replace(value, **{f.name: _move_to(getattr(value, f.name), device) for f in fields(value)})  # type: ignore
    return value


class _TreeBuilder:
    """A tree under construction, as parallel lists of nodes, with each parent before its children. `runs` has the index
    of the first node of each run."""

    def __init__(self, prefix: Sequence[int]) -> None:
        if not prefix:
            raise ValueError("a packed tree needs a prefix of at least one token")
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.labels: list[tuple[int, int, float, bool]] = []
        self.early: list[tuple[int, int]] = []
        self.root = self.add_chain(-1, prefix)
        self.runs: list[int] = []
        self._run_rows = 0
        self._shared: tuple[tuple[int, ...], list[int]] = ((), [])

    def add_chain(self, parent: int, ids: Sequence[int]) -> int:
        for token in ids:
            self.tokens.append(token)
            self.parents.append(parent)
            parent = len(self.tokens) - 1
        return parent

    def add_suffix(self, ids: tuple[int, ...]) -> int:
        """Add a suffix after the prefix, sharing a common start with the previous suffix. Return its last node."""
        before, nodes = self._shared
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, ids, strict=False)))
        if common <= MIN_SHARED * len(ids) or self._run_rows == RUN_ROWS:
            self.runs.append(len(self.tokens))
            self._run_rows = common = 0
        self._run_rows += 1
        nodes = nodes[:common]
        start = len(self.tokens)
        end = self.add_chain(nodes[-1] if nodes else self.root, ids[common:])
        self._shared = (ids, [*nodes, *range(start, len(self.tokens))])
        return end

    def add_row(self, row: EncodedRow) -> None:
        """Add a row's suffix and heads after the prefix."""
        end = self.add_suffix(row.suffix)
        self.early += [(self._shared[1][index], label) for index, label in row.early]
        for head in row.heads:
            parent = end
            if head.early is not None:
                self.early.append((len(self.tokens), head.early))
            for token, label, weight in zip(head.ids, head.labels, head.weights, strict=True):
                parent = self.add_chain(parent, (token,))
                if weight:
                    self.labels.append((parent, label, weight, not head.probe))

    def build_batch(self, samples: int) -> PackedBatch:
        positions = np.zeros(len(self.tokens), np.int64)
        for i, parent in enumerate(self.parents):
            positions[i] = positions[parent] + 1 if parent >= 0 else 0
        rows, labels, weights, counted = zip(*self.labels, strict=True) if self.labels else ((), (), (), ())
        return PackedBatch(
            torch.tensor([self.tokens]),
            torch.from_numpy(positions)[None],
            torch.tensor(rows, dtype=torch.int64),
            torch.tensor(labels, dtype=torch.int64),
            torch.tensor(weights),
            torch.tensor(counted, dtype=torch.bool),
            *_early_tensors(self.early),
            samples,
            self._build_blocks(),
        )

    def _build_blocks(self) -> Blocks:
        ends = [*self.runs[1:], len(self.tokens)]
        runs = sorted(zip(self.runs, ends, strict=True), key=lambda run: run[0] - run[1])
        sets: list[RunSet] = []
        while runs:
            width = runs[0][1] - runs[0][0]
            similar_runs = [run for run in runs if run[1] - run[0] >= MIN_WIDTH_SHARE * width]
            sets.append(self._build_run_set(similar_runs, width))
            runs = runs[len(similar_runs) :]
        order = torch.cat([s.index[s.valid] for s in sets]).argsort()
        return Blocks(self.root + 1, tuple(sets), order)

    def _build_run_set(self, runs: Sequence[tuple[int, int]], width: int) -> RunSet:
        prefix = self.root + 1
        index = np.zeros((len(runs), width), np.int64)
        valid = np.zeros((len(runs), width), np.bool_)
        mask = np.zeros((len(runs), 1, width, prefix + width), np.bool_)
        # Let padding attend to the prefix, because softmax over no tokens would be 0/0.
        mask[..., :prefix] = True
        for r, (start, end) in enumerate(runs):
            n = end - start
            index[r, :n] = np.arange(start, end)
            valid[r, :n] = True
            visible = mask[r, 0, :, prefix:]
            for i in range(n):
                parent = self.parents[start + i] - start
                if parent >= 0:
                    visible[i, :i] = visible[parent, :i]
                visible[i, i] = True
        return RunSet(torch.from_numpy(index), torch.from_numpy(valid), torch.from_numpy(mask))


def _early_tensors(pairs: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows, labels = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    return rows, labels


def pack_rows(prefix: Sequence[int], rows: Sequence[EncodedRow]) -> PackedBatch:
    """Pack rows into a tree after one `prefix`. Consecutive rows share the common start of their suffixes."""
    tree = _TreeBuilder(prefix)
    for row in rows:
        tree.add_row(row)
    return tree.build_batch(len(rows))


def pack_by_tools(prefix: Sequence[int], rows: Sequence[EncodedRow]) -> PackedBatch:
    """Pack rows that may have different tools. A common start of all suffixes is moved to the prefix. Rows are sorted,
    so that rows with the same tools share the tools' tokens."""
    common = takewhile(lambda tokens: len({*tokens}) == 1, zip(*(row.suffix for row in rows), strict=False))
    shared = min(sum(1 for _ in common), *(len(row.suffix) - 1 for row in rows))
    rest = [replace(row, suffix=row.suffix[shared:]) for row in rows]
    return pack_rows((*prefix, *rows[0].suffix[:shared]), sorted(rest, key=lambda row: row.suffix))


def pack_nodes(prefix: Sequence[int], each: Sequence[tuple[Sequence[int], Sequence[tuple[int, int]]]]) -> PackedBatch:
    """Pack suffixes, each with its nodes (token, index of the parent node or -1), to compute the nodes' logits.
    `label_rows` of the result are the nodes of the first suffix, then those of the second, and so on."""
    tree = _TreeBuilder(prefix)
    for ids, nodes in each:
        end = tree.add_suffix(tuple(ids))
        placed: list[int] = []
        for token, parent in nodes:
            placed.append(tree.add_chain(placed[parent] if parent >= 0 else end, (token,)))
            tree.labels.append((placed[-1], 0, 1.0, True))
    return tree.build_batch(len(each))


def separate_batches(prefix: Sequence[int], rows: Sequence[EncodedRow]) -> list[PackedBatch]:
    """Return a batch with one causal sequence for each head of each row, as in the SimpleTool paper, for comparison."""
    batches = []
    for row in rows:
        for k, head in enumerate(row.heads):
            ids = [*prefix, *row.suffix, *head.ids]
            start = len(ids) - len(head.ids)
            trained = [i for i, weight in enumerate(head.weights) if weight]
            early = [(len(prefix) + index, label) for index, label in row.early if k == 0]
            early += [] if head.early is None else [(start, head.early)]
            batches.append(
                PackedBatch(
                    torch.tensor([ids]),
                    torch.arange(len(ids))[None],
                    torch.tensor(trained) + start,
                    torch.tensor(head.labels)[trained],
                    torch.tensor(head.weights)[trained],
                    torch.full((len(trained),), not head.probe),
                    *_early_tensors(early),
                    1,
                )
            )
    return batches


def pad_batches(batches: Sequence[PackedBatch]) -> PackedBatch:
    """Join batches of causal sequences into one batch, padded on the right."""
    length = max(b.tokens.shape[1] for b in batches)
    tokens = torch.zeros((len(batches), length), dtype=torch.int64)
    for i, batch in enumerate(batches):
        tokens[i, : batch.tokens.shape[1]] = batch.tokens[0]
    return PackedBatch(
        tokens,
        torch.arange(length).expand(len(batches), length),
        torch.cat([b.label_rows + i * length for i, b in enumerate(batches)]),
        torch.cat([b.labels for b in batches]),
        torch.cat([b.weights for b in batches]),
        torch.cat([b.counted for b in batches]),
        torch.cat([b.early_rows + i * length for i, b in enumerate(batches)]),
        torch.cat([b.early_labels for b in batches]),
        len(batches),
    )


# -- loss -------------------------------------------------------------------------------------------------------------


@contextmanager
def bf16_products(on: bool = True) -> Iterator[None]:
    """Multiply fp32 matrices in bf16 within a `with` block (PyTorch's autocast), if the CPU has instructions for bf16.
    Weights, norms and losses stay fp32. Measured: 1.3 to 1.7 times the samples per second (docs/base.md)."""
    with torch.autocast("cpu", torch.bfloat16, enabled=on and torch.cpu._is_avx512_bf16_supported()):
        yield


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Return scaled dot-product attention. For large heads with few scores in bf16 the fused operator is not used:
    it is slower (54 ms instead of 14 ms for 36 runs of 77 tokens and 4 heads of dimension 64)."""
    gqa = q.shape[1] // k.shape[1]
    few = q.shape[-1] >= STEPS_HEAD and q.shape[-2] * k.shape[-2] <= STEPS_SCORES
    if not torch.is_autocast_enabled("cpu") or not few:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=gqa > 1)
    k, v = k.repeat_interleave(gqa, 1), v.repeat_interleave(gqa, 1)
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-1, -2)
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    blocks: Blocks | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention [batch, length, heads, dim] for a Hugging Face model, given `query` [batch, heads, length, dim],
    `key` and `value` [batch, kv_heads, length, dim].

    Without `blocks` attention is causal. With `blocks` (batch 1) tokens attend to their ancestors in the tree.
    """
    if blocks is None:
        return _causal(query, key, value, scaling).transpose(1, 2).contiguous(), None
    p, q, k, v = blocks.prefix, query[0], key[0], value[0]
    head = _causal(query[:, :, :p], key[:, :, :p], value[:, :, :p], scaling)

    def attend_runs(runs: RunSet) -> torch.Tensor:
        def in_runs(x: torch.Tensor) -> torch.Tensor:
            return x[:, runs.index].transpose(0, 1)

        def with_prefix(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x[None, :, :p].expand(len(runs.index), -1, -1, -1), in_runs(x)], 2)

        attended = _attend(in_runs(q), with_prefix(k), with_prefix(v), runs.mask, scaling)
        return attended.transpose(1, 2)[runs.valid]

    tail = torch.cat([attend_runs(runs) for runs in blocks.sets])[blocks.order]
    return torch.cat([head[0].transpose(0, 1), tail])[None], None


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


AttentionInterface.register(ATTENTION, tree_attention)


def label_logits(model: Any, batch: PackedBatch) -> torch.Tensor:
    """Run a Hugging Face model on a batch, and return the logits [labels, vocabulary] of the labelled tokens only."""
    if model.config._attn_implementation != ATTENTION:
        model.set_attn_implementation(ATTENTION)
    hidden = model.model(
        input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, blocks=batch.blocks
    ).last_hidden_state
    return model.lm_head(hidden.flatten(0, 1)[batch.label_rows])


def tree_loss(model: Any, batch: PackedBatch, divisor: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, a sum of weighted cross-entropies divided by `divisor` (None: by the sum of weights), and
    whether each label is the argmax (bool [labels]). Early labels add a loss on the output of layer EARLY_LAYERS,
    through the final norm and head, so that later layers can look up the named thing."""
    if not len(batch.early_rows):
        logits, early = label_logits(model, batch).float(), None
    else:
        states: list[torch.Tensor] = []
        hook = model.model.layers[EARLY_LAYERS - 1].register_forward_hook(lambda *args: states.append(args[2]))
        try:
            logits = label_logits(model, batch).float()
        finally:
            hook.remove()
        state = model.lm_head(model.model.norm(states[0].flatten(0, 1)[batch.early_rows])).float()
        early = F.cross_entropy(state, batch.early_labels, reduction="sum")
    each = F.cross_entropy(logits, batch.labels, reduction="none")
    total = (each * batch.weights).sum()
    if early is not None:
        total = total + EARLY_WEIGHT * early
    return total / (divisor or batch.weights.sum()), logits.detach().argmax(-1) == batch.labels
