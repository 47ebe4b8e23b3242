"""The loss of packed trees: weighted cross-entropy of the labelled rows, over block-sparse tree attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from rtcontrol.models.train.packing import Blocks, PackedBatch, RunSet

ATTENTION = "rtcontrol_tree"
EARLY_LAYERS = 2
EARLY_WEIGHT = 0.5
STEPS_HEAD, STEPS_SCORES = 64, 1 << 18


@contextmanager
def bf16_products(on: bool = True) -> Iterator[None]:
    """Meanwhile a forward multiplies fp32 matrices as bf16 ones (PyTorch's autocast, its backward, too), where the
    processor has instructions for that: measured, 1.7 times the samples a second of three layers of 640, 1.3 to 1.6
    times of small models (docs/base.md); weights, norms and losses stay fp32."""
    with torch.autocast("cpu", torch.bfloat16, enabled=on and torch.cpu._is_avx512_bf16_supported()):
        yield


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Scaled dot-product attention; with bf16 products as separate steps where that is quicker: heads of 64 dimensions
    and short runs, whose scores are few (measured, 36 runs of 77 tokens and 4 such heads: 14 ms, fused 54)."""
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
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for a Hugging Face model: `query` [batch, heads, length, dim], `key`, `value` [batch, kv_heads, ...].

    Causal without `blocks`; with them (batch 1) the prefix is causal and each run sees prefix and itself; of all these
    a token sees the newest `sliding_window` alone, itself included, where the layer has a window. Returns
    [batch, length, heads, dim].
    """
    if blocks is None:
        out = _causal(query, key, value, scaling, sliding_window)
        return out.transpose(1, 2).contiguous(), None
    p, q, k, v = blocks.prefix, query[0], key[0], value[0]
    head = _causal(query[:, :, :p], key[:, :, :p], value[:, :, :p], scaling, sliding_window)
    window = sliding_window if sliding_window is not None and blocks.longest > sliding_window else None

    def seen_by(runs: RunSet) -> torch.Tensor:
        if window is None:
            return runs.mask
        own = blocks.positions[runs.index]  # [runs, width]
        keys = torch.cat([blocks.positions[None, :p].expand(len(own), -1), own], 1)
        near = own[:, :, None] - keys[:, None, :] < window
        near |= ~runs.valid[:, :, None]  # padding, which must see something
        return runs.mask & near[:, None]

    def body(runs: RunSet) -> torch.Tensor:
        def in_runs(x: torch.Tensor) -> torch.Tensor:
            return x[:, runs.index].transpose(0, 1)

        def with_prefix(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x[None, :, :p].expand(len(runs.index), -1, -1, -1), in_runs(x)], 2)

        seen = _attend(in_runs(q), with_prefix(k), with_prefix(v), seen_by(runs), scaling)
        return seen.transpose(1, 2)[runs.valid]

    tail = torch.cat([body(runs) for runs in blocks.sets])[blocks.order]
    return torch.cat([head[0].transpose(0, 1), tail])[None], None


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, window: int | None) -> torch.Tensor:
    gqa, length = q.shape[1] != k.shape[1], q.shape[2]
    if window is None or length <= window:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=gqa)
    behind = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)
    mask = (behind >= 0) & (behind < window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=gqa)


AttentionInterface.register(ATTENTION, tree_attention)


def label_logits(model: Any, batch: PackedBatch) -> torch.Tensor:
    """Logits [labels, vocabulary] of the labelled rows of a Hugging Face causal LM; no other row meets the LM head."""
    if model.config._attn_implementation != ATTENTION:
        model.set_attn_implementation(ATTENTION)
    hidden = model.model(
        input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, blocks=batch.blocks
    ).last_hidden_state
    return model.lm_head(hidden.flatten(0, 1)[batch.label_rows])


def tree_loss(model: Any, batch: PackedBatch, normaliser: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, correct): sum of weighted cross-entropies divided by `normaliser` (default: the sum of weights), and
    whether each label is the argmax, bool [labels]. Tokens with an early label are asked for it after the second layer
    too, by the final norm and head: who knows by then what is named can look for it in those that follow."""
    if not len(batch.early_rows):
        logits, early = label_logits(model, batch).float(), None
    else:
        seen: list[torch.Tensor] = []
        hook = model.model.layers[EARLY_LAYERS - 1].register_forward_hook(lambda *given: seen.append(given[2]))
        try:
            logits = label_logits(model, batch).float()
        finally:
            hook.remove()
        held = model.lm_head(model.model.norm(seen[0].flatten(0, 1)[batch.early_rows])).float()
        early = F.cross_entropy(held, batch.early_labels, reduction="sum")
    each = F.cross_entropy(logits, batch.labels, reduction="none")
    total = (each * batch.weights).sum()
    if early is not None:
        total = total + EARLY_WEIGHT * early
    return total / (normaliser or batch.weights.sum()), logits.detach().argmax(-1) == batch.labels
