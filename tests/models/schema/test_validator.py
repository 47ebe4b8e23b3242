"""Values are validated like in `jsonschema`, in bounded time whatever the patterns and nesting of the schema."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import jsonschema
import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.validator import PatternError, Validator, compile_pattern

DOUBLING = "(a+)+$"
NAME = "a" * 40 + "b"


def nested(schema: Any, levels: int, around: str) -> Any:
    for _ in range(levels):
        schema = json.loads(around.replace("INNER", json.dumps(schema)))
    return schema


SLOW: dict[str, tuple[Any, Any, bool]] = {
    "a pattern": ({"pattern": DOUBLING}, NAME, False),
    "keys with a schema": ({"patternProperties": {DOUBLING: False}}, {NAME: 1}, True),
    "items of no part": ({"prefixItems": [{"pattern": DOUBLING}], "unevaluatedItems": False}, [NAME], False),
    "parts within parts": (
        nested(True, 60, '{"anyOf": [INNER], "properties": {"a": true}, "unevaluatedProperties": false}'),
        {"a": 1},
        False,  # validation takes too many steps
    ),
    "items within parts": (nested({"prefixItems": [True]}, 60, '{"if": INNER, "unevaluatedItems": false}'), [1], False),
}


@pytest.mark.timeout(100)
def test_validation_time_is_bounded_for_every_schema() -> None:
    began = time.process_time()
    for case, (schema, value, valid) in SLOW.items():
        assert Validator(schema, "w").accepts(value) == valid, case
    assert time.process_time() - began < 20


class Drawn:
    """A generator of values, and of schemas with keywords that depend on each other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def schema(self, depth: int = 3) -> Any:
        draw = self.random
        if not depth:
            leaves = [True, False, {"type": "integer"}, {"const": 1}, {"required": ["a"]}, {"properties": {"a": True}}]
            return draw.choice([*leaves, {"prefixItems": [True]}, {"patternProperties": {"^b": {"minimum": 3}}}])
        schema: dict[str, Any] = {}
        several, unary = (
            ("prefixItems", "allOf", "anyOf", "oneOf"),
            ("items", "contains", "not", "additionalProperties"),
        )
        named, seals = ("properties", "patternProperties", "dependentSchemas"), ["Properties", "Items"]
        for key in draw.sample([*several, *unary, *named, "if"], draw.randint(0, 3)):
            if key in several:
                schema[key] = [self.schema(depth - 1) for _ in range(draw.randint(1, 2))]
            elif key in named:
                schema[key] = {name: self.schema(depth - 1) for name in draw.sample("abc", draw.randint(1, 2))}
            else:
                schema[key] = self.schema(depth - 1)
                more = draw.sample(["then", "else"], draw.randint(0, 2)) if key == "if" else []
                schema |= {key: self.schema(depth - 1) for key in more}
        sealing = draw.sample(seals, draw.randint(0, 2))
        return schema | {f"unevaluated{kind}": draw.choice([False, self.schema(depth - 1)]) for kind in sealing}

    def value(self, depth: int = 2) -> Any:
        draw, kind = self.random, self.random.random()
        if depth and kind < 0.35:
            return [self.value(depth - 1) for _ in range(draw.randint(0, 3))]
        if depth and kind < 0.85:
            return {key: self.value(depth - 1) for key in draw.sample(["a", "b", "c", "ab"], draw.randint(0, 3))}
        return draw.choice([1, 2, 5, "x", "ab", None, True])


def test_unevaluated_values_are_validated_like_jsonschema() -> None:
    counts = {True: 0, False: 0}
    for seed in range(1000):
        drawn = Drawn(seed)
        schema = drawn.schema()
        try:
            judge, validator = jsonschema.Draft202012Validator(schema), Validator(schema, "w")
        except UserError as error:
            assert "unevaluatedProperties` together with `patternProperties" in error.what
            continue
        for value in (drawn.value() for _ in range(8)):
            counts[judge.is_valid(value)] += 1
            assert validator.accepts(value) == judge.is_valid(value), (seed, schema, value)
    assert min(counts.values()) > 500


# Patterns are searched in linear time and match like in jsonschema.


TEXTS = (
    *("", "/", "a", "a/", "/a", "ab", "xab", "abx", "b", "c", "ac", "bc", "xac", "xbc", "a,b", "x,a", "a.b", "1a"),
    *("12", " ", "a b", "A", "AB", "a\nb", "\n", "😀", "[a]", "a-b", "ab1", "foo@bar.com", "aab", "\t", "x1y"),
)
PATTERNS = [
    *("", "^", "$", "^$", "^/", r"\S", "a$|^b", r"^\d+$", r"^\w+$", r"[^\s]", "^.$", "a*?b", "(a|b)+c?$"),
    *("^(?:a|b$)", "^a{2,}", "[a-c]", r"[\]a]", r"\x41", "(?i)ab$", r"^[\w.-]+@[\w-]+\.\w+$", ".*[xyz]{3}$"),
    *("(?:x|)1", "a|", r"\D", r"\W"),
]
ESCAPED = ["\\", 'a"b', "a\\b", '"']


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_matches_like_python(pattern: str) -> None:
    matcher = compile_pattern(pattern)
    for text in TEXTS:
        wanted = re.search(pattern, text) is not None
        if wanted and text.endswith("\n"):  # in Python, `$` also matches before a final line break
            assert not matcher.matches(text) or re.search(pattern.replace("$", r"\Z"), text)
        else:
            assert matcher.matches(text) == wanted, text


@pytest.mark.parametrize(
    "pattern", [*PATTERNS, r"^[^\\]+$", '^[^"]*$', r"[^\\]b$", r"^\\$", '^"', "^[^a|]$", "^[ -~]+$", r"^[^\x00-\x7f]$"]
)
def test_quotes_and_backslashes_match_like_python(pattern: str) -> None:
    for text in ESCAPED:
        assert not compile_pattern(pattern).matches(text) or re.search(pattern, text), text


@pytest.mark.parametrize(
    "pattern",
    ["(?!a)b", "(?<=a)b", r"\bfoo", r"(a)\1", "x^y", "a$b", "(a", "a)", "[a", "[z-a]", "*a", "(" * 3000, "a" * 5000],
)
def test_pattern_that_the_engine_lacks_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "(a|b)*a(a|b){200}"]
)
def test_backtracking_pattern_is_decided_quickly(pattern: str) -> None:
    began = time.process_time()
    for text in ("a" * 5000 + "!", "ab" * 500, "x" * 3000, 'a"' * 1000):
        compile_pattern(pattern).matches(text)
    assert time.process_time() - began < 20  # Python's own engine would take years
