"""The loss of packed trees: weighted cross-entropy of the labelled rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from rtcontrol.models.train.packing import PackedBatch


def label_logits(model: Any, batch: PackedBatch) -> torch.Tensor:
    """Logits [labels, vocabulary] of the labelled rows of a Hugging Face causal LM; no other row meets the LM head."""
    dtype = next(model.parameters()).dtype
    bias = torch.zeros(batch.mask.shape, dtype=dtype).masked_fill_(~batch.mask, torch.finfo(dtype).min)
    hidden = model.model(
        input_ids=batch.tokens, position_ids=batch.positions, attention_mask=bias, use_cache=False
    ).last_hidden_state
    return model.lm_head(hidden.flatten(0, 1)[batch.label_rows])


def tree_loss(model: Any, batch: PackedBatch, normaliser: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, correct): sum of weighted cross-entropies divided by `normaliser` (default: the sum of weights), and
    whether each label is the argmax, bool [labels]."""
    logits = label_logits(model, batch).float()
    each = F.cross_entropy(logits, batch.labels, reduction="none")
    total = (each * batch.weights).sum() / (normaliser or batch.weights.sum())
    return total, logits.detach().argmax(-1) == batch.labels
