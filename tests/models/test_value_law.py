"""Over drawn schemas: no value is decoded that a foreign judge refuses, and each value that it takes can be written
under the plan, hence be taught and be answered; but for schemas that are refused by name at the start."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.grammar import Grammars, parse_free
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import ABSENT, tool_schemas
from rtcontrol.models.train.vocabulary import build_tokenizer, number_words
from tests.models.drawn_schemas import JUDGE, Drawer
from tests.models.small import WORDS

LIMIT = 24  # tokens, after which a value is ended for it


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    tokenizer = STTokenizer(build_tokenizer([WORDS], number_words(20, 0.2)))
    return Grammars(tokenizer, tokenizer.size)


def tried(grammars: Grammars, seed: int, told: Counter[str]) -> None:
    """One schema: what became of it is counted in `told`."""
    drawer = Drawer(seed)
    schema = drawer.schema()
    told["drawn"] += 1
    try:
        (tool,) = tool_schemas([{"name": "t", "parameters": {"properties": {"v": schema}, "required": ["v"]}}])
        plan = compile_plan((tool,), grammars.tokenizer)
        ((slot,),) = plan.slots
        grammar = None
        if not isinstance(slot.domain, ClosedDomain):
            grammar = grammars.compile(slot.domain, "Tool t, v")
            grammars.check(grammar, 64, "Tool t, v")
    except UserError as refused:
        told["refused: " + re.sub(r"['\"\[{(].*", "", refused.what.partition(": ")[2])[:60]] += 1
        return
    values = drawer.values(schema)
    if grammar is None:
        for value in random.Random(seed).sample(slot.domain.values, min(4, len(slot.domain.values))):
            told["calls judged"] += 1
            assert JUDGE(schema).is_valid(value), (seed, schema, value)
        for value in values:
            if not (value is None and slot.null):
                told["values written"] += 1
                assert plan.text(0, 0, value) is not None, (seed, schema, value)
        return
    for turn in range(4):
        try:
            value = decoded(grammars, grammar, slot.domain, random.Random(10 * seed + turn), LIMIT if turn else 4)
        except DecodeError as missed:
            assert "breaks its schema" in str(missed), (seed, schema, missed)
            told["missed: " + re.sub(r".*\(|[^a-z ]", " ", str(missed))[-40:]] += 1
            continue
        told["calls judged"] += 1
        assert JUDGE(schema).is_valid(value), (seed, schema, value)
    for value in values:
        if value is None and slot.null:
            continue
        text = plan.text(0, 0, slot.value({"v": value}))
        told["values written"] += 1
        assert slot.value({"v": value}) is not ABSENT
        machine, ids = grammars.start(grammar)._matcher, grammars.tokenizer.encode(text)
        whole = machine.validate_tokens(ids) == len(ids)
        machine.try_consume_tokens(ids)
        if not whole and "multipleOf" in str(schema) and any(int(n) > 2**62 for n in re.findall(r"[0-9]{19,}", text)):
            told["left out: integers beyond 2^62 in steps without a bound"] += 1
            continue
        assert whole and machine.is_accepting(), (seed, schema, text)
        assert JUDGE(schema).is_valid(parse_free(slot.domain, text)), (seed, schema, text)


def decoded(grammars: Grammars, grammar: str, domain: Any, chance: random.Random, limit: int) -> Any:
    """A value whose tokens are chosen blindly among the legal ones, as the decoder goes about it."""
    end = grammars.tokenizer.special_id("</arg1>")
    value = grammars.start(grammar, limit)
    while True:
        value.forced()
        token = int(chance.choice(np.flatnonzero(value.legal(end, None))))
        if token == end:
            return parse_free(domain, grammars.tokenizer.decode(value.tokens))
        value.push(token)


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_no_decoded_value_is_refused_and_each_valid_value_can_be_written(grammars: Grammars, first: int) -> None:
    told: Counter[str] = Counter()
    for seed in range(first, first + 60):
        tried(grammars, seed, told)
    assert told["calls judged"] > 60 and told["values written"] > 60


LETTERS = {"type": "string", "pattern": "^[a-z]+$"}


@pytest.mark.parametrize(
    ("schema", "no"),
    [
        # vLLM #45592: of several rules of one text one was kept.
        ({"allOf": [{"type": "string", "pattern": "(foo|bar)baz"}, LETTERS]}, "foobaz1"),
        ({**LETTERS, "allOf": [{"pattern": "q"}, {"pattern": "z$"}]}, "qa"),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": ["boolean", "string"]}, "b": LETTERS}},
                    {"type": "object", "required": ["a"], "additionalProperties": {"type": "boolean"}},
                ]
            },
            {"a": "up"},
        ),
    ],
)
def test_what_two_parts_say_of_one_value_is_decoded_not_only_checked(grammars: Grammars, schema: Any, no: Any) -> None:
    (tool,) = tool_schemas([{"name": "t", "parameters": {"properties": {"v": schema}, "required": ["v"]}}])
    domain: Any = tool.parameters[0].domain
    grammar = grammars.compile(domain, "Tool t, v")
    assert not JUDGE(schema).is_valid(no)
    for seed in range(12):
        value = decoded(grammars, grammar, domain, random.Random(seed), 4 + seed)
        assert JUDGE(schema).is_valid(value), value


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1_000, 11_000, 1_000))
def test_ten_thousand_schemas_keep_the_law(grammars: Grammars, first: int) -> None:
    told: Counter[str] = Counter()
    for seed in range(first, first + 1_000):
        tried(grammars, seed, told)
    print(dict(told.most_common()))
    assert told["calls judged"] > 1_000 and told["values written"] > 1_000
