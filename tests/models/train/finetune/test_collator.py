"""Packed groups teach what the paper's separate sequences teach: the gradients of all that is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.dataset import GroupCollator, GroupEncoder, Groups, load
from rtcontrol.models.train.finetune.model import TreeLM, adapted, parameter_groups, trained
from tests.models.small import build_checkpoint, law
from tests.models.train.finetune.rows import random_rows, write

pytest.importorskip("peft")
RECIPE = FinetuneRecipe(rank=4, alpha=8, dropout=0.0, dtype="fp32")


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TreeLM:
    path = build_checkpoint(tmp_path_factory.mktemp("model") / "m", request.param, seed=2, scale=0.1)
    made = adapted(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), RECIPE)
    with torch.no_grad():  # LoRA's B starts at zero, where A has no gradient
        for name, weight in trained(made).items():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    return made


def encoded(folder: Path, path: Path, seed: int, count: int, all_heads: bool) -> tuple[tuple[int, ...], Groups]:
    checkpoint = Checkpoint.open(str(folder))
    template: Any = checkpoint.template
    encoder = GroupEncoder(template, checkpoint.tokenizer, RECIPE.model_copy(update={"all_heads": all_heads}))
    return encoder.prefix, load([write(path / "rows.jsonl", random_rows(seed, count))], encoder)


def gradients(model: TreeLM, inputs: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss, _ = model(**inputs)
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in trained(model).items() if p.grad is not None}


@law(8)
@given(seed=st.integers(0, 10**6), count=st.sampled_from([1, 3, 8, 11]), all_heads=st.booleans())
def test_packed_groups_have_the_gradients_of_separate_sequences(
    model: TreeLM, folder: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, all_heads: bool
) -> None:
    prefix, groups = encoded(folder, tmp_path_factory.mktemp("rows"), seed, count, all_heads)
    rows = [groups[i] for i in range(len(groups))]
    loss, found = gradients(model, GroupCollator(prefix)(rows))
    expected, wanted = gradients(model, GroupCollator(prefix, "separate")(rows))
    assert loss == pytest.approx(expected, abs=1e-5)
    assert found.keys() == wanted.keys()
    assert {n.rpartition(".")[2] for n in found} == {"weight"} and sum("lora_A" in n for n in found) == 6
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_a_prefix_that_rows_share_is_computed_once(folder: Path, tmp_path: Path) -> None:
    """In whatever order rows of two tool sets come, and with nothing shared between the sets."""
    prefix, groups = encoded(folder, tmp_path, 1, 4, True)
    mixed = [groups[i] for i in (0, 1, 2, 3, 0, 1, 2, 3)]
    once, twice = GroupCollator(prefix).batch(mixed[:4]), GroupCollator(prefix).batch(mixed)
    heads = sum(len(head.ids) for group in mixed[:4] for head in group.heads)
    assert twice.tokens.shape[1] == once.tokens.shape[1] + heads
    assert twice.samples == 8


def test_each_part_has_the_papers_rate(model: TreeLM) -> None:
    groups = parameter_groups(model, RECIPE)
    rates = {group["name"]: group["lr"] for group in groups}
    tied = model.base.get_input_embeddings().weight is model.base.get_output_embeddings().weight
    assert rates == {"lora": 1e-5, "embeddings": 1e-6} | ({} if tied else {"head": 1e-6})
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(map(id, trained(model).values()))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen and not any("lora" in name or "embed" in name for name in frozen)
