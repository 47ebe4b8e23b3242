"""What training begins with: prepared weights, subwords, and synthetic tasks whose answers follow from their text."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import Qwen2ForCausalLM

from rtcontrol.models.call import Call
from rtcontrol.models.domain import ClosedDomain
from rtcontrol.models.plan import compile_plan
from rtcontrol.models.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.schema import tool_schemas
from rtcontrol.models.special import ST_TOKENS
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.train.policy import TreePolicy
from rtcontrol.models.train.prepared import prepare
from rtcontrol.models.train.probes import with_word_probes
from rtcontrol.models.train.rows import LossWeights, Row, RowEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.subwords import build_subwords
from rtcontrol.models.train.tasks import names, relations, schemas
from rtcontrol.models.train.tasks.look_up import look_up
from rtcontrol.models.train.tasks.task import Directive, SyntheticTask
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_tokenizer, number_words
from tests.models.small import law, tool

NAMES = ["red", "blue", "green", "black", "white", "amber", "violet", "silver"]


def fresh(seed: int = 0, ordinal: bool = False, layers: int = 2) -> Qwen2ForCausalLM:
    words = build_tokenizer([" ".join(NAMES)], number_words(100))
    return new_model(ModelShape(hidden=128, layers=layers, heads=4, intermediate=256), words, seed, ordinal)


def test_a_prepared_model_has_the_documented_scales() -> None:
    model = prepare(fresh(layers=5))
    assert float(model.get_input_embeddings().weight.detach().std()) == pytest.approx(0.5, rel=0.02)
    assert bool((model.model.norm.weight == 0.1).all())
    last = model.model.layers[-1]
    for linear in (last.self_attn.q_proj, last.self_attn.k_proj, last.mlp.gate_proj, last.mlp.up_proj):
        assert float(linear.weight.detach().std()) == pytest.approx(128**-0.5, rel=0.05)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 4), (2, 1)])
def test_heads_of_the_first_layer_look_back_and_those_of_the_next_find_the_word_again(
    heads: int, kv_heads: int
) -> None:
    shape = ModelShape(hidden=256, layers=5, heads=heads, kv_heads=kv_heads)
    words = build_tokenizer([" ".join(NAMES)], number_words(100))
    model = prepare(new_model(shape, words, 0, ordinal=False))
    model.set_attn_implementation("eager")
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:24]
    ids = torch.cat([order, order])[None] + 256  # each word twice: what followed it follows again
    with torch.no_grad():
        seen = model(ids, output_attentions=True).attentions
    at = torch.arange(8, 48)
    offsets = [int((at - seen[0][0, h, at].argmax(-1)).mode().values) for h in range(heads)]
    assert {1, 2} <= {*offsets}
    assert float(seen[0][0, :, at, :].max(-1).values.mean()) > 0.9
    again = torch.arange(26, 48)
    found = [float((seen[1][0, h, again].argmax(-1) == again - 23).float().mean()) for h in range(heads)]
    assert max(found) > 0.6


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_what_stands_two_words_behind_is_looked_for_where_that_is_asked(heads: int, kv_heads: int) -> None:
    words = build_tokenizer([" ".join(NAMES)], number_words(100))
    shape = ModelShape(hidden=256, layers=5, heads=heads, kv_heads=kv_heads)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:24]
    ids = torch.cat([order, order])[None] + 256
    again = torch.arange(26, 48)
    found = {}
    for behind in ((1,), (2,), (1, 2)):
        model = prepare(new_model(shape, words, 0, ordinal=False), behind=behind)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            seen = model(ids, output_attentions=True).attentions[1][0][:, again].argmax(-1)
        found[behind] = [max(float((row == again - 24 + n).float().mean()) for row in seen) for n in (1, 2)]
    assert found[(1,)][0] > 0.5 > 0.2 > found[(1,)][1]
    assert found[(2,)][1] > 0.4 > 0.2 > found[(2,)][0]
    assert min(found[(1, 2)]) > 0.4


def test_forms_of_one_word_start_alike_where_the_tokenizer_is_given() -> None:
    words = build_tokenizer([" ".join(NAMES)])
    model = prepare(new_model(ModelShape(hidden=128, layers=2, heads=4), words, 0, ordinal=False), words)
    weight = model.get_input_embeddings().weight.detach()

    def near(a: str, b: str) -> float:
        pair = weight[words.token_to_id(a)], weight[words.token_to_id(b)]
        return float(torch.cosine_similarity(*pair, dim=0))

    assert all(near(form, name) > 0.8 for name in NAMES for form in (f"Ġ{name}", name.capitalize()))
    assert abs(near("red", "blue")) < 0.4


# The subword tokenizer loses nothing, cuts a word alike wherever it stands, and spells new words in known pieces.


PHRASES = ('{"name": "', '", "required": ["')


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [" ".join(names.FIRST), *[" ".join(names.MADE_UP[:40])] * 2]
    return build_subwords(texts, 1400, ["12", "-0.5"], PHRASES)


@law(200)
@given(st.text(max_size=40))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    mine = STTokenizer(tokenizer)
    assert mine.decode(mine.encode(text)) == text


@law(200)
@given(st.text("abdeklmnorz", min_size=2, max_size=12))
def test_a_word_is_cut_alike_with_and_without_its_space(tokenizer: Tokenizer, word: str) -> None:
    mine = STTokenizer(tokenizer)
    bare, spaced = ([mine.decode([i]) for i in mine.encode(text)] for text in (word, f" {word}"))
    assert spaced == [f" {bare[0]}", *bare[1:]]


def test_numbers_phrases_and_common_words_are_one_token_and_new_words_several_known_ones(tokenizer: Tokenizer) -> None:
    mine = STTokenizer(tokenizer)
    for text in ("12", " 12", " -0.5", *PHRASES, " red", "amber"):
        assert len(mine.encode(text)) == 1, text
    assert 2 <= len(mine.encode(names.MADE_UP[-1])) <= 5
    assert mine.size <= 1400
    assert {*ST_TOKENS} <= {*mine.specials}


# Every synthetic task's answer follows from its text: read back by rules that know nothing of how it was made.


WAYS = {word for ways in schemas.WAYS for word in ways}
UNASKED = {word for words in schemas.STATES for word in words if isinstance(word, str)}
Tasks = Callable[..., Iterator[SyntheticTask]]
ALL: dict[str, Tasks] = {
    "look up": look_up, "compare": relations.compare, "count": relations.count, "nearest": relations.nearest,
    "towards": relations.towards, "if then": relations.if_then,
}  # fmt: skip


def is_value(word: str) -> bool:
    return word in WAYS | UNASKED or re.fullmatch(r"-?\d+", word) is not None


def read(observation: str) -> dict[str, list[Any]]:
    """Names and what stands beside them, in any of the layouts: values before or behind the name, of which each thing
    has as many."""
    words = [w for w in re.findall(r"-?\w+", observation) if w not in ("the", "is")]
    runs: list[tuple[bool, list[str]]] = []
    for word in words:
        if not runs or runs[-1][0] != is_value(word):
            runs.append((is_value(word), []))
        runs[-1][1].append(word)
    assert len(runs) % 2 == 0
    pairs = [(a, b) if b[0] else (b, a) for a, b in zip(runs[::2], runs[1::2], strict=True)]
    return {" ".join(n): [v if v in WAYS | UNASKED else int(v) for v in vs] for (_, n), (_, vs) in pairs}


def never_trained(name: str) -> bool:
    return name in names.UNSEEN or (name not in names.TRAINING["words"] and names.held_out(name))


def named(sentence: str, seen: dict[str, list[Any]]) -> str:
    (name,) = [n for n in seen if re.search(rf"\b{n}\b", sentence)]
    return name


def looked_up(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    name = named(told, seen)

    def asked(like: Any) -> Any:
        (value,) = [v for v in seen[name] if (v in schemas.DIGITS if isinstance(like, int) else v in WAYS)]
        return value

    return [a if a == name else asked(a) for a in arguments]


def compared(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    a, word, b = re.fullmatch(r"is (.+) (more|less|above|below|higher|lower) than (.+)", told).groups()  # type: ignore[union-attr]
    more = word in ("more", "above", "higher")
    other = seen[b][0] if b in seen else int(b)
    true = seen[a][0] > other if more else seen[a][0] < other
    return [("true" if true else "false") if arguments[0] in ("true", "false") else ("yes" if true else "no")]


def counted(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    return [sum(values == [told.split()[-1]] for values in seen.values())]


def extreme(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    best = min if told.split()[-1] in ("nearest", "closest") else max
    return [best(seen.values())[1]]


def sided(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    positive = (seen[named(told, seen)][0] > 0) == ("towards" in told)
    minus, plus = next(pair for pair in relations.SIDES if arguments[0] in pair)
    return [plus if positive else minus]


def chosen(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    name, way, then, other = re.fullmatch(r"if (.+) is (\w+) \w+ (\w+) else \w+ (\w+)", told).groups()  # type: ignore[union-attr]
    return [then if seen[name] == [way] else other]


RIGHT = dict(zip(ALL, (looked_up, compared, counted, extreme, sided, chosen), strict=True))


@pytest.mark.parametrize("kind", ALL)
@law(150)
@given(st.integers(0, 10**9), st.integers(1, 6), st.booleans())
@example(734269, 6, False)  # a name was "back", as a value was
@example(328, 5, False)
@example(650, 3, False)  # a name was "hot", as a state of a thing is
def test_the_answer_follows_from_the_text_and_is_legal(kind: str, seed: int, things: int, unseen: bool) -> None:
    if kind == "count":
        things = max(things, 2)
    for task in ALL[kind](Random(seed), things, unseen):
        seen = read(task.observation)
        assert len(seen) == max(things, 2 if kind in ("compare", "nearest") else 1)
        assert all(never_trained(name) == unseen for name in seen)
        for told in task.told:
            (tool,) = [t for t in task.tools if t.name == told.call.name]
            assert len(task.tools) == 1 or re.search(rf"\b{tool.name}\b", told.instruction)
            assert [p.name for p in tool.parameters] == list(told.call.arguments)
            for p, value in zip(tool.parameters, told.call.arguments.values(), strict=True):
                assert not isinstance(p.domain, ClosedDomain) or p.domain.holds(value)
            values = list(told.call.arguments.values())
            assert values == RIGHT[kind](told.instruction, seen, values)


def test_the_same_seed_draws_the_same_tasks_and_another_one_others() -> None:
    for tasks in ALL.values():
        first, again, other = ([(t.observation, t.told) for t in tasks(Random(s), 3)] for s in (1, 1, 2))
        assert first == again != other


def test_names_are_many_split_for_ever_and_share_their_parts() -> None:
    for kind, trained in names.TRAINING.items():
        kept = names.HELD_OUT[kind]
        assert not {*trained} & {*kept} and len(trained) > len(kept) > 40
    assert sum(map(len, names.TRAINING.values())) > 1000
    rng = Random(0)
    assert len({name for _ in range(300) for name in names.draw(rng, 3, mix=(0, 0, 0, 0, 1))}) > 700
    halves = {name[:2] for name in names.TRAINING["made up"]}
    assert all(name[:2] in halves for name in names.HELD_OUT["made up"])


def test_tools_differ_in_name_order_and_words() -> None:
    rng = Random(0)
    drawn = [task.tools for _ in range(300) for task in look_up(rng, 3)][::2]
    assert len({tool.name for tools in drawn for tool in tools}) > 30
    assert {len(tools) for tools in drawn} == {1, 2, 3, 4}
    orders = {tuple(p.name for p in tool.parameters) for tools in drawn for tool in tools}
    assert any(order[::-1] in orders for order in orders if len(order) == 2)


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        ("compare", lambda told: bool(re.search("more|above|higher", told.instruction))),
        ("towards", lambda told: "towards" in told.instruction),
    ],
)
def test_the_plain_way_is_asked_more_often_in_training_alone(kind: str, plain: Callable[[Directive], bool]) -> None:
    for unseen, least, most in ((False, 0.75, 0.85), (True, 0.44, 0.56)):
        told = [d for seed in range(100) for task in ALL[kind](Random(seed), 3, unseen) for d in task.told]
        assert least < sum(map(plain, told)) / len(told) < most


# A prepared model learns to find any named thing within a few thousand rows, and follows another name elsewhere.


SHOWN = ("red", "blue", "green", "black", "white", "amber", "violet", "silver")
HEADINGS = ["north", "south", "east", "west"]
TOOLS = tool_schemas([tool("go", way=HEADINGS)])


def drawn_look_up(rng: random.Random) -> Row:
    shown = rng.sample(SHOWN, 3)
    where = {name: rng.choice(HEADINGS) for name in shown}
    seen = " ".join(f"{name} {where[name]}" for name in rng.sample(shown, 3))
    return Row(f"go to the {shown[0]}", seen, Call("go", {"way": where[shown[0]]}))


@pytest.mark.slow
def test_a_prepared_model_learns_a_look_up_and_follows_another_name(tmp_path: Path) -> None:
    words = build_tokenizer(["the call function argument name end first", " ".join(SHOWN), tools_text(TOOLS)], ["1"])
    mine = STTokenizer(words)
    plan = compile_plan(TOOLS, mine)
    encoder = RowEncoder(PromptTemplate(COMPACT, mine, ""), mine, plan, LossWeights(quote=0.3))

    def source(chunk: int) -> Sequence[Row]:
        rng = random.Random(chunk)
        return [*with_word_probes((drawn_look_up(rng) for _ in range(1024)), rng, 1)]

    shape = ModelShape(hidden=128, layers=4, heads=2, kv_heads=2, intermediate=256)
    model = prepare(new_model(shape, words, 0), words)
    config = TrainConfig(samples=12_000, run=1, group=32, learning_rate=2e-3)
    Trainer(model, encoder, source, config, tmp_path).run()
    rng = random.Random("held out")
    rows = [drawn_look_up(rng) for _ in range(300)]
    policy = TreePolicy(model, encoder)
    calls = policy([(row.instruction, row.observation) for row in rows])
    assert sum(call == row.call for call, row in zip(calls, rows, strict=True)) >= 294
    # Another name of those shown: another call, where another direction stands beside it.
    seen = [row.observation.split() for row in rows]
    other = [next(n for n in words[::2] if n not in row.instruction) for words, row in zip(seen, rows, strict=True)]
    swapped = policy([(f"go to the {name}", row.observation) for name, row in zip(other, rows, strict=True)])
    right = [Call("go", {"way": words[words.index(name) + 1]}) for name, words in zip(other, seen, strict=True)]
    assert sum(call == want for call, want in zip(swapped, right, strict=True)) >= 294
