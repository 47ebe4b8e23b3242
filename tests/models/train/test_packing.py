"""Packed-tree training equals separate sequences: losses and gradients, in fp32."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.loss import bf16_products, tree_loss
from rtcontrol.models.train.packing import ALIKE, RUN_ROWS, pack, pad_together, separate
from rtcontrol.models.train.rows import EncodedRow, Row, RowEncoder
from rtcontrol.models.train.vocabulary import build_tokenizer
from tests.models.small import build_checkpoint, law, tool

BOOL = {"type": "boolean"}
# All seven heads that a call has: the function and six arguments, of which the last holds two parameters.
TOOLS = [
    tool(
        "set_value",
        4,
        a=["left", "right", "green blue"],
        b={"type": "integer", "minimum": -3, "maximum": 20},
        d=["alpha beta go", "alpha beta stop"],
        e={"type": "string"},
        c=BOOL,
        f=BOOL,
        g={"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.5},
    ),
    tool("go", a=["left", "red"]),
    tool("stop"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("model") / "m", seed=2, scale=0.1)


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = build_checkpoint(tmp_path_factory.mktemp("model") / "m", request.param, seed=2, scale=0.1)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def encoder(folder: Path) -> RowEncoder:
    tokenizer = STTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")))
    plan = compile_plan(tool_schemas(TOOLS), tokenizer, allow_null=True)
    return RowEncoder(PromptTemplate(COMPACT, tokenizer, ""), tokenizer, plan)


def random_call(rng: random.Random) -> Call | None:
    kind = rng.randrange(5)
    if kind == 0:
        return None
    if kind == 1:
        return Call("go", {"a": rng.choice(["left", "red"])})
    if kind == 2:
        return Call("stop")
    arguments: dict[str, Any] = {
        "a": rng.choice(["left", "right", "green blue"]),
        "b": rng.randint(-3, 20),
        "d": rng.choice(["alpha beta go", "alpha beta stop"]),
        "e": rng.choice(["go red", "ü", ""]),
    }
    arguments |= {k: rng.random() < 0.5 for k in "cf" if rng.random() < 0.5}
    if rng.random() < 0.5:
        arguments["g"] = rng.choice([0.0, 0.5, 1.0])
    return Call("set_value", arguments)


def random_rows(seed: int, count: int) -> list[Row]:
    """Rows of which neighbours share an instruction, an instruction and an observation, or nothing."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        goal = rng.choice(["go left", "go left fast", "stop", "north"])
        history = tuple(f"go({i})" for i in range(rng.randint(0, 2)))
        seen, meant = rng.choice(["x=1", "x=1 y=2", "y=3", ""]), rng.choice([None, "", "go left"])
        rows.append(Row(goal, seen, random_call(rng), history, meant=meant))
    return rows


def gradients(model: Any, batches: list[Any], normaliser: float) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    total = 0.0
    for batch in batches:
        loss, _ = tree_loss(model, batch, normaliser)
        loss.backward()
        total += float(loss.detach())
    return total, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@law(8)
