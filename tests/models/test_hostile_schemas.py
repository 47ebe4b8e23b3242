"""Schemas that would take minutes or gigabytes to compile or to decode: refused by name, or done within a bound."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decider import DeciderSpec, core_of
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.grammar import parse_free
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.serve.tool_reading import ToolReading


def taking(schema: Any) -> list[dict[str, Any]]:
    return [{"name": "f", "description": "F.", "parameters": {"properties": {"a": schema}, "required": ["a"]}}]


def text(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, **more}


def options(count: int, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}, **more}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "repeated repetitions": (text("^(a{1000}){1000}$"), "no text matches"),
    "repeated thrice": (text("^((a{100}){100}){100}$"), "no text matches"),
    "repeated billions of times": (text("^a{4000000000}$"), "no value of at most 64 tokens"),
    "states without number": (text("^[ab]*a[ab]{300}$"), "no value of at most 64 tokens"),
    "a thousand groups": (text("(" * 1500 + "a" + ")" * 1500), "nested too deeply"),
    "a long text": ({"type": "string", "minLength": 10**9}, "no value of at most 64 tokens"),
    "a length beyond a machine's": ({"type": "string", "maxLength": 10**30}, "no text matches"),
    "a long list": ({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}, "at most 64 tokens"),
    "three long texts": (
        {"type": "array", "items": {"type": "string", "minLength": 3000}, "minItems": 3},
        "no value of at most 64 tokens",
    ),
    "a set of long texts": (
        {"type": "array", "items": text("^[b-z]{2000,}$"), "minItems": 9, "uniqueItems": True},
        "no value of at most 64 tokens",
    ),
    "long names": (
        {"type": "object", "propertyNames": {"minLength": 1000}, "minProperties": 3},
        "no value of at most 64 tokens",
    ),
    "steps between bounds": ({"type": "integer", "maximum": 10**18, "multipleOf": 7919}, "cannot be decoded"),
    "a hundred steps": (
        {"type": "array", "prefixItems": [{"type": "integer", "multipleOf": n} for n in range(9001, 9101)]},
        "cannot be decoded",
    ),
    "two thousand options": (options(2000), "too many properties"),
    "a constant of half a megabyte": (
        {"type": "object", "properties": {"z": {"const": "y" * 500_000}}, "required": ["z"]},
        "too long, or too many",
    ),
    "constants of a megabyte": ({"enum": [f"{i} " + "no one " * 1000 for i in range(100)]}, "too long, or too many"),
}
DECODED: dict[str, dict[str, Any]] = {
    "nested repetitions": text("^(a+)+$"),
    "nested stars": text("^((a*)*)*b$"),
    "states that double": text("^[ab]*a[ab]{25}$"),
    "long at most": {"type": "string", "maxLength": 10**9},
    "all at once": {"allOf": [text(f".*{letter}.{{{20 + i}}}") for i, letter in enumerate("abcdef")]},
    "a long list at most": {"type": "array", "items": {"type": "string"}, "maxItems": 10**9},
    "large steps": {"type": "array", "items": {"type": "integer", "multipleOf": 7919 * 7907}},
    "odd steps": {"type": "number", "multipleOf": 99991.7},
    "many values in a list": {"type": "array", "items": {"enum": [f"v{i}" for i in range(20_000)]}},
    "many kinds of text": {"anyOf": [text(f"^a{i}.*b{i}$") for i in range(150)]},
    "many names": {"type": "object", "patternProperties": {f"^a{i}.*b$": {"type": "string"} for i in range(80)}},
    "names that double": {
        "type": "object",
        "propertyNames": {"pattern": "^[ab]*a[ab]{40}$"},
        "additionalProperties": {"type": "string"},
    },
}


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open("lander")


def compiled(checkpoint: Checkpoint, schema: dict[str, Any]) -> Any:
    return core_of(DeciderSpec("lander", ()), checkpoint, checkpoint.config["vocab_size"], tool_schemas(taking(schema)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_decoded_in_its_bounds_is_refused_by_name(checkpoint: Checkpoint, case: str) -> None:
    schema, why = REFUSED[case]
    with pytest.raises(UserError, match=why) as refused:
        compiled(checkpoint, schema)
    assert re.match("Tool f, (parameter )?a: ", refused.value.what) and refused.value.remedy
    assert len(refused.value.what) < 20_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", DECODED)
def test_what_is_decoded_ends_whatever_the_model_says(checkpoint: Checkpoint, case: str) -> None:
    core = compiled(checkpoint, DECODED[case])
    assert isinstance(core, DecoderCore)
    ((key, start),) = core.starts.items()
    for seed in range(3):
        chance = random.Random(seed)
        value = core._grammars.start(start[1])  # type: ignore[union-attr]
        try:
            while len(value.tokens) < 500:
                value.forced()
                legal = np.flatnonzero(value.legal(0, None)).tolist()
                if (token := 0 if legal == [0] else chance.choice(legal)) == 0:
                    break
                value.push(token)
            parse_free(core.domains[key], core._grammars.bytes_of(value.tokens).decode("utf-8", "replace"))  # type: ignore[union-attr]
        except DecodeError:
            pass  # of this value; told where it is decided
        assert len(value.tokens) < 500


def test_the_reader_apart_compiles_for_the_model_and_ends_what_takes_too_long() -> None:
    reader = ToolReading("lander")
    try:
        assert reader.check(taking(DECODED["nested repetitions"]))
        many = taking({"anyOf": [text(f"^a{i}.*b{i}$") for i in range(2000)]})
        with pytest.raises(UserError, match="takes more than 2 s of a processor's time"):
            reader.check(many)
        assert len(json.dumps(many)) < 1 << 20
        told = REFUSED["a constant of half a megabyte"][0]
        assert reader.check(taking(told)), "what is refused is told where it is compiled in earnest"
    finally:
        reader.close()
