"""Trained under SimpleTool's own prompt, a model is asked what that server asks: eight heads behind its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtcontrol.models.train.adopt import adopt
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.dataset import GroupEncoder, load
from rtcontrol.models.train.finetune.run import Job, finetune, opened
from tests.models.small import build_checkpoint
from tests.models.train.finetune.rows import random_rows, write

pytest.importorskip("peft")
pytest.importorskip("accelerate")


def test_the_authors_prompt_goes_with_what_is_trained_under_it(tmp_path: Path, data: Path) -> None:
    base = build_checkpoint(tmp_path / "base", seed=2, scale=0.1)
    adopt(base, data / "simpletool_prompt" / "system_template.txt")
    rows = write(tmp_path / "rows.jsonl", random_rows(0, 12))
    settings = {"rank": 2, "alpha": 4, "groups": 4, "device_groups": 4, "steps": 1, "dtype": "fp32", "length": 4096}
    made = finetune(Job(str(base), (rows,), tmp_path / "out", FinetuneRecipe(**settings), drop_bad=True))
    template, tokenizer = opened(made.model)
    assert template.profile == "simpletool-v1" and template.content
    encoder = GroupEncoder(template, tokenizer, FinetuneRecipe(length=4096))
    groups = load([rows], encoder, drop_bad=True)
    assert len(groups) == made.groups > 3
    assert {len(group.heads) for group in groups} <= {8, 2}  # two of a null call
    text = tokenizer.decode(groups[0].suffix)
    assert "environment: [" in text and "history: [" in text
