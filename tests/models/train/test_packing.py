"""Packed-tree training equals separate sequences, of rows with probes and with tools of their own, too."""

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
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.loss import bf16_products, tree_loss
from rtcontrol.models.train.packing import ALIKE, RUN_ROWS, pack, pad_together, separate
from rtcontrol.models.train.rows import Quote, Row, RowEncoder, ToolsEncoder, with_word_probes
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.trainer import TrainConfig, group_rows
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


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "gemma3"])
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
    assert (product.dtype == torch.bfloat16) == torch.cpu._is_avx512_bf16_supported()
    torch.testing.assert_close(product.float(), large @ large, atol=0.5, rtol=0)
    with pytest.raises(ZeroDivisionError), bf16_products():
        raise ZeroDivisionError
    assert gradients(model, [packed], 1.0)[0] == exact


@pytest.mark.parametrize("kind", ["qwen2", "gemma3"])
def test_separate_sequences_lose_what_plain_hugging_face_loses(kind: str, encoder: RowEncoder, tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "m", kind, seed=2, scale=0.1)
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


# Word probes quote the observation's own words, ask for the named one, and change neither call nor accuracy.


WORDS = ("red", "blue", "Blue,", "3;", "north", "-0.5", "{", "the")
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)


@pytest.fixture(scope="module")
def probes_encoder() -> RowEncoder:
    tokenizer = STTokenizer(build_tokenizer([" ".join(WORDS)]))
    plan = compile_plan(tool_schemas([tool("go", way=["north", "south"]), tool("wait")]), tokenizer)
    return RowEncoder(PromptTemplate(COMPACT, tokenizer, ""), tokenizer, plan)


@law(200)
@given(TEXTS, TEXTS, st.integers(0, 3), st.integers(0, 9))
def test_quotes_stand_in_the_observation_and_the_rest_of_the_row_stays(
    told: str, seen: str, count: int, seed: int
) -> None:
    row = Row(told, seen, Call("wait"), ("go()",))
    (probed,) = with_word_probes([row], random.Random(seed), count)
    assert (probed.instruction, probed.observation, probed.call, probed.history) == (told, seen, row.call, row.history)
    assert len(probed.quotes) <= count + 1
    for quote in probed.quotes:
        assert seen.count(quote.start + quote.rest) >= 1
        word = quote.start.strip().strip(",;").lower()
        assert quote.named or [w.strip(",;").lower() for w in seen.split()].count(word) == 1
        assert not quote.named or word in {w.strip(",;").lower() for w in told.split()}


def test_what_is_named_first_is_asked_for_unprompted() -> None:
    def named(told: str, seen: str) -> list[str]:
        (row,) = with_word_probes([Row(told, seen, None)], random.Random(0))
        return [q.start.strip() + q.rest for q in row.quotes if q.named]

    assert named("Go to the blue.", "red 3 blue 4 north") == ["blue 4 north"]
    assert named("go to the blue", "red 3 blue 4 blue 5") == []
    assert named("go to the blue, not red", "red 3 blue 4 north") == ["blue 4 north"]
    assert named("wait", "the red 3") == []


def test_all_heads_are_asked_half_way_for_what_is_named(probes_encoder: RowEncoder) -> None:
    row = Row("go to blue", "red 3 blue north", Call("go", {"way": "north"}), named=" blue")
    encoded = probes_encoder.encode(row)
    (blue,) = probes_encoder.tokenizer.encode(" blue")
    assert [head.early for head in encoded.heads] == [blue, blue]
    packed, alone = pack(probes_encoder.prefix, [encoded]), separate(probes_encoder.prefix, [encoded])
    assert packed.early_labels.tolist() == [blue, blue]
    heads = [probes_encoder.tokenizer.special_id(name) for name in ("<function>", "<arg1>")]
    assert packed.tokens[0, packed.early_rows].tolist() == heads
    assert [(b.tokens[0, b.early_rows].tolist(), b.early_labels.tolist()) for b in alone] == [
        ([head], [blue]) for head in heads
    ]


def test_what_is_meant_is_asked_for_half_way_where_the_instruction_ends(probes_encoder: RowEncoder) -> None:
    told = Row("go to blue", "red 3 blue north", Call("go", {"way": "north"}))
    again = replace(told, observation="red 4")
    rows = [replace(told, meant="blue north"), replace(again, meant="blue north"), replace(told, meant=""), told]
    encoded = [probes_encoder.encode(row) for row in rows]
    wanted, null = probes_encoder.tokenizer.encode(" blue north"), probes_encoder.plan.function.null_id
    assert [[label for _, label in row.early] for row in encoded] == [wanted, wanted, [null], []]
    packed, apart = pack(probes_encoder.prefix, encoded), separate(probes_encoder.prefix, encoded)
    assert packed.early_labels.tolist() == [label for one in apart for label in one.early_labels.tolist()]
    end = probes_encoder.tokenizer.special_id("<|im_end|>")
    assert packed.tokens[0, packed.early_rows].tolist() == [end] * 5
    # Both observations hang below the one place where the shared instruction ends.
    assert len(set(packed.early_rows[:4].tolist())) == 1
    behind = (
        len(probes_encoder.prefix) + 1 + len(probes_encoder.tokenizer.encode("go to blue"))
    )  # the tools end with one token
    assert packed.positions[0, packed.early_rows[0]] == behind


