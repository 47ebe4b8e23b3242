"""How well held-out rows are answered: teacher-forced, which for greedy decoding is the same question."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from rtcontrol.models.special import HEADS, opening
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.train.finetune.dataset import Groups
from rtcontrol.models.train.packing import pack
from rtcontrol.models.train.rows import EncodedRow


def measure(
    model: Any, prefix: tuple[int, ...], groups: Groups, tokenizer: STTokenizer, at_once: int
) -> dict[str, Any]:
    """`rows`; `loss`, the weighted mean; `rows_right`, the share whose labels are all the most probable tokens: what is
    decoded greedily without a constraint is then the row's call; `heads`, the same of each head that is not null."""
    names = {tokenizer.special_id(opening(head)): head for head in HEADS}
    loss = weight = 0.0
    right = 0
    asked, hit = Counter[str](), Counter[str]()
    null = tokenizer.special_id("<|null|>")
    model.eval()
    device = next(model.parameters()).device
    for start in range(0, len(groups), at_once):
        part: list[EncodedRow] = [groups[i] for i in range(start, min(start + at_once, len(groups)))]
        batch = pack(prefix, part).to(device)
        with torch.no_grad():
            total, correct = model(batch, 1.0)
        loss += float(total)
        weight += float(batch.weights.sum())
        flags, at = correct.tolist(), 0
        for group in part:
            whole = True
            for head in group.heads:
                count = sum(w > 0 for w in head.weights)
                known = all(flags[at : at + count])
                at += count
                whole &= known
                if head.labels[0] != null:
                    asked[names[head.ids[0]]] += 1
                    hit[names[head.ids[0]]] += known
            right += whole
    heads = {name: hit[name] / asked[name] for name in HEADS if asked[name]}
    return {"rows": len(groups), "loss": loss / weight, "rows_right": right / len(groups), "heads": heads}
