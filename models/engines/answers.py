"""What a tree's asks ask for, from the model's logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rtcontrol.models.core import Ask

Logits = Callable[[Sequence[int], Sequence[int] | None], torch.Tensor]


def answered(asks: Sequence[Ask], logits: Logits) -> list[Any]:
    """`logits` gives fp32 rows of nodes: [nodes, ids], or [nodes, vocabulary] for None."""
    masked = sorted({n for ask in asks if ask.masks is not None for n in ask.nodes})
    scores = logits(masked, None).double() if masked else None
    found: list[Any] = []
    for ask in asks:
        if scores is None or ask.masks is None:
            # Without ids their keys and values are wanted, no score.
            found.append(logits(ask.nodes, ask.ids).tolist() if ask.ids else [()] * len(ask.nodes))
            continue
        rows = scores[[masked.index(n) for n in ask.nodes]]
        rows = rows.masked_fill(~torch.from_numpy(ask.masks).to(rows.device), -torch.inf)
        best = rows.amax(-1, keepdim=True)
        ids = (rows == best).int().argmax(-1)  # the first of equals, as in every other place
        share = 1.0 / (rows - best).exp().sum(-1)
        found.append(list(zip(ids.tolist(), share.tolist(), strict=True)))
    return found
