"""A value that grew too long is ended by what its schema still wants, and is one of the schema's.

Reports of others that are tried here: club-3090#45 (`propertyNames` fails every request), neuro-sdk#60 (`uniqueItems`),
xgrammar#487 (declared and patterned keys together).
"""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import numpy as np
import pytest

import rtcontrol
from rtcontrol.agents import Tools, tool
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.grammar import Grammars, parse_free
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import Free, value_text
from rtcontrol.models.schema.ending import text_ending
from rtcontrol.models.schema.json_schema import as_declared
from rtcontrol.models.schema.scalar_grammar import texts_of
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.vocabulary import build_tokenizer, number_words
from tests.models.small import WORDS
from tests.models.test_value_law import decoded


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    tokenizer = STTokenizer(build_tokenizer([WORDS], number_words(20, 0.2)))
    return Grammars(tokenizer, tokenizer.size)


WANTED: list[dict[str, Any]] = [
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-9},
    {"type": "number", "multipleOf": 0.25, "exclusiveMaximum": 0},
    {"type": "integer", "minimum": 100_000_000, "multipleOf": 1001},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"type": "string", "pattern": ".*[xyz]{3}$"},
    {"type": "string", "minLength": 40, "maxLength": 41},
    {"type": "string", "format": "date-time"},
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
    {"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 5},
    {"type": "array", "items": {"enum": ["left hand", "leftmost"]}, "minItems": 4, "maxItems": 4},
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    {"type": "array", "items": {"type": "string", "minLength": 60}, "minItems": 3, "uniqueItems": True},
    {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "[xyz]{3}$"}, "long name": {"type": "number", "minimum": 50}},
        "required": ["a", "long name"],
    },
    {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "minProperties": 2,
        "propertyNames": {"minLength": 4},
    },
    {"type": "object", "properties": {"n": {"type": "integer"}}, "patternProperties": {"^x-": {"type": "string"}}},
    {},
]


@pytest.mark.parametrize("schema", WANTED)
@pytest.mark.parametrize("limit", [1, 2, 5, 12])
def test_a_value_of_few_tokens_is_ended_as_its_schema_wants(
    grammars: Grammars, schema: dict[str, Any], limit: int
) -> None:
    domain = Free(schema)
    grammar = grammars.compile(domain, "Tool t, v")
    for seed in range(12):
        value = decoded(grammars, grammar, domain, random.Random(seed), limit)
        jsonschema.Draft202012Validator(schema).validate(value)


def test_the_bundled_model_waits_for_more_than_no_time() -> None:
    wait = {"name": "wait", "parameters": {"properties": {"seconds": WANTED[0]}, "required": ["seconds"]}}
    session = rtcontrol.load("lander").session([wait], untrained=True)
    for text in ("x 1", "x 0 y 141 vx -3", ""):
        call = session.decide(text, "wait").call
        assert call is not None and call.arguments["seconds"] > 0


@pytest.mark.parametrize(
    ("schema", "begun", "end"),
    [
        ({"pattern": ".*[xyz]{3}$"}, "hello x", 2),
        ({"minLength": 10}, "hi", 8),
        ({"pattern": "a", "maxLength": 3}, "bb", 1),
        ({"pattern": "^ab$"}, "b", None),
        ({"format": "uuid"}, "", 36),
    ],
)
def test_a_text_is_ended_with_the_fewest_characters(schema: dict[str, Any], begun: str, end: int | None) -> None:
    found = text_ending(texts_of(schema), begun)
    assert (None if found is None else len(found)) == end


def test_a_character_that_is_begun_is_finished(grammars: Grammars) -> None:
    end = grammars.tokenizer.special_id("</arg1>")
    grammar = grammars.compile(Free({"type": "string", "maxLength": 3}), "")
    first = grammars.tokenizer.encode("東")[0]
    value = grammars.start(grammar, 1)
    value.push(first)
    value.forced()
    assert np.flatnonzero(value.legal(end, None)).tolist() == [end]
    assert "\ufffd" not in grammars.tokenizer.decode(value.tokens)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string", "format": "entity_id"}},
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}},
        {"type": "array", "items": {"type": "string"}, "uniqueItems": False},
        {"type": "array", "items": {"type": "string"}, "not": {"maxItems": 0}},
        {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 3}},
        {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"},
        {"type": "number", "multipleOf": 0.125},
        {"type": "object", "properties": {"a": {"type": "string"}}, "unevaluatedProperties": False},
    ],
)
def test_a_keyword_that_the_library_does_not_know_refuses_no_tool(grammars: Grammars, schema: dict[str, Any]) -> None:
    domain = Free(schema)
    grammar = grammars.compile(domain, "Tool t, v")
    kept = 0
    for seed in range(8):
        try:
            value = decoded(grammars, grammar, domain, random.Random(seed), 24)
        except DecodeError as missed:
            assert "breaks its schema" in str(missed)
            continue
        jsonschema.Draft202012Validator(schema).validate(value)
        kept += 1
    assert kept or "not" in schema


WHOLE = {"type": "integer"}


