"""Training on packed trees equals separate sequences, also for rows with probes or with their own tools."""

from __future__ import annotations

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
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.data.row import Row
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.encode import RowEncoder, ToolsEncoder, with_word_probes
from rtcontrol.models.train.packing import RUN_ROWS, pack_rows, pad_batches, separate_batches, tree_loss
from rtcontrol.models.train.vocabulary import build_tokenizer
from tests.models.small import build_checkpoint, law, tool
from tests.models.train.finetune_rows import random_row

BOOL = {"type": "boolean"}
# All seven heads of a call: the function and six arguments, of which the last has two parameters.
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


def random_rows(seed: int, count: int) -> list[Row]:
    """Return rows whose neighbours share an instruction, an instruction and an observation, or nothing."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        goal = rng.choice(["go left", "go left fast", "stop", "north"])
        history = tuple(f"go({i})" for i in range(rng.randint(0, 2)))
        seen, meant = rng.choice(["x=1", "x=1 y=2", "y=3", ""]), rng.choice([None, "", "go left"])
        call = random_row(rng, TOOLS)["call"]
        rows.append(Row(goal, seen, call and Call.from_dict(call), history, meant=meant))
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
    tokens=st.sampled_from([1, 30, 60]),  # length of the prefix, shortened to save time
)
def test_packed_losses_and_gradients_equal_those_of_separate_sequences(
    model: Any, encoder: RowEncoder, seed: int, count: int, order: bool, forced: bool, tokens: int
) -> None:
    prefix = encoder.prefix[:tokens]
    probed = with_word_probes(random_rows(seed, count), random.Random(seed))
    rows = [replace(row, named=" red" * (i % 2)) for i, row in enumerate(probed)]
    if order:  # in this order, neighbours share as much as possible
        rows.sort(key=lambda r: (r.instruction, r.history, r.observation))
    encoded = [encoder.encode(row, forced) for row in rows]
    normaliser = sum(w for r in encoded for h in r.heads for w in h.weights)
    packed = pack_rows(prefix, encoded)
    apart = separate_batches(prefix, encoded)
    assert len(packed.labels) == sum(len(b.labels) for b in apart)
    loss, grads = gradients(model, [packed], normaliser)
    expected, wanted = gradients(model, apart, normaliser)
    padded, padded_grads = gradients(model, [pad_batches(apart)], normaliser)
    assert loss == pytest.approx(expected, abs=1e-5)
    assert padded == pytest.approx(expected, abs=1e-5)
    assert grads.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(grads[name], gradient, atol=1e-5, rtol=1e-4, msg=name)
        torch.testing.assert_close(padded_grads[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_loss_of_separate_sequences_equals_hugging_face(folder: Path, encoder: RowEncoder) -> None:
    """The reference is Hugging Face's own attention with a hand-written cross-entropy."""
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for batch in separate_batches(
        encoder.prefix, [encoder.encode(replace(r, meant=None, named="")) for r in random_rows(1, 3)]
    ):
        with torch.no_grad():
            logits = plain(batch.tokens).logits[0][batch.label_rows]
            loss, correct = tree_loss(ours, batch, 1.0)
        chosen = logits.log_softmax(-1)[torch.arange(len(batch.labels)), batch.labels]
        assert float(loss) == pytest.approx(-float((chosen * batch.weights).sum()), abs=1e-4)
        assert torch.equal(correct, logits.argmax(-1) == batch.labels)


def test_targets_start_and_end_with_their_heads_tokens(encoder: RowEncoder) -> None:
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


# Word probes quote the observation and ask for a named word; they change neither calls nor accuracy.


WORDS = ("red", "blue", "Blue,", "3;", "north", "-0.5", "{", "the")
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)


@law(200)
@given(TEXTS, TEXTS, st.integers(0, 3), st.integers(0, 9))
def test_word_probes_quote_the_observation(told: str, seen: str, count: int, seed: int) -> None:
    row = Row(told, seen, Call("wait"), ("go()",))
    (probed,) = with_word_probes([row], random.Random(seed), count)
    assert (probed.instruction, probed.observation, probed.call, probed.history) == (told, seen, row.call, row.history)
    assert len(probed.quotes) <= count + 1
    for quote in probed.quotes:
        assert seen.count(quote.start + quote.rest) >= 1
        word = quote.start.strip().strip(",;").lower()
        assert quote.named or [w.strip(",;").lower() for w in seen.split()].count(word) == 1
        assert not quote.named or word in {w.strip(",;").lower() for w in told.split()}


def test_first_named_word_is_probed_without_a_prompt() -> None:
    def named(told: str, seen: str) -> list[str]:
        (row,) = with_word_probes([Row(told, seen, None)], random.Random(0))
        return [q.start.strip() + q.rest for q in row.quotes if q.named]

    assert named("Go to the blue.", "red 3 blue 4 north") == ["blue 4 north"]
    assert named("go to the blue", "red 3 blue 4 blue 5") == []
    assert named("go to the blue, not red", "red 3 blue 4 north") == ["blue 4 north"]
    assert named("wait", "the red 3") == []


# Rows with their own tools are encoded, packed and checked like rows of a fixed tool set.


def drawn(count: int) -> list[Row]:
    """Return rows with random tools, six per tool set, whose values are words and free texts."""
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
def made() -> tuple[PromptTemplate, STTokenizer]:
    texts = [tools_text(row.tools) + row.observation + row.instruction for row in drawn(200)]
    words = build_tokenizer([*texts, "the call function argument name end first"], [str(n) for n in range(10)])
    tokenizer = STTokenizer(words)
    return PromptTemplate(COMPACT, tokenizer, ""), tokenizer


@pytest.mark.parametrize("called", [True, False])
def test_row_with_tools_has_the_ids_of_its_prompt(made: Any, called: bool) -> None:
    template, tokenizer = made
    encoder = ToolsEncoder(template, tokenizer, allow_null=not called)
    for one in drawn(36):
        row = one if called else replace(one, call=None, meant="")
        plan = compile_plan(row.tools, tokenizer, allow_null=not called)
        own = RowEncoder(template, tokenizer, plan)
        found, want = encoder.encode(row, forced=called), own.encode(replace(row, tools=()), forced=called)
        assert (*encoder.prefix, *found.suffix) == (*own.prefix, *want.suffix)
        assert found.heads == want.heads and found.heads[0].labels
        assert found.early == tuple((at + len(own.prefix) - 1, label) for at, label in want.early)
        assert called or found.early != ()
