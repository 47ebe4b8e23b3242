"""What is said of held-out rows is what plain Hugging Face forwards of each head's own sequence choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.dataset import GroupEncoder, load
from rtcontrol.models.train.finetune.model import adapted
from rtcontrol.models.train.finetune.stopping import measure
from rtcontrol.models.train.packing import separate
from tests.models.train.finetune.rows import random_rows, write

pytest.importorskip("peft")


def test_shares_and_loss_are_those_of_each_heads_own_sequence(folder: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(folder))
    template: Any = checkpoint.template
    recipe = FinetuneRecipe(rank=2, alpha=4, all_heads=False, dtype="fp32")
    encoder = GroupEncoder(template, checkpoint.tokenizer, recipe)
    groups = load([write(tmp_path / "rows.jsonl", random_rows(4, 24))], encoder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    chosen: dict[int, list[int]] = {}
    # The rows' labels become what the model says at every second row: some are right, by construction.
    with torch.no_grad():
        for index in range(0, len(groups), 2):
            group = groups[index]
            for head in group.heads:
                ids = torch.tensor([[*encoder.prefix, *group.suffix, *head.ids]])
                chosen[len(chosen)] = plain(ids).logits[0].argmax(-1)[-len(head.ids) :].tolist()
    told = iter(chosen.values())
    for index in range(0, len(groups), 2):
        heads = [type(h)(h.ids, tuple(next(told)), h.weights) for h in groups[index].heads]
        groups._heads[index] = tuple(heads)
    loss = weight = right = 0.0
    for index in range(len(groups)):
        whole = True
        for batch in separate(encoder.prefix, [groups[index]]):
            with torch.no_grad():
                logits = plain(batch.tokens).logits[0][batch.label_rows]
            loss += float(
                (torch.nn.functional.cross_entropy(logits, batch.labels, reduction="none") * batch.weights).sum()
            )
            weight += float(batch.weights.sum())
            whole &= bool((logits.argmax(-1) == batch.labels).all())
        right += whole
    model = adapted(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), recipe)
    found = measure(model, encoder.prefix, groups, checkpoint.tokenizer, at_once=5)
    assert found["rows"] == 24 and 12 <= right < 24
    assert found["rows_right"] == pytest.approx(right / 24)
    assert found["loss"] == pytest.approx(loss / weight, rel=1e-4)
    assert 0 < found["heads"]["function"] < 1
