"""The legal values of a parameter, and how the model writes a value.

A *closed* domain lists its values, so that the decoder can make a token trie of them. A *free* domain (an unbounded
number, a free string, an object or array with such parts, or more values than `MAX_CLOSED`) is decoded token by token
under a grammar.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.numbers import NumberGrid, grid_of
from rtcontrol.models.schema.validator import LEAST_INTEGER, MOST_INTEGER, Validator

MAX_CLOSED = 4096


@dataclass(frozen=True)
class ClosedDomain:
    """A finite list of typed values; `texts[i]` is how the model writes `values[i]`. `grid` is set if they are numbers
    of a grid."""

    values: tuple[Any, ...]
    texts: tuple[str, ...]
    grid: NumberGrid | None = field(default=None, compare=False)

    def holds(self, value: Any) -> bool:
        """Return whether `value` is one of these; 1 is accepted for 1.0, not the other way round."""
        whole = type(value) is int
        return any(same(value, v) or (whole and type(v) is float and v == value) for v in self.values)


@dataclass(frozen=True)
class Free:
    """Values that are not listed; `schema` is the normalised JSON schema for decoding and typing. `grid` is set for
    more than `MAX_CLOSED` numbers of a grid. A complete value must satisfy `rules` (None: the schema), which may be
    stricter than a normalised schema."""

    schema: Mapping[str, Any]
    grid: NumberGrid | None = None
    rules: Mapping[str, Any] | None = None

    @property
    def is_string(self) -> bool:
        return self.schema.get("type") == "string"

    @cached_property
    def judge(self) -> Validator:
        """Return the validator of the rules."""
        return Validator(self.schema if self.rules is None else self.rules, "a value that is not listed")


Domain = ClosedDomain | Free
_LEFT_OUT = object()
# Rules that numbers counted on a grid do not keep.
UNCOUNTED = {"anyOf", "allOf", "not", "if"}


def value_text(value: Any) -> str:
    """Return a value as the model writes it: strings raw, everything else as compact JSON (design, section 3)."""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any, space: str = "") -> str:
    """Return a value as JSON, compact unless `space` follows its separators; numbers have no exponent and no minus
    zero."""
    if isinstance(value, float):
        text = f"{Decimal(json.dumps(value + 0.0, allow_nan=False)):f}"
        return text if "." in text else f"{text}.0"
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(k, ensure_ascii=False)}:{space}{json_text(v, space)}" for k, v in value.items())
        return f"{{{f',{space}'.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{f',{space}'.join(json_text(v, space) for v in value)}]"
    return json.dumps(value, ensure_ascii=False)


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, where `1`, `1.0` and `True` differ."""
    return type(a) is type(b) and a == b and (not isinstance(a, list | dict) or written(a) == written(b))


def written(value: Any) -> str:
    """Return a text that is equal for equal values, whatever the order of keys."""
    return json.dumps(value, sort_keys=True, default=repr)


@lru_cache(maxsize=64)
def _numbers(grid: NumberGrid) -> ClosedDomain:
    """Return the listed numbers of a grid, cached."""
    return ClosedDomain(grid.values(), grid.texts(), grid)


def domain_of(schema: Mapping[str, Any], where: str) -> Domain:
    """Return the domain of a normalised JSON schema; `where` names tool and parameter in errors. Rules over whole
    values (`not`, `contains`, ...) are not applied to the list here: see `rules.kept_values`.

    Raises UserError for a schema that cannot be decoded, with what to write instead.
    """
    kind = schema.get("type")
    for least, most in (("minLength", "maxLength"), ("minItems", "maxItems")):
        if schema.get(least, 0) > schema.get(most, math.inf):
            raise UserError(f"{where}: {least} {schema[least]} is above {most} {schema[most]}.", "Swap them.")
    if "enum" in schema:
        if not schema["enum"]:
            raise UserError(f"{where}: an empty enum.", "List at least one value.")
        return closed(tuple(schema["enum"]), where, kind == "number")
    if "anyOf" in schema and (listed := _alternatives(schema, where)) is not None:
        return closed(tuple(listed), where, kind == "number")
    if kind == "boolean":
        return ClosedDomain((False, True), ("false", "true"))
    if kind == "null":
        return ClosedDomain((None,), ("null",))
    if kind in ("integer", "number"):
        grid = grid_of(schema, where)
        if grid is not None and grid.count <= MAX_CLOSED:
            return _numbers(grid)
        return Free(schema, None if set(schema) & UNCOUNTED else grid)
    if kind not in ("array", "object") or "anyOf" in schema:
        return Free(schema)
    values = (_objects if kind == "object" else _arrays)(schema, where)
    return Free(schema) if values is None else closed(tuple(values), where)


