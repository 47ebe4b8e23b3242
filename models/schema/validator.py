"""Validate values by JSON schemas of draft 2020-12 in limited time, with the package `jsonschema`.

Patterns are matched in linear time by llguidance, `multipleOf` is exact for decimals, numbers must be finite, and
integers must fit in 64 bits. `format` is ignored. References to other documents are not loaded.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any

import jsonschema
import numpy as np
import referencing
import referencing.exceptions

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.limits import CLASS, MAX_PATTERN_ATOMS, MAX_PATTERNS, REPEAT

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1  # range of the integers that messages can contain
DATA_KEYWORDS = ("enum", "const", "default", "examples")
ANNOTATIONS = ("title", "description", "default", "examples", "x-group")  # keywords that do not restrict values
SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
NO_VALUE: dict[str, Any] = {"not": {}}  # the schema that no value satisfies
LARGE = 2**53  # all floats from this number on are integers
MAX_STEPS = 200_000  # maximum number of keywords and list entries that are checked for one value
Errors = Iterator[jsonschema.ValidationError]


class Validator:
    """A validator for one schema.

    Raises UserError (`where` names tool and parameter) if a pattern cannot be matched in linear time.
    """

    def __init__(self, schema: Mapping[str, Any], where: str) -> None:
        check_patterns(schema, where)
        self._where = where
        self._validator = _VALIDATOR(_prepare(schema), registry=referencing.Registry())

    def violation(self, value: Any) -> str | None:
        """Return why a value is invalid, in a few words; None if it is valid.

        Raises UserError if a reference in the schema has no target.
        """
        _counter.steps = 0
        try:
            error = next(self._validator.iter_errors(value), None)
        except (PatternError, _TooManySteps) as limit:
            return f"it takes too long to check ({limit})"
        except (referencing.exceptions.Unresolvable, RecursionError) as lost:
            problem = f"{self._where}: its rules cannot be checked ({str(lost)[:120]})."
            raise UserError(problem, "Replace references by their targets.") from None
        if error is None:
            return None
        place = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in error.absolute_path)
        return f"{place.removeprefix('.')}: {error.message}"[:200].removeprefix(": ")

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid. Raises UserError as `violation` does."""
        return self.violation(value) is None


def check_patterns(schema: Any, where: str) -> None:
    """Raise UserError if a pattern of a schema, at any depth, is not supported."""
    keywords = set[str]()
    for part in all_parts(schema):
        keywords |= part.keys()
        for key in ("pattern", "patternProperties"):
            sources = part.get(key, ())
            for source in [sources] if isinstance(sources, str) else sources:
                try:
                    compile_pattern(source)
                except PatternError as error:
                    problem = f"{where}: its {key} {source[:80]!r} is not supported: {error}."
                    hint = "Use only classes, groups, repetitions, and anchors at the ends."
                    raise UserError(problem, hint) from None
    if {"unevaluatedProperties", "patternProperties"} <= keywords:
        problem = f"{where}: `unevaluatedProperties` together with `patternProperties` is not supported."
        raise UserError(problem, "Use `additionalProperties`, or name the properties.")


def all_parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its subschemas, at all depths."""
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from all_parts(part)
    elif isinstance(schema, Mapping):
        yield schema
        for key, value in schema.items():
            if key not in DATA_KEYWORDS:
                yield from all_parts([*value.values()] if key in SCHEMA_MAPS and isinstance(value, Mapping) else value)


class _EnumValues(list[Any]):
    """The values of an `enum`, with a set of their equality keys for fast look-ups."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__(values)
        self.keys = frozenset(map(equality_key, self))


