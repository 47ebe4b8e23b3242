"""A part of a vocabulary in training: what is scored, what is trained, and what stays as it was."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.loss import label_logits, tree_loss
from rtcontrol.models.train.packing import pack
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.rows import Row, RowEncoder
from rtcontrol.models.train.seen_vocabulary import columns_of, see, whole, whole_logits
from tests.models.small import build_checkpoint, tool

TOOLS = [tool("go", a=["left", "red"]), tool("set_value", a={"type": "integer", "minimum": 0, "maximum": 20})]
ROWS = [Row("go left", "red", Call("go", {"a": "left"})), Row("set 7", "", Call("set_value", {"a": 7}))]


@pytest.fixture(params=["qwen2", "qwen3", "gemma3"])  # a tied head, one of its own, scaled embeddings
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, RowEncoder]:
    folder = build_checkpoint(tmp_path / "m", request.param, seed=2, scale=0.1)
    found = Checkpoint.open(str(folder))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    template: Any = found.template
    return model, RowEncoder(template, found.tokenizer, compile_plan(tool_schemas(TOOLS), found.tokenizer))


def encoded(encoder: RowEncoder) -> Any:
    return pack(encoder.prefix, [encoder.encode(row) for row in ROWS])


def legal(encoder: RowEncoder) -> list[int]:
    batch = encoded(encoder)
    return sorted({*batch.tokens.flatten().tolist(), *batch.labels.tolist()})


def test_a_label_is_told_apart_from_what_is_scored_alone(made: tuple[Any, RowEncoder]) -> None:
    model, encoder = made
    batch, scored = encoded(encoder), legal(encoder)
    with torch.no_grad():
        all_logits = label_logits(model, batch)
    count = see(model, scored[:2], scored[2:], common=0)
    with torch.no_grad():
        loss, correct = tree_loss(model, batch, 1.0)
        some = label_logits(model, batch)
    assert some.shape[1] == count == len(scored)
    assert torch.allclose(some[:, columns_of(model, scored)], all_logits[:, scored], atol=1e-5)
    expected = all_logits[:, scored].log_softmax(-1)[range(len(batch.labels)), [scored.index(i) for i in batch.labels]]
    assert float(loss) == pytest.approx(-float((expected * batch.weights).sum()), abs=1e-4)
    filled = whole_logits(model, some)
    assert filled.shape == all_logits.shape
    assert torch.equal(filled.isfinite().any(0).nonzero().flatten(), torch.tensor(scored))
    assert torch.equal(correct, torch.tensor(scored)[all_logits[:, scored].argmax(-1)] == batch.labels)


def test_only_the_rows_that_are_trained_change_and_the_model_has_its_own_table_again(
    made: tuple[Any, RowEncoder],
) -> None:
    model, encoder = made
    before, batch, scored = copy.deepcopy(model.state_dict()), encoded(encoder), legal(encoder)
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    trained = scored[:3]
    see(model, trained, scored, common=0)
    tied = head.weight is table.weight
    own = [p for name, p in model.named_parameters() if "embed_tokens" in name or "lm_head" in name]
    assert [tuple(p.shape) for p in own] == [(3, 48)] * (1 if tied else 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tree_loss(model, batch)[0].backward()
    optimizer.step()
    with torch.no_grad():
        there = label_logits(model, batch)[:, columns_of(model, scored)]
    whole(model)
    assert model.get_input_embeddings() is table
    assert model.get_output_embeddings() is head
    with torch.no_grad():
        assert torch.allclose(label_logits(model, batch)[:, scored], there, atol=1e-5)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        moved = (model.state_dict()[name] != before[name]).any(-1).nonzero().flatten().tolist()
        assert set(moved) <= set(trained), name
        assert moved, name


def test_a_model_that_has_moved_meanwhile_has_its_own_table_there(made: tuple[Any, RowEncoder]) -> None:
    model, encoder = made
    see(model, legal(encoder)[:3], legal(encoder), common=0)
    model.to("meta")  # as to a GPU
    whole(model)
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_a_token_that_is_not_scored_is_refused_as_a_label(made: tuple[Any, RowEncoder]) -> None:
    model, encoder = made
    batch, scored = encoded(encoder), legal(encoder)
    see(model, scored[:2], set(scored) - {int(batch.labels[0])}, common=0)
    with pytest.raises(ValueError, match=f"token {int(batch.labels[0])} is a label"):
        tree_loss(model, batch)


def test_decisions_are_those_of_the_whole_vocabulary(made: tuple[Any, RowEncoder]) -> None:
    model, encoder = made
    rows = [Row(text, seen, None) for text in ("go left", "set 7", "stop") for seen in ("", "red", "12")]
    expected = TreeDecider(model, encoder)(rows)
    see(model, legal(encoder)[:2], range(len(model.get_input_embeddings().weight)), common=0)
    assert TreeDecider(model, encoder)(rows) == expected
