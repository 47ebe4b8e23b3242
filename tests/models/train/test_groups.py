"""Rows become packed groups that train like the paper's separate sequences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, head_start
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.encode import EncodedRows, ToolsEncoder, load_rows
from rtcontrol.models.train.finetune import parameter_groups, set_trainable
from rtcontrol.models.train.packing import PackedBatch, pack_by_tools, pad_batches, separate_batches, tree_loss
from rtcontrol.models.train.recipe import FinetuneRecipe
from tests.models.small import build_checkpoint, law, tool
from tests.models.train.finetune_rows import random_rows, write

pytest.importorskip("peft")
RECIPE = FinetuneRecipe(rank=4, alpha=8, dropout=0.0, dtype="fp32")


def trained_parts(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = build_checkpoint(tmp_path_factory.mktemp("model") / "m", request.param, seed=2, scale=0.1)
    made = set_trainable(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), RECIPE).get_base_model()
    with torch.no_grad():  # LoRA's B starts at zero, which gives A no gradient
        for name, weight in trained_parts(made).items():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    return made


def encoded(folder: Path, path: Path, seed: int, count: int, all_heads: bool) -> tuple[tuple[int, ...], EncodedRows]:
    checkpoint = Checkpoint.open(str(folder))
    template: Any = checkpoint.template
    weights = RECIPE.model_copy(update={"all_heads": all_heads}).weights()
    encoder = ToolsEncoder(template, checkpoint.tokenizer, weights, allow_null=True)
    return encoder.prefix, load_rows([write(path / "rows.jsonl", random_rows(seed, count))], encoder, RECIPE.length)


def gradients(model: Any, batch: PackedBatch) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss, _ = tree_loss(model, batch)
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in trained_parts(model).items() if p.grad is not None}


@law(8)
@given(seed=st.integers(0, 10**6), count=st.sampled_from([1, 3, 8, 11]), all_heads=st.booleans())
def test_packed_groups_have_the_gradients_of_separate_sequences(
    model: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, all_heads: bool
) -> None:
    prefix, groups = encoded(folder, tmp_path_factory.mktemp("rows"), seed, count, all_heads)
    rows = [groups[i] for i in range(len(groups))]
    loss, found = gradients(model, pack_by_tools(prefix, rows))
    expected, wanted = gradients(model, pad_batches(separate_batches(prefix, rows)))
    assert loss == pytest.approx(expected, abs=1e-5)
    assert found.keys() == wanted.keys()
    assert {n.rpartition(".")[2] for n in found} == {"weight"} and sum("lora_A" in n for n in found) == 6
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_shared_prefix_of_rows_is_computed_once(folder: Path, tmp_path: Path) -> None:
    """This holds for any order of rows from two tool sets, between which nothing is shared."""
    prefix, groups = encoded(folder, tmp_path, 1, 4, True)
    mixed = [groups[i] for i in (0, 1, 2, 3, 0, 1, 2, 3)]
    once, twice = pack_by_tools(prefix, mixed[:4]), pack_by_tools(prefix, mixed)
    heads = sum(len(head.ids) for group in mixed[:4] for head in group.heads)
    assert twice.tokens.shape[1] == once.tokens.shape[1] + heads
    assert twice.samples == 8


def test_each_part_has_the_learning_rate_of_the_paper(model: Any) -> None:
    groups = parameter_groups(model, RECIPE)
    rates = {group["name"]: round(group["share"], 9) for group in groups}
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert rates == {"lora": 1.0, "embeddings": 0.1} | ({} if tied else {"head": 0.1})
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(map(id, trained_parts(model).values()))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen and not any("lora" in name or "embed" in name for name in frozen)


# Rows become groups; invalid rows are named with file and line, and rows that are too long are counted.


GO = tool("go", 1, a=["left", "right"], b={"type": "integer", "minimum": 0, "maximum": 9}, c={"type": "string"})
ROW: dict[str, Any] = {
    "instruction": "go left", "observation": "x=1", "tools": [GO, tool("stop")], "history": [],
    "call": {"name": "go", "arguments": {"a": "left", "c": "the red"}},
}  # fmt: skip


def encoder(folder: Path, overflow: str = "merge", all_heads: bool = True) -> ToolsEncoder:
    tokenizer = Checkpoint.open(str(folder)).tokenizer
    template = PromptTemplate(COMPACT | {"overflow": overflow}, tokenizer, "")
    return ToolsEncoder(template, tokenizer, FinetuneRecipe(all_heads=all_heads).weights(), allow_null=True)


def loaded(file: Path, encoder: ToolsEncoder, length: int = 2048, drop_bad: bool = False) -> EncodedRows:
    return load_rows([file], encoder, length, drop_bad)


def test_row_has_eight_heads_with_the_papers_weights(folder: Path, tmp_path: Path) -> None:
    made = encoder(folder)
    file = write(tmp_path / "rows.jsonl", [ROW | {"weight": 0.5}])
    (group,) = loaded(file, made)
    assert [len(group.heads) for group in loaded(file, encoder(folder, all_heads=False))] == [4]
    tokenizer = Checkpoint.open(str(folder)).tokenizer
    null = tokenizer.special_id("<|null|>")
    heads = {head.ids[0]: head for head in group.heads}
    assert len(heads) == len(group.heads) == 8

    def weights(name: str) -> list[float]:
        return [round(w, 6) for w in heads[tokenizer.special_id(head_start(name))].weights]

    assert weights("content") == [0.005]
    assert weights("function") == [1.0] * (len(tokenizer.encode("go")) + 1)
    # arg1 is not null and has focal weight 1; arg2 is null and has none; arg3 has 1.3 and 1.5.
    assert weights("arg1") == [0.55] * (len(tokenizer.encode("left")) + 1)
    assert weights("arg2") == [0.6]
    assert weights("arg3") == [round(0.5 * 1.3 * 1.5, 6)] * (len(tokenizer.encode("the red")) + 1)
    assert [weights(a) for a in ARGUMENTS[3:]] == [[0.7], [0.75], [0.8]]
    for name in ("content", "arg2", "arg4", "arg5", "arg6"):
        assert heads[tokenizer.special_id(head_start(name))].labels == (null,)
    # A null of an optional argument counts as much as a null beyond the tool's arity.
    without = ROW | {"call": {"name": "go", "arguments": {"a": "left"}}}
    (other,) = loaded(write(tmp_path / "rows.jsonl", [without]), made)
    third = next(h for h in other.heads if h.ids == (tokenizer.special_id("<arg3>"),))
    assert third.labels == (null,) and third.weights == (1.3,)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "not JSON"),
        (ROW | {"tools": [{"name": ""}]}, "has no name"),
        (ROW | {"call": {"name": "go", "arguments": {"a": "up"}}}, 'does not allow: go.a = "up"'),
        (ROW | {"call": {"name": "go", "arguments": {"a": "left", "z": 1}}}, "an unknown argument: go.z"),
    ],
)
def test_unrepresentable_row_is_named_with_file_and_line(folder: Path, tmp_path: Path, row: Any, why: str) -> None:
    file = write(tmp_path / "rows.jsonl", [ROW, ROW])
    with file.open("a") as lines:
        lines.write((row if isinstance(row, str) else json.dumps(row)) + "\n")
    with pytest.raises(UserError, match=why) as error:
        loaded(file, encoder(folder))
    assert error.value.what.startswith(f"{file}:3: ")
    kept = loaded(file, encoder(folder), drop_bad=True)
    assert len(kept) == 2 and sum(kept.dropped.values()) == 1 and kept.lines == 3


def test_rows_beyond_the_length_are_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    rows = [ROW, ROW | {"observation": "x=1 " * 500}]
    file = write(tmp_path / "rows.jsonl", rows)
    (only,) = loaded(file, encoder(folder), 512)
    assert loaded(file, encoder(folder), 512).dropped == {"longer than 512 tokens": 1}
    size = 1 + len(only.suffix) + max(len(h.ids) for h in only.heads)
    assert len(loaded(file, encoder(folder), size)) == 1
    with pytest.raises(UserError, match="no row is left"):
        loaded(file, encoder(folder), size - 1)