def test_probes_ask_what_follows_and_do_not_count(probes_encoder: RowEncoder) -> None:
    row = Row("go to blue", "red 3 blue north", Call("go", {"way": "north"}))
    plain = probes_encoder.encode(row)
    asked = [
        probes_encoder.encode(Row(row.instruction, row.observation, row.call, (), (Quote(" blue", " north", named),)))
        for named in (False, True)
    ]
    blue, north = probes_encoder.tokenizer.encode(" blue north")
    head = probes_encoder.tokenizer.special_id("<content>")
    for encoded, first in zip(asked, (0.0, 1.0), strict=True):
        assert encoded.heads[:-1] == plain.heads
        probe = encoded.heads[-1]
        assert (probe.ids, probe.labels, probe.weights) == ((head, blue), (blue, north), (first, 1.0))
    batch = pack(probes_encoder.prefix, [*asked, plain])
    labels = sum(len(h.ids) for h in plain.heads)
    assert (int(batch.counted.sum()), len(batch.counted)) == (3 * labels, 3 * labels + 3)
    each = separate(probes_encoder.prefix, asked)
    assert sum(int(b.counted.sum()) for b in each) == 2 * labels
    assert sum(len(b.labels) for b in each) == 2 * labels + 3


# Rows that bring their own tools are encoded, packed and checked as rows of one set are.


def drawn(count: int) -> list[Row]:
    """Rows of random tools, six of each set, with words for values and with free texts."""
    rng, found = random.Random(0), list[Row]()
    while len(found) < count:
        verb, name, ways = rng.choice(["go", "fly"]), rng.choice(["way", "side"]), rng.sample(["up", "down", "left"], 3)
        free = {"what": {"type": "string"}} if rng.random() < 0.5 else {}
        tools = tuple(tool_schemas([tool(verb, **{name: ways}, **free), tool("stop", x=[0, 1])]))
        for way in (*ways, *ways):
            call = Call(verb, {name: way, **dict.fromkeys(free, "red")})
            found.append(Row(f"{verb} to red", f"red {way} blue up", call, tools=tools))
    return found[:count]


@pytest.fixture(scope="module")
def made() -> tuple[Qwen2ForCausalLM, ToolsEncoder, PromptTemplate]:
    texts = [tools_text(row.tools) + row.observation + row.instruction for row in drawn(200)]
    words = build_tokenizer([*texts, "the call function argument name end first"], [str(n) for n in range(10)])
    model = new_model(ModelShape(hidden=32, layers=2, heads=4, intermediate=48), words, 0).eval()
    mine = STTokenizer(words)
    template = PromptTemplate(COMPACT, mine, "")
    return model, ToolsEncoder(template, mine), template


def test_a_row_with_its_tools_has_the_ids_of_a_prompt_with_these_tools(made: Any) -> None:
    _, encoder, template = made
    for row in drawn(36):
        own = RowEncoder(template, encoder.tokenizer, compile_plan(row.tools, encoder.tokenizer))
        found, want = encoder.encode(row), own.encode(replace(row, tools=()))
        assert (*encoder.prefix, *found.suffix) == (*own.prefix, *want.suffix)
        assert found.heads == want.heads


def test_a_row_with_its_tools_may_have_no_call_and_says_what_is_meant(made: Any) -> None:
    _, encoder, template = made
    nullable = encoder.nullable()
    for one in drawn(24):
        plan = compile_plan(one.tools, encoder.tokenizer, allow_null=True)
        own = RowEncoder(template, encoder.tokenizer, plan)
        for row in (replace(one, meant="go north"), replace(one, call=None, meant="")):
            found, want = nullable.encode(row, forced=False), own.encode(replace(row, tools=()), forced=False)
            assert found.heads == want.heads and found.heads[0].labels
            shift = len(own.prefix) - 1
            assert found.early == tuple((at + shift, label) for at, label in want.early) != ()
        assert not nullable.acting(one.tools).plan.allow_null and nullable.of(one.tools).plan.allow_null


def test_a_packed_tree_of_many_tools_has_the_loss_of_separate_sequences(made: Any) -> None:
    model, encoder, _ = made
    rows = [encoder.encode(row) for row in drawn(24)]
    packed = pack(encoder.prefix, rows)
    assert packed.tokens.shape[1] < 0.75 * sum(len(r.suffix) for r in rows)  # tools are shared
    with torch.no_grad():
        each = tree_loss(model, pad_together(separate(encoder.prefix, rows)))[0]
        torch.testing.assert_close(tree_loss(model, packed)[0], each, atol=1e-5, rtol=1e-5)


def test_groups_keep_rows_of_the_same_tools_together(made: Any) -> None:
    rows = drawn(60)
    groups = group_rows(rows, TrainConfig(samples=1, group=18, run=6), random.Random(0))
    for group in groups:
        runs = [group[at : at + 6] for at in range(0, len(group), 6)]
        assert all(row.tools is run[0].tools for run in runs for row in run)
