"""The loss of packed trees: weighted cross-entropy of the labelled rows, over block-sparse tree attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from rtcontrol.models.train.packing import Blocks, PackedBatch

ATTENTION = "rtcontrol_tree"
EARLY_LAYERS = 2
EARLY_WEIGHT = 0.5


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
    """Attention for a Hugging Face model: `query` [batch, heads, length, dim], `key`, `value` [batch, kv_heads, ...].

    Causal without `blocks`; with them (batch 1) the prefix is causal and each run sees prefix and itself. Returns
    [batch, length, heads, dim].
    """
    gqa = query.shape[1] != key.shape[1]
    if blocks is None:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=gqa)
        return out.transpose(1, 2).contiguous(), None
    p, runs = blocks.prefix, len(blocks.index)
    q, k, v = query[0], key[0], value[0]
    head = F.scaled_dot_product_attention(
        query[:, :, :p], key[:, :, :p], value[:, :, :p], is_causal=True, scale=scaling, enable_gqa=gqa
    )

    def in_runs(x: torch.Tensor) -> torch.Tensor:
        return x[:, blocks.index].transpose(0, 1)

    def with_prefix(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[None, :, :p].expand(runs, -1, -1, -1), in_runs(x)], 2)

    body = F.scaled_dot_product_attention(
        in_runs(q), with_prefix(k), with_prefix(v), attn_mask=blocks.mask, scale=scaling, enable_gqa=gqa
    )
    # Runs stand in order, so the valid places flattened are the tokens behind the prefix.
    tail = body.transpose(1, 2)[blocks.valid]
    return torch.cat([head[0].transpose(0, 1), tail])[None], None


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