@given(
    seed=st.integers(0, 10**6),
    count=st.sampled_from([1, 3, RUN_ROWS, RUN_ROWS + 1, 2 * RUN_ROWS + 3]),
    order=st.booleans(),
    forced=st.booleans(),
    tokens=st.sampled_from([1, 30, 60]),  # of the prefix: its whole length costs time and shows nothing more
)
def test_packed_losses_and_gradients_equal_those_of_separate_sequences(
    model: Any, encoder: RowEncoder, seed: int, count: int, order: bool, forced: bool, tokens: int
) -> None:
    prefix = encoder.prefix[:tokens]
    rows = random_rows(seed, count)
    if order:  # neighbours share as much as they can
        rows.sort(key=lambda r: (r.instruction, r.history, r.observation))
    encoded = [encoder.encode(row, forced) for row in rows]
    normaliser = sum(w for r in encoded for h in r.heads for w in h.weights)
    packed = pack(prefix, encoded)
    apart = separate(prefix, encoded)
    assert len(packed.labels) == sum(len(b.labels) for b in apart)
    loss, grads = gradients(model, [packed], normaliser)
    expected, wanted = gradients(model, apart, normaliser)
    padded, padded_grads = gradients(model, [pad_together(apart)], normaliser)
    assert loss == pytest.approx(expected, abs=1e-5)
    assert padded == pytest.approx(expected, abs=1e-5)
    assert grads.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(grads[name], gradient, atol=1e-5, rtol=1e-4, msg=name)
        torch.testing.assert_close(padded_grads[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_runs_are_padded_to_those_like_them_alone(encoder: RowEncoder) -> None:
    long = Row("go left", "x=1 y=2 " * 40, Call("stop"))
    rows = [replace(row, observation=f"{i}") for i, row in enumerate(random_rows(0, 30))]
    blocks = pack(encoder.prefix[:1], [encoder.encode(row) for row in (long, *rows)]).blocks
    assert blocks is not None and len(blocks.sets) > 1
    places = sum(one.index.numel() for one in blocks.sets)
    widest = max(one.index.shape[1] for one in blocks.sets)
    tokens = sum(int(one.valid.sum()) for one in blocks.sets)
    assert tokens == len(blocks.order) and places * ALIKE <= tokens
    assert places < 0.7 * widest * sum(len(one.index) for one in blocks.sets)


def test_bf16_products_lose_nearly_the_same_and_are_over_when_they_are(model: Any, encoder: RowEncoder) -> None:
    packed = pack(encoder.prefix[:1], [encoder.encode(row) for row in random_rows(1, 12)])
    exact, wanted = gradients(model, [packed], 1.0)
    large = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    with bf16_products():
        rounded, found = gradients(model, [packed], 1.0)
        product = large @ large
    assert rounded == pytest.approx(exact, rel=0.02)
    for name, gradient in wanted.items():
        apart = torch.linalg.vector_norm(found[name] - gradient) / (torch.linalg.vector_norm(gradient) + 1e-6)
        assert apart < 0.1, name
    assert torch.equal(product, large @ large) != torch.cpu._is_avx512_bf16_supported()
    torch.testing.assert_close(product, large @ large, atol=0.5, rtol=0)
    with pytest.raises(ZeroDivisionError), bf16_products():
        raise ZeroDivisionError
    assert gradients(model, [packed], 1.0)[0] == exact


def test_separate_sequences_lose_what_plain_hugging_face_loses(encoder: RowEncoder, folder: Path) -> None:
    """The oracle of the oracle: Hugging Face's own attention and a hand-written cross-entropy."""
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for batch in separate(encoder.prefix, [encoder.encode(replace(r, meant=None)) for r in random_rows(1, 3)]):
        with torch.no_grad():
            logits = plain(batch.tokens).logits[0][batch.label_rows]
            loss, correct = tree_loss(ours, batch, 1.0)
        chosen = logits.log_softmax(-1)[torch.arange(len(batch.labels)), batch.labels]
        assert float(loss) == pytest.approx(-float((chosen * batch.weights).sum()), abs=1e-4)
        assert torch.equal(correct, logits.argmax(-1) == batch.labels)


def test_shared_tokens_are_computed_once(encoder: RowEncoder) -> None:
    row = encoder.encode(Row("go left", "x=1", Call("go", {"a": "left"})))
    one, two = pack(encoder.prefix, [row]), pack(encoder.prefix, [row, row])
    heads = sum(len(h.ids) for h in row.heads)
    assert one.tokens.shape[1] == len(encoder.prefix) + len(row.suffix) + heads
    assert two.tokens.shape[1] == one.tokens.shape[1] + heads


def test_targets_start_behind_the_head_token_and_end_with_its_end(encoder: RowEncoder) -> None:
    row = encoder.encode(Row("go", "x", Call("set_value", {"a": "green blue", "b": 2, "d": "alpha beta go", "e": ""})))
    assert len(row.heads) == len(encoder.plan.heads) == 7
    for plan, head in zip(encoder.plan.heads, row.heads, strict=True):
        assert head.ids[0] == plan.head_id
        assert head.ids[1:] == head.labels[:-1]
        assert head.labels[-1] in (plan.end_id, plan.null_id)
    # The optional c, f, g (c, then f and g in head 6 as one object) are null; so are heads beyond a tool's arity.
    assert [h.labels for h in row.heads[5:]] == [(encoder.plan.heads[5].null_id,)] * 2
    short = encoder.encode(Row("go", "x", Call("go", {"a": "red"})))
    assert [h.labels for h in short.heads[2:]] == [(encoder.plan.heads[2].null_id,)] * 5


def test_null_call_has_one_label(encoder: RowEncoder) -> None:
    (head,) = encoder.encode(Row("go", "x", None)).heads
    assert head.labels == (encoder.plan.function.null_id,)
    assert encoder.encode(Row("go", "x", None), forced=False).heads == (head,)


@law(40)
@given(seed=st.integers(0, 10**6))
def test_unforced_labels_are_those_up_to_the_last_branch(seed: int) -> None:
    rng, closed = random.Random(seed), encoder_of_closed()
    index = rng.randrange(len(closed.plan.tools))
    arguments: dict[str, Any] = {}
    for slot in closed.plan.slots[index]:
        assert isinstance(slot.domain, ClosedDomain)
        if not slot.null or rng.random() < 0.5:
            arguments |= slot.arguments(rng.choice(slot.domain.values))
    row = Row("go", "x", Call(closed.plan.tools[index].name, arguments))
    every, asked = closed.encode(row), closed.encode(row, forced=False)
    by_head = {h.ids[0]: h for h in every.heads}
    arity = 1 + len(closed.plan.slots[index])
    for head in asked.heads:
        whole = by_head[head.ids[0]]
        assert head.ids == whole.ids[: len(head.ids)]
        assert head.labels == whole.labels[: len(head.labels)]
    read = {h.head_id for h in closed.plan.heads[:arity]}
    assert {h.ids[0] for h in asked.heads} <= read
    branching = {h.head_id for h in closed.plan.heads[:arity] if h.trie.needed(-1)}
    assert branching <= {h.ids[0] for h in asked.heads} | {closed.plan.function.head_id}


@functools.cache
def encoder_of_closed() -> RowEncoder:
    """An encoder of tools with closed domains and different arities."""
    tokenizer = STTokenizer(build_tokenizer(["go stop left right open"]))
    tools = [tool("go", a=["left", "right"], b=BOOL), tool("open", 0, a=BOOL), tool("stop")]
    plan = compile_plan(tool_schemas(tools), tokenizer)
    return RowEncoder(PromptTemplate(COMPACT, tokenizer, ""), tokenizer, plan)


def test_a_tree_without_a_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix of at least one token"):
        pack([], [EncodedRow((1,), ())])