def _listed(schema: Mapping[str, Any], where: str) -> Sequence[Any] | None:
    """Return the values of a part of a value, or None where they are not listed."""
    if not set(schema) & {"enum", "type", "anyOf"}:
        return None  # anything
    domain = domain_of(schema, where)
    return domain.values if isinstance(domain, ClosedDomain) else None


def _alternatives(schema: Mapping[str, Any], where: str) -> list[Any] | None:
    values: dict[str, Any] = {}
    for arm in schema["anyOf"]:
        listed = _listed(arm, where)
        if listed is None:
            return None
        values |= {written(v): v for v in listed}
        if len(values) > MAX_CLOSED:
            return None
    return list(values.values())


def _objects(schema: Mapping[str, Any], where: str) -> list[Any] | None:
    """Return all objects, with keys in declared order."""
    properties = schema.get("properties", {})
    if any("properties" in part or "anyOf" in part for part in schema.get("allOf", ())):
        return None
    if schema.get("additionalProperties", not properties) is not False or "patternProperties" in schema:
        return None
    choices: dict[str, Sequence[Any]] = {}
    for name, part in properties.items():
        values = _listed(part, f"{where}.{name}")
        if values is None or math.prod(map(len, choices.values())) > MAX_CLOSED:
            return None  # what stands behind it is the grammar's
        choices[name] = values
    return objects(choices, schema.get("required", ()))


def objects(listed: Mapping[str, Sequence[Any] | None], required: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return all objects with these values by key; None where some are not listed, or the product is too large."""
    options = [
        [*values, *(() if k in required else (_LEFT_OUT,))] for k, values in listed.items() if values is not None
    ]
    if len(options) < len(listed) or math.prod(map(len, options)) > MAX_CLOSED:
        return None
    rows = itertools.product(*options)
    return [{k: v for k, v in zip(listed, row, strict=True) if v is not _LEFT_OUT} for row in rows]


def _arrays(schema: Mapping[str, Any], where: str) -> list[Any] | None:
    """Return all arrays, the shortest first."""
    first = [_listed(part, where) for part in schema.get("prefixItems", ())]
    rest = schema.get("items", True)
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(first) if rest is False else None)
    if most is None or most > MAX_CLOSED:
        return None
    other = _listed(rest, where) if isinstance(rest, Mapping) and most > len(first) else None
    parts = [*first, *[other] * (most - len(first))][:most]
    values: list[Any] = []
    for length in range(least, most + 1):
        options = parts[:length]
        if any(o is None for o in options) or len(values) + math.prod(len(o) for o in options if o) > MAX_CLOSED:
            return None
        values += map(list, itertools.product(*(o for o in options if o is not None)))
    unique = schema.get("uniqueItems")
    return [v for v in values if not unique or not any(same(a, b) for a, b in itertools.combinations(v, 2))]


def closed(values: tuple[Any, ...], where: str, numbers: bool = False) -> ClosedDomain:
    """Return a closed domain of exactly these values. Raises UserError for two that are written alike. With `numbers`
    an integer becomes a float, written as given."""
    if large := [v for v in values if isinstance(v, int) and not LEAST_INTEGER <= v <= MOST_INTEGER]:
        raise UserError(f"{where}: {large[0]} does not fit 64 bits.", "Use smaller numbers, or strings.")
    try:
        texts = tuple(value_text(v) for v in values)
    except (TypeError, ValueError):  # not JSON, or not finite
        raise UserError(
            f"{where}: not all of its values can be written as JSON: {values!r}.",
            "Use strings, finite numbers, booleans, or lists and objects of these.",
        ) from None
    if numbers:
        values = tuple(float(v) if type(v) is int else v for v in values)
    if not values:
        raise UserError(f"{where}: no value satisfies its schema.", "Loosen its rules.")
    by_text: dict[str, Any] = {}
    for value, text in zip(values, texts, strict=True):
        if text in by_text:
            raise UserError(
                f"{where}: the values {by_text[text]!r} and {value!r} are both written {text!r}.",
                "Remove one of them, or give them different names.",
            )
        by_text[text] = value
    return ClosedDomain(values, texts)
