"""What packed training is measured on: groups with nothing in common, and both layouts of the same labels."""

from __future__ import annotations

import pytest
from commands import refused

from rtcontrol.bench.train_groups import PROMPTS, random_groups
from rtcontrol.models.train.finetune.dataset import GroupCollator


def test_groups_share_nothing_and_have_eight_heads() -> None:
    groups = random_groups(8)
    assert all(len(g.heads) == 8 and PROMPTS[0] <= len(g.suffix) <= PROMPTS[1] for g in groups)
    assert len({g.suffix[:2] for g in groups}) == 8
    packed, apart = (GroupCollator((1,), layout).batch(groups) for layout in ("packed", "separate"))  # type: ignore[arg-type]
    assert sorted(packed.labels.tolist()) == sorted(apart.labels.tolist())
    # Every prompt stands there once, whichever its neighbours are.
    assert packed.tokens.numel() == 1 + sum(len(g.suffix) + sum(len(h.ids) for h in g.heads) for g in groups)
    assert apart.tokens.shape[0] == 64


def test_a_shape_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no shape 'qwen'" in refused(capsys, "bench", "train", "--shape", "qwen")
    assert "too few" in refused(capsys, "bench", "train", "--rows", "8")