def _prepare(schema: Any) -> Any:
    """Return an equivalent schema that is faster to validate: enums and constant alternatives become look-ups."""
    if isinstance(schema, list | tuple):
        return [_prepare(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    prepared: dict[str, Any] = {}
    excluded: list[Any] = []
    for key, value in schema.items():
        if key in DATA_KEYWORDS:
            prepared[key] = _EnumValues(value) if key == "enum" else value
        elif key in SCHEMA_MAPS and isinstance(value, Mapping):
            prepared[key] = {name: _prepare(part) for name, part in value.items()}
        elif key in ("anyOf", "oneOf") and isinstance(value, list | tuple):
            listed = {equality_key(v): v for arm in value for v in constant_values(arm) or ()}
            count = Counter(k for arm in value for k in {equality_key(v) for v in constant_values(arm) or ()})
            twice = [v for k, v in listed.items() if key == "oneOf" and count[k] > 1]
            prepared[key] = [{"enum": _EnumValues(listed.values())}] if listed else []
            prepared[key] += [_prepare(arm) for arm in value if constant_values(arm) is None]
            excluded += [{"not": {"enum": _EnumValues(twice)}}] if twice else []
        else:
            prepared[key] = _prepare(value)
    return {**prepared, "allOf": [*prepared.get("allOf", ()), *excluded]} if excluded else prepared


def _enum(_: Any, listed: list[Any], value: Any, __: Any) -> Errors:
    keys = listed.keys if isinstance(listed, _EnumValues) else {equality_key(v) for v in listed}
    if equality_key(value) not in keys:
        yield jsonschema.ValidationError(f"{str(value)[:60]!r} is not a listed value")


class _TooManySteps(Exception):
    """The validation of a value takes more than MAX_STEPS steps."""


_counter = threading.local()  # `_counter.steps` counts the steps of this thread's current validation


def steps_taken() -> int:
    """Return the number of steps of this thread's last validation."""
    return int(getattr(_counter, "steps", 0))


def _count_steps(keyword: Callable[..., Errors | None]) -> Callable[..., Errors | None]:
    """Wrap a keyword's validation function so that it counts steps."""

    def counted(validator: Any, part: Any, value: Any, schema: Any) -> Errors | None:
        _counter.steps += 1 + (len(part) if isinstance(part, list) and not isinstance(part, _EnumValues) else 0)
        if _counter.steps > MAX_STEPS:
            raise _TooManySteps(f"more than {MAX_STEPS} steps")
        return keyword(validator, part, value, schema)

    return counted


def _pattern(_: Any, source: str, value: Any, __: Any) -> Errors:
    if isinstance(value, str) and not compile_pattern(source).matches(value):
        yield jsonschema.ValidationError(f"{value[:60]!r} does not match {source[:60]!r}")


def _pattern_properties(validator: Any, parts: Mapping[str, Any], value: Any, _: Any) -> Errors:
    if isinstance(value, Mapping):
        for source, part in parts.items():
            for key in (key for key in value if compile_pattern(source).matches(key)):
                yield from validator.descend(value[key], part, path=key, schema_path=source)


def _additional_properties(validator: Any, part: Any, value: Any, schema: Mapping[str, Any]) -> Errors:
    if not isinstance(value, Mapping):
        return
    patterns = [compile_pattern(source) for source in schema.get("patternProperties", ())]
    declared = schema.get("properties", ())
    for key in value:
        if key in declared or any(p.matches(key) for p in patterns):
            continue
        if part is False:
            yield jsonschema.ValidationError(f"{key[:60]!r} is not one of its properties")
        elif isinstance(part, Mapping):
            yield from validator.descend(value[key], part, path=key)


def _unique_items(_: Any, unique: Any, value: Any, __: Any) -> Errors:
    if unique and isinstance(value, list | tuple) and len({equality_key(v) for v in value}) < len(value):
        yield jsonschema.ValidationError(f"{str(value)[:60]!r} has an item twice")


def _multiple_of(_: Any, step: float, value: Any, __: Any) -> Errors:
    if type(value) not in (int, float) or not math.isfinite(value):
        return
    # Compute exactly with decimals, because in jsonschema 0.3 is not a multiple of 0.1. Large floats are integers.
    exact = Fraction(value) if abs(value) >= LARGE else Fraction(str(value))
    if exact % Fraction(str(step)):
        yield jsonschema.ValidationError(f"{value} is not a multiple of {step}")


def constant_values(arm: Any) -> list[Any] | None:
    """Return the values of a schema that has only `enum` or `const` (and annotations); None for other schemas."""
    if not isinstance(arm, Mapping) or not set(arm) <= {"const", "enum", *ANNOTATIONS} or {"const", "enum"} <= set(arm):
        return None
    return [arm["const"]] if "const" in arm else arm.get("enum")


def equality_key(value: Any) -> str:
    """Return a text that is the same for values that are equal in JSON Schema, such as 1 and 1.0, but not 1 and
    true."""
    return json.dumps(_plain(value), sort_keys=True, default=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _is_integer(_: Any, value: Any) -> bool:
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    return whole and MIN_INTEGER <= value <= MAX_INTEGER


def _is_number(_: Any, value: Any) -> bool:
    # An integer that is too large for a float does not count as a number.
    return (isinstance(value, float) and math.isfinite(value)) or (type(value) is int and abs(value) < 2**1023)


_BASE = jsonschema.Draft202012Validator
_KEYWORDS: dict[str, Callable[..., Errors | None]] = {
    **_BASE.VALIDATORS,
    "enum": _enum,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
_TYPES = {"integer": _is_integer, "number": _is_number, "array": lambda _, value: isinstance(value, list | tuple)}
_VALIDATOR = jsonschema.validators.extend(
    _BASE,
    {name: _count_steps(keyword) for name, keyword in _KEYWORDS.items()},
    type_checker=_BASE.TYPE_CHECKER.redefine_many(_TYPES),
)


# -- patterns (regular expressions), matched in linear time -----------------------------------------------------------


MAX_LENGTH = 4096  # maximum number of characters of a pattern
ANY = "(?s:.*)"


MAX_REPEATS = 2**32 - 1  # the largest count in llguidance; no text has as many characters
_PIECE = re.compile(rf"\\.|{CLASS.pattern}|({REPEAT.pattern})", re.DOTALL)


def with_countable_repeats(source: str) -> str:
    """Return a pattern whose repetition counts are at most MAX_REPEATS, the largest count of the engine."""

    def counted(piece: re.Match[str]) -> str:
        return re.sub(r"\d+", lambda n: str(min(int(n[0]), MAX_REPEATS)), piece[0]) if piece[1] else piece[0]

    return _PIECE.sub(counted, source)


class PatternError(ValueError):
    """A pattern is not supported by llguidance, or takes too long to match."""


class Pattern:
    """A compiled regular expression."""

    def __init__(self, source: str) -> None:
        self._source = with_countable_repeats(source)
        self._grammar = f"start: %json {json.dumps({'type': 'string', 'pattern': self._source})}\n"
        self._machine = byte_matcher(self._grammar)

    @cached_property
    def _raw(self) -> Any | None:
        """Return a matcher for plain text instead of a JSON string, or None if llguidance does not support it. The
        matcher for JSON strings wrongly accepts quotes and backslashes that a class excludes."""
        body = self._source
        first, last = body.startswith("^"), bool(re.search(r"(?<!\\)(?:\\\\)*\$$", body))
        if "|" in body and (first or last):
            return None
        body = f"{ANY * (not first)}(?:{body[first : len(body) - last]}){ANY * (not last)}"
        try:
            return byte_matcher(llguidance().LLMatcher.grammar_from_regex(body))
        except PatternError:
            return None

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches somewhere in the text. Raises PatternError if matching takes too long.

        If the text has a quote or a backslash and `_raw` is None, return False.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            return False  # a lone surrogate
        if ('"' in text or "\\" in text) and (self._raw is None or not matches_text(self._raw, text)):
            return False
        written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        try:
            return matches_text(self._machine, written)
        except PatternError:
            # llguidance fails when its cache of states is full, so try again with an empty cache.
            self._machine = byte_matcher(self._grammar)
            return matches_text(self._machine, written)


# The newest compiled patterns by source. A pattern takes 70 kB to 1 MB, so keep at most those of one list of tools.
_patterns: dict[str, Pattern] = {}
_patterns_lock = threading.Lock()


def compile_pattern(source: str) -> Pattern:
    """Compile a pattern (cached). Raises PatternError."""
    if len(source) > MAX_LENGTH:
        raise PatternError(f"more than {MAX_LENGTH} characters")
    with _patterns_lock:
        pattern = _patterns.pop(source, None)
    pattern = pattern or Pattern(source)
    with _patterns_lock:
        _patterns[source] = pattern  # append it as the newest pattern
        while len(_patterns) > MAX_PATTERNS or sum(map(len, _patterns)) > MAX_PATTERN_ATOMS:
            del _patterns[next(iter(_patterns))]
    return pattern


def byte_matcher(grammar: str) -> Any:
    """Return a byte matcher for a grammar. Raises PatternError if the grammar is invalid, or no text matches it."""
    matcher = llguidance().LLMatcher(_byte_tokenizer(), grammar)
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8) if not matcher.is_error() else np.zeros(1, np.uint8)
    if matcher.is_error():
        raise PatternError(engine_error(matcher))
    if not bits.any() and not matcher.is_accepting():
        raise PatternError("no text matches it")
    return matcher


def matches_text(matcher: Any, text: str) -> bool:
    """Return whether a byte matcher accepts the whole text. Raises PatternError if matching takes too long."""
    ahead, encoded = matcher.deep_copy(), list(text.encode())
    consumed = ahead.try_consume_tokens(encoded)
    if ahead.is_error():
        raise PatternError(engine_error(ahead))
    return consumed == len(encoded) and bool(ahead.is_accepting())


def engine_error(matcher: Any) -> str:
    """Return the reason of a matcher's error, without the excerpts of the grammar that its message contains."""
    lines = [line.strip() for line in str(matcher.get_error()).splitlines() if line.strip()]
    first = lines[0].partition("compile JSON schema: ")
    # The message of a parse error comes after the excerpt.
    reason = next((line for line in lines if line.startswith("error: ")), first[2] or first[0])
    return reason.removeprefix("error: ")[:200]


@lru_cache(maxsize=1)
def _byte_tokenizer() -> Any:
    return llguidance().LLTokenizer("byte")


def llguidance() -> Any:
    """Import llguidance when it is first used, and return it."""
    return import_module("llguidance")
