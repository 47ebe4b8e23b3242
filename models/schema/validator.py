"""Validate values by a schema, as `jsonschema` reads draft 2020-12, at a bounded cost.

Patterns are matched by a linear engine (llguidance), steps are counted in decimals, numbers are finite, integers have
64 bits. `format` is ignored. No reference is fetched.
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

LEAST_INTEGER, MOST_INTEGER = -(2**63), 2**64 - 1  # what messages take
DATA = ("enum", "const", "default", "examples")
ABOUT = ("title", "description", "default", "examples", "x-group")  # says nothing of the values
BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
NOTHING: dict[str, Any] = {"not": {}}  # the schema that takes no value
LARGE = 2**53  # from which on floats are integers
MAX_STEPS = 200_000  # keywords, and entries of lists, that are looked at to judge one value
Errors = Iterator[jsonschema.ValidationError]


class Validator:
    """Validates values by one schema.

    Raises UserError (`where` names tool and parameter) for a pattern that cannot be matched in linear time.
    """

    def __init__(self, schema: Mapping[str, Any], where: str) -> None:
        check_patterns(schema, where)
        self._where = where
        self._judge = _JUDGE(_prepared(schema), registry=referencing.Registry())

    def fault(self, value: Any) -> str | None:
        """Return in a few words why a value is invalid; None for a valid one.

        Raises UserError for a reference without a target.
        """
        _spent.steps = 0
        try:
            error = next(self._judge.iter_errors(value), None)
        except (PatternError, _TooMuch) as limit:
            return f"it takes too long to check ({limit})"
        except (referencing.exceptions.Unresolvable, RecursionError) as lost:
            problem = f"{self._where}: its rules cannot be checked ({str(lost)[:120]})."
            raise UserError(problem, "Write them out.") from None
        if error is None:
            return None
        place = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in error.absolute_path)
        return f"{place.removeprefix('.')}: {error.message}"[:200].removeprefix(": ")

    def takes(self, value: Any) -> bool:
        """Return whether a value is valid. Raises UserError as `fault` does."""
        return self.fault(value) is None


def check_patterns(schema: Any, where: str) -> None:
    """Raise UserError for the first pattern of a schema, at any depth, that cannot be matched."""
    keywords = set[str]()
    for part in _parts(schema):
        keywords |= part.keys()
        for key in ("pattern", "patternProperties"):
            sources = part.get(key, ())
            for source in [sources] if isinstance(sources, str) else sources:
                try:
                    compiled(source)
                except PatternError as error:
                    problem = f"{where}: its {key} {source[:80]!r} cannot be searched for: {error}."
                    hint = "Write it with classes, groups, repetitions and anchors at its ends."
                    raise UserError(problem, hint) from None
    if {"unevaluatedProperties", "patternProperties"} <= keywords:
        problem = f"{where}: `unevaluatedProperties` together with `patternProperties` is not supported."
        raise UserError(problem, "Use `additionalProperties`, or name the properties.")


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all schemas within."""
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from _parts(part)
    elif isinstance(schema, Mapping):
        yield schema
        for key, value in schema.items():
            if key not in DATA:
                yield from _parts([*value.values()] if key in BY_NAME and isinstance(value, Mapping) else value)


class _Listed(list[Any]):
    """The values of an `enum` with an index for look-ups."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__(values)
        self.keys = frozenset(map(equal, self))


def _prepared(schema: Any) -> Any:
    """Return a schema whose constants are looked up, however many an enum or alternatives list."""
    if isinstance(schema, list | tuple):
        return [_prepared(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    prepared: dict[str, Any] = {}
    excluded: list[Any] = []
    for key, value in schema.items():
        if key in DATA:
            prepared[key] = _Listed(value) if key == "enum" else value
        elif key in BY_NAME and isinstance(value, Mapping):
            prepared[key] = {name: _prepared(part) for name, part in value.items()}
        elif key in ("anyOf", "oneOf") and isinstance(value, list | tuple):
            listed = {equal(v): v for arm in value for v in constants(arm) or ()}
            count = Counter(k for arm in value for k in {equal(v) for v in constants(arm) or ()})
            twice = [v for k, v in listed.items() if key == "oneOf" and count[k] > 1]
            prepared[key] = [{"enum": _Listed(listed.values())}] if listed else []
            prepared[key] += [_prepared(arm) for arm in value if constants(arm) is None]
            excluded += [{"not": {"enum": _Listed(twice)}}] if twice else []
        else:
            prepared[key] = _prepared(value)
    return {**prepared, "allOf": [*prepared.get("allOf", ()), *excluded]} if excluded else prepared


def _enum(_: Any, listed: list[Any], value: Any, __: Any) -> Errors:
    if equal(value) not in (listed.keys if isinstance(listed, _Listed) else {equal(v) for v in listed}):
        yield jsonschema.ValidationError(f"{str(value)[:60]!r} is not listed")


class _TooMuch(Exception):
    """A value takes more steps to validate than allowed."""


_spent = threading.local()  # `steps` of the value that this thread judges


def _counted(keyword: Callable[..., Errors | None]) -> Callable[..., Errors | None]:
    """Return a keyword's function that counts its steps."""

    def counted(validator: Any, part: Any, value: Any, schema: Any) -> Errors | None:
        _spent.steps += 1 + (len(part) if isinstance(part, list) and not isinstance(part, _Listed) else 0)
        if _spent.steps > MAX_STEPS:
            raise _TooMuch(f"more than {MAX_STEPS} steps")
        return keyword(validator, part, value, schema)

    return counted


