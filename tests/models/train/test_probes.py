"""Word probes quote the observation's own words, ask for the named one, and change neither call nor accuracy."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.packing import pack, separate
from rtcontrol.models.train.probes import with_word_probes
from rtcontrol.models.train.rows import Quote, Row, RowEncoder
from rtcontrol.models.train.vocabulary import build_tokenizer
from tests.models.small import law, tool

WORDS = ("red", "blue", "Blue,", "3;", "north", "-0.5", "{", "the")
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)


@pytest.fixture(scope="module")
def encoder() -> RowEncoder:
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


def test_what_is_named_may_have_several_words_of_which_others_have_some() -> None:
    def named(told: str, seen: str) -> str:
        (row,) = with_word_probes([Row(told, seen, None)], random.Random(0))
        return row.named

    assert named("go to the red sink", "blue sink up; red sink down; red box up") == ""
    assert named("go to the red sink", "blue box up; red sink down; red wall up") == " sink"
    assert named("go to the Red sink now", "red sink down; red wall up") == " sink"


def test_all_heads_are_asked_half_way_for_what_is_named(encoder: RowEncoder) -> None:
    row = Row("go to blue", "red 3 blue north", Call("go", {"way": "north"}), named=" blue")
    encoded = encoder.encode(row)
    (blue,) = encoder.tokenizer.encode(" blue")
    assert [head.early for head in encoded.heads] == [blue, blue]
    packed, alone = pack(encoder.prefix, [encoded]), separate(encoder.prefix, [encoded])
    assert packed.early_labels.tolist() == [blue, blue]
    heads = [encoder.tokenizer.special_id(name) for name in ("<function>", "<arg1>")]
    assert packed.tokens[0, packed.early_rows].tolist() == heads
    assert [(b.tokens[0, b.early_rows].tolist(), b.early_labels.tolist()) for b in alone] == [
        ([head], [blue]) for head in heads
    ]


def test_what_is_meant_is_asked_for_half_way_where_the_instruction_ends(encoder: RowEncoder) -> None:
    told = Row("go to blue", "red 3 blue north", Call("go", {"way": "north"}))
    again = replace(told, observation="red 4")
    rows = [replace(told, meant="blue north"), replace(again, meant="blue north"), replace(told, meant=""), told]
    encoded = [encoder.encode(row) for row in rows]
    wanted, null = encoder.tokenizer.encode(" blue north"), encoder.plan.function.null_id
    assert [[label for _, label in row.early] for row in encoded] == [wanted, wanted, [null], []]
    packed, apart = pack(encoder.prefix, encoded), separate(encoder.prefix, encoded)
    assert packed.early_labels.tolist() == [label for one in apart for label in one.early_labels.tolist()]
    end = encoder.tokenizer.special_id("<|im_end|>")
    assert packed.tokens[0, packed.early_rows].tolist() == [end] * 5
    # Both observations hang below the one place where the shared instruction ends.
    assert len(set(packed.early_rows[:4].tolist())) == 1
    behind = len(encoder.prefix) + 1 + len(encoder.tokenizer.encode("go to blue"))  # the tools end with one token
    assert packed.positions[0, packed.early_rows[0]] == behind


def test_probes_ask_what_follows_and_do_not_count(encoder: RowEncoder) -> None:
    row = Row("go to blue", "red 3 blue north", Call("go", {"way": "north"}))
    plain = encoder.encode(row)
    asked = [
        encoder.encode(Row(row.instruction, row.observation, row.call, (), (Quote(" blue", " north", named),)))
        for named in (False, True)
    ]
    blue, north = encoder.tokenizer.encode(" blue north")
    head = encoder.tokenizer.special_id("<content>")
    for encoded, first in zip(asked, (0.0, 1.0), strict=True):
        assert encoded.heads[:-1] == plain.heads
        probe = encoded.heads[-1]
        assert (probe.ids, probe.labels, probe.weights) == ((head, blue), (blue, north), (first, 1.0))
    batch = pack(encoder.prefix, [*asked, plain])
    labels = sum(len(h.ids) for h in plain.heads)
    assert (int(batch.counted.sum()), len(batch.counted)) == (3 * labels, 3 * labels + 3)
    each = separate(encoder.prefix, asked)
    assert sum(int(b.counted.sum()) for b in each) == 2 * labels
    assert sum(len(b.labels) for b in each) == 2 * labels + 3