@pytest.mark.parametrize(
    "rules",
    [
        {"items": WHOLE, "contains": {"const": 5}},
        {"items": WHOLE, "contains": {"const": 5}, "minItems": 3},
        {"items": WHOLE, "contains": {"minimum": 3}, "minContains": 2, "maxItems": 4},
        {"items": WHOLE, "allOf": [{"contains": {"const": 5}, "minContains": 2}, {"maxItems": 9}]},
        {"prefixItems": [WHOLE, {"type": "string"}], "items": WHOLE, "contains": {"type": "string"}},
        {"items": {"type": "number"}, "contains": {"type": "integer"}},
        {"items": {"properties": {"k": WHOLE}, "required": ["k"]}, "contains": {"properties": {"k": {"const": 2}}}},
    ],
)
@pytest.mark.parametrize("limit", [2, 24])
def test_an_array_has_what_it_must_contain(grammars: Grammars, rules: dict[str, Any], limit: int) -> None:
    schema = {"type": "array", **rules}
    (made,) = tool_schemas([{"name": "t", "parameters": {"properties": {"v": schema}, "required": ["v"]}}])
    domain = made.parameters[0].domain
    assert isinstance(domain, Free)
    grammar = grammars.compile(domain, "Tool t, v")
    for seed in range(8):
        value = decoded(grammars, grammar, domain, random.Random(seed), limit)
        jsonschema.Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize("contains", [{"type": "string"}, False])
def test_an_array_that_cannot_have_what_it_must_contain_is_refused(grammars: Grammars, contains: Any) -> None:
    with pytest.raises(UserError, match="Tool t, v: no value satisfies its schema"):
        grammars.compile(Free({"type": "array", "items": WHOLE, "contains": contains}), "Tool t, v")


@pytest.mark.parametrize("bound", [{"minimum": 1e300}, {"exclusiveMinimum": 2.0**64}, {"maximum": -1e20}])
@pytest.mark.parametrize("around", [lambda s: s, lambda s: {"type": "array", "items": s}])
def test_numbers_that_no_message_takes_are_refused(grammars: Grammars, bound: dict[str, float], around: Any) -> None:
    with pytest.raises(UserError, match="Tool t, v: its numbers lie beyond 64 bits"):
        grammars.compile(Free(around({"type": "number", **bound})), "Tool t, v")


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"multipleOf": 1e-7, "type": "number"}, [0.0, 3e-7, -2e-7, 0.5, 123456.7654321]),
        ({"multipleOf": 1e-12, "type": "number", "minimum": 0, "maximum": 1}, [3e-12, 0.25, 1.0]),
        ({"multipleOf": 2.5e-7, "type": "number"}, [2.5e-7, 5e-7, -1.0, 7.0]),
        ({"enum": [1.0, 2, "a"]}, [1, 1.0, 2, 2.0, "a"]),
        ({"type": "integer", "enum": [1.0, 2]}, [1, 1.0, 2, 2.0]),
        ({"enum": [[1.0, {"k": 2}], 3]}, [[1, {"k": 2.0}], [1.0, {"k": 2}], 3.0]),
    ],
)
def test_numbers_are_written_however_they_are_given(grammars: Grammars, schema: Any, values: list[Any]) -> None:
    (made,) = tool_schemas([{"name": "t", "parameters": {"properties": {"v": {"type": "array", "items": schema}}}}])
    domain = made.parameters[0].domain
    assert isinstance(domain, Free)
    machine = grammars.start(grammars.compile(domain, "Tool t, v"))._matcher
    for value in values:
        text = value_text(as_declared([value], domain.schema))
        ids, ahead = grammars.tokenizer.encode(text), machine.deep_copy()
        assert ahead.try_consume_tokens(ids) == len(ids) and ahead.is_accepting(), text
        assert parse_free(domain, text) == [value]


def test_a_listed_number_that_is_begun_is_finished(grammars: Grammars) -> None:
    domain = Free({"type": "object", "properties": {"a": {"type": "string"}, "p": {"enum": [2.5]}}, "required": ["p"]})
    grammar = grammars.compile(domain, "Tool t, v")
    value = grammars.start(grammar, 1)
    value.push(*grammars.tokenizer.encode('{"p":2'))
    value.forced()
    assert parse_free(domain, grammars.tokenizer.decode(value.tokens)) == {"p": 2.5}


def test_two_contains_of_one_array_keep_their_counts() -> None:
    five, seven = {"contains": {"const": 5}, "minContains": 2}, {"contains": {"const": 7}}
    schema = {"type": "array", "items": WHOLE, "allOf": [five, seven]}
    (made,) = tool_schemas([{"name": "t", "parameters": {"properties": {"v": schema}}}])
    judge = jsonschema.Draft202012Validator(made.parameters[0].schema)
    assert judge.is_valid([5, 5, 7]) and not judge.is_valid([5, 7, 7]) and not judge.is_valid([5, 5])


def test_what_a_set_names_twice_it_has_once() -> None:
    names = Free({"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 2})
    assert parse_free(names, '["a","b","a"]') == ["a", "b"]
    with pytest.raises(DecodeError, match="too short"):
        parse_free(names, '["a","a"]')


def test_a_set_is_a_parameter() -> None:
    @tool
    def watch(topics: set[str]) -> None:
        """Watch topics."""

    tools = Tools([watch])
    assert tools.convert(tools.validate(rtcontrol.Call("watch", {"topics": ["a", "b"]}))) == {"topics": {"a", "b"}}


@pytest.mark.parametrize("pattern", ["(?!a)b", r"\bfoo"])
@pytest.mark.parametrize("key", ["pattern", "patternProperties"])
def test_a_pattern_that_cannot_be_searched_for_is_refused_as_it_is_written(
    grammars: Grammars, pattern: str, key: str
) -> None:
    part = {"type": "string", key: pattern if key == "pattern" else {pattern: {"type": "string"}}}
    for schema in (part, {"type": "array", "items": part}, {"type": "array", "not": {"contains": part}}):
        with pytest.raises(UserError, match=rf"Tool t, v: its {key} '.*' cannot be searched for: "):
            grammars.compile(Free(schema), "Tool t, v")
