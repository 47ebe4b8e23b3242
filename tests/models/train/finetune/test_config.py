"""The recipe's defaults are the paper's table; what a file gets wrong is named with file and field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.models.train.finetune import config as config_module
from rtcontrol.models.train.finetune.config import recipe


def test_the_paper_preset_is_the_papers_table() -> None:
    made = recipe("paper")
    assert (made.rank, made.alpha, made.dropout, made.targets) == (
        512,
        1024,
        0.05,
        ("gate_proj", "up_proj", "down_proj"),
    )
    assert (made.embedding_rate, made.lora_rate, made.head_rate) == (1e-6, 1e-5, 1e-6)
    assert (made.schedule, made.warmup, made.length, made.dtype) == ("cosine", 0.02, 2048, "bf16")
    assert (made.device_groups, made.groups) == (8, 32)
    assert (made.content, made.function) == (0.01, 2.0)
    assert made.arguments == (1.1, 1.2, 1.3, 1.4, 1.5, 1.6) and made.focal == (1.0, 1.0, 1.5, 2.0, 2.5, 3.0)
    domain = recipe("domain")
    assert (domain.rank, domain.alpha) == (64, 128) and domain.focal == made.focal


def test_what_is_given_stands_over_the_file_and_that_over_the_preset(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("rank = 16\nepochs = 2\n")
    made = recipe("domain", tmp_path / "r.toml", epochs=1.0, steps=None)
    assert (made.rank, made.alpha, made.epochs, made.steps) == (16, 128, 1.0, None)
    (tmp_path / "r.json").write_text('{"layout": "separate"}')
    assert recipe("paper", tmp_path / "r.json").layout == "separate"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rnk = 4", "no setting 'rnk'"),
        ("rank = 0", "rank is 0"),
        ("dropout = 1.0", "dropout is 1.0"),
        ("focal = [1.0]", "focal is"),
        ("lora_rate = nan", "lora_rate is nan"),
        ("groups = 30", "groups (30) is no multiple of device_groups (8)"),
        ("function = 0\narguments = [0, 0, 0, 0, 0, 0]", "nothing is learnt"),
        ("rank = ", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(UserError, match=f"r.toml.*{re.escape(told)}"):
        recipe("paper", tmp_path / "r.toml")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    def found(name: str) -> Any:
        return None if name == "peft" else util.find_spec(name)

    monkeypatch.setattr(config_module, "find_spec", found)
    with pytest.raises(UserError, match=r"needs peft, .*pip install 'rtcontrol\[train\]'"):
        config_module.check_extras()