def _pattern(_: Any, source: str, value: Any, __: Any) -> Errors:
    if isinstance(value, str) and not compiled(source).matches(value):
        yield jsonschema.ValidationError(f"{value[:60]!r} does not match {source[:60]!r}")


def _pattern_properties(validator: Any, parts: Mapping[str, Any], value: Any, _: Any) -> Errors:
    if isinstance(value, Mapping):
        for source, part in parts.items():
            for key in (key for key in value if compiled(source).matches(key)):
                yield from validator.descend(value[key], part, path=key, schema_path=source)


def _additional_properties(validator: Any, part: Any, value: Any, schema: Mapping[str, Any]) -> Errors:
    if not isinstance(value, Mapping):
        return
    patterns = [compiled(source) for source in schema.get("patternProperties", ())]
    declared = schema.get("properties", ())
    for key in value:
        if key in declared or any(p.matches(key) for p in patterns):
            continue
        if part is False:
            yield jsonschema.ValidationError(f"{key[:60]!r} is none of its properties")
        elif isinstance(part, Mapping):
            yield from validator.descend(value[key], part, path=key)


def _unique_items(_: Any, unique: Any, value: Any, __: Any) -> Errors:
    if unique and isinstance(value, list | tuple) and len({equal(v) for v in value}) < len(value):
        yield jsonschema.ValidationError(f"{str(value)[:60]!r} has an item twice")


def _multiple_of(_: Any, step: float, value: Any, __: Any) -> Errors:
    if type(value) not in (int, float) or not math.isfinite(value):
        return
    # In decimals: jsonschema says that 0.3 is not a multiple of 0.1. A large float has none: it is an integer.
    exact = Fraction(value) if abs(value) >= LARGE else Fraction(str(value))
    if exact % Fraction(str(step)):
        yield jsonschema.ValidationError(f"{value} is not a multiple of {step}")


def constants(arm: Any) -> list[Any] | None:
    """Return the values of an alternative that lists them and has no other rule, else None."""
    if not isinstance(arm, Mapping) or not set(arm) <= {"const", "enum", *ABOUT} or {"const", "enum"} <= set(arm):
        return None
    return [arm["const"]] if "const" in arm else arm.get("enum")


def equal(value: Any) -> str:
    """Return the same text for values that JSON schema calls equal: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True, default=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _is_integer(_: Any, value: Any) -> bool:
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    return whole and LEAST_INTEGER <= value <= MOST_INTEGER


def _is_number(_: Any, value: Any) -> bool:
    # Of an integer without end no float can be made.
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
_JUDGE = jsonschema.validators.extend(
    _BASE,
    {name: _counted(keyword) for name, keyword in _KEYWORDS.items()},
    type_checker=_BASE.TYPE_CHECKER.redefine_many(_TYPES),
)


# Search for a schema's `pattern` in linear time.


MAX_LENGTH = 4096  # characters of a pattern
ANY = "(?s:.*)"


class PatternError(ValueError):
    """A pattern that the engine refuses, or that takes it too long."""


class Pattern:
    """A compiled pattern."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._grammar = f"start: %json {json.dumps({'type': 'string', 'pattern': source})}\n"
        self._machine = byte_matcher(self._grammar)

    @cached_property
    def _raw(self) -> Any | None:
        """Return a matcher of the raw text; None where the engine has none for this pattern.

        In JSON the engine accepts quotes and backslashes that a class excludes.
        """
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
        """Return whether the pattern occurs in the text. Raises PatternError where the engine gives up.

        For a text with a quote or a backslash it returns False where the engine cannot tell.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            return False  # a lone surrogate
        if ('"' in text or "\\" in text) and (self._raw is None or not accepts(self._raw, text)):
            return False
        written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        try:
            return accepts(self._machine, written)
        except PatternError:
            # The engine keeps the states that it has met, up to a limit: once more from an empty memory.
            self._machine = byte_matcher(self._grammar)
            return accepts(self._machine, written)


@lru_cache(maxsize=4096)
def compiled(source: str) -> Pattern:
    """Compile a pattern. Raises PatternError."""
    if len(source) > MAX_LENGTH:
        raise PatternError(f"more than {MAX_LENGTH} characters")
    return Pattern(source)


def byte_matcher(grammar: str) -> Any:
    """Return a matcher of bytes for a grammar. Raises PatternError for a grammar that is wrong or takes no text."""
    matcher = llguidance().LLMatcher(_byte_tokenizer(), grammar)
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8) if not matcher.is_error() else np.zeros(1, np.uint8)
    if matcher.is_error():
        raise PatternError(_reason(matcher))
    if not bits.any() and not matcher.is_accepting():
        raise PatternError("no text matches it")
    return matcher


def accepts(matcher: Any, text: str) -> bool:
    """Return whether a matcher of bytes accepts a whole text. Raises PatternError where the engine gives up."""
    ahead, given = matcher.deep_copy(), list(text.encode())
    taken = ahead.try_consume_tokens(given)
    if ahead.is_error():
        raise PatternError(_reason(ahead))
    return taken == len(given) and bool(ahead.is_accepting())


def _reason(matcher: Any) -> str:
    """Return the engine's reason against a grammar, without its excerpt."""
    lines = [line.strip() for line in str(matcher.get_error()).splitlines() if line.strip()]
    first = lines[0].partition("compile JSON schema: ")
    # A parse error of the engine's own stands behind its excerpt.
    reason = next((line for line in lines if line.startswith("error: ")), first[2] or first[0])
    return reason.removeprefix("error: ")[:160]


@lru_cache(maxsize=1)
def _byte_tokenizer() -> Any:
    return llguidance().LLTokenizer("byte")


def llguidance() -> Any:
    """Import the library on first use and return it."""
    return import_module("llguidance")
