"""Define domains (the legal values of a parameter), and the text that the model writes for a value.

A *closed* domain lists its values, so the decoder can compile them to a token trie. A *free* domain has too many values
to list, such as strings and unbounded numbers. They are decoded token by token under a grammar.
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
from rtcontrol.models.schema.numbers import NumberGrid, number_grid
from rtcontrol.models.schema.validator import MAX_INTEGER, MIN_INTEGER, Validator

MAX_CLOSED = 4096


@dataclass(frozen=True)
class ClosedDomain:
    """A domain that lists all legal values. `texts[i]` is the text that the model writes for `values[i]`. `grid` is set
    if the values are numbers with a constant step."""

    values: tuple[Any, ...]
    texts: tuple[str, ...]
    grid: NumberGrid | None = field(default=None, compare=False)

    def contains(self, value: Any) -> bool:
        """Return whether `value` is in the list. 1 is accepted for 1.0, but not 1.0 for 1."""
        whole = type(value) is int
        return any(is_same(value, v) or (whole and type(v) is float and v == value) for v in self.values)


@dataclass(frozen=True)
class FreeDomain:
    """A domain whose values are not listed. The normalised JSON `schema` is used for decoding and types. A complete
    value must satisfy the schema `rules` (None: `schema`), which may be stricter. `grid` is set if the values are more
    than `MAX_CLOSED` numbers with a constant step."""

    schema: Mapping[str, Any]
    grid: NumberGrid | None = None
    rules: Mapping[str, Any] | None = None

    @property
    def is_string(self) -> bool:
        return self.schema.get("type") == "string"

    @cached_property
    def validator(self) -> Validator:
        """Return a validator for complete values."""
        return Validator(self.schema if self.rules is None else self.rules, "a value that is not listed")


Domain = ClosedDomain | FreeDomain
_LEFT_OUT = object()
# Keywords that a number may violate although it is on its parameter's grid.
NOT_ON_GRID = {"anyOf", "allOf", "not", "if"}


def value_text(value: Any) -> str:
    """Return the text that the model writes for a value: a string unchanged, any other value as compact JSON."""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any, space: str = "") -> str:
    """Return a value as JSON, with `space` after separators. Numbers have no exponent, and zero has no sign."""
    if isinstance(value, float):
        text = f"{Decimal(json.dumps(value + 0.0, allow_nan=False)):f}"
        return text if "." in text else f"{text}.0"
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(k, ensure_ascii=False)}:{space}{json_text(v, space)}" for k, v in value.items())
        return f"{{{f',{space}'.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{f',{space}'.join(json_text(v, space) for v in value)}]"
    return json.dumps(value, ensure_ascii=False)


def is_same(a: Any, b: Any) -> bool:
    """Return whether two values are equal and have the same type: `1`, `1.0` and `True` differ."""
    return type(a) is type(b) and a == b and (not isinstance(a, list | dict) or sorted_json(a) == sorted_json(b))


def sorted_json(value: Any) -> str:
    """Return a value as JSON with sorted keys, to compare values."""
    return json.dumps(value, sort_keys=True, default=repr)


@lru_cache(maxsize=64)
def _grid_domain(grid: NumberGrid) -> ClosedDomain:
    """Return the closed domain of a grid's numbers (cached)."""
    return ClosedDomain(grid.values(), grid.texts(), grid)


def domain_of(schema: Mapping[str, Any], where: str) -> Domain:
    """Return the domain of a normalised JSON schema; `where` names tool and parameter in errors. A closed domain may
    contain values that violate keywords such as `not`; `parameters.allowed_values` removes them.

    Raises UserError for a schema that cannot be decoded.
    """
    kind = schema.get("type")
    for min_key, max_key in (("minLength", "maxLength"), ("minItems", "maxItems")):
        if schema.get(min_key, 0) > schema.get(max_key, math.inf):
            raise UserError(f"{where}: {min_key} {schema[min_key]} exceeds {max_key} {schema[max_key]}.", "Swap them.")
    if "enum" in schema:
        if not schema["enum"]:
            raise UserError(f"{where}: its enum is empty.", "List at least one value.")
        return closed_domain(tuple(schema["enum"]), where, kind == "number")
    if "anyOf" in schema and (listed := _list_alternatives(schema, where)) is not None:
        return closed_domain(tuple(listed), where, kind == "number")
    if kind == "boolean":
        return ClosedDomain((False, True), ("false", "true"))
    if kind == "null":
        return ClosedDomain((None,), ("null",))
    if kind in ("integer", "number"):
        grid = number_grid(schema, where)
        if grid is not None and grid.count <= MAX_CLOSED:
            return _grid_domain(grid)
        return FreeDomain(schema, None if set(schema) & NOT_ON_GRID else grid)
    if kind not in ("array", "object") or "anyOf" in schema:
        return FreeDomain(schema)
    values = (_list_whole_objects if kind == "object" else _list_arrays)(schema, where)
    return FreeDomain(schema) if values is None else closed_domain(tuple(values), where)


def listed_values(schema: Mapping[str, Any], where: str) -> Sequence[Any] | None:
    """Return all values of a subschema, or None if they cannot be listed."""
    if not set(schema) & {"enum", "type", "anyOf"}:
        return None  # any value is legal
    domain = domain_of(schema, where)
    return domain.values if isinstance(domain, ClosedDomain) else None


def _list_alternatives(schema: Mapping[str, Any], where: str) -> list[Any] | None:
    values: dict[str, Any] = {}
    for arm in schema["anyOf"]:
        listed = listed_values(arm, where)
        if listed is None:
            return None
        values |= {sorted_json(v): v for v in listed}
        if len(values) > MAX_CLOSED:
            return None
    return list(values.values())


def _list_whole_objects(schema: Mapping[str, Any], where: str) -> list[Any] | None:
    """Return all objects that satisfy a schema, with keys in declared order, or None if they cannot be listed."""
    properties = schema.get("properties", {})
    if any("properties" in part or "anyOf" in part for part in schema.get("allOf", ())):
        return None
    if schema.get("additionalProperties", not properties) is not False or "patternProperties" in schema:
        return None
    choices: dict[str, Sequence[Any]] = {}
    for name, part in properties.items():
        values = listed_values(part, f"{where}.{name}")
        if values is None or math.prod(map(len, choices.values())) > MAX_CLOSED:
            return None
        choices[name] = values
    return list_objects(choices, schema.get("required", ()))


def list_objects(listed: Mapping[str, Sequence[Any] | None], required: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return all objects whose keys have these `listed` values; None if a key has no list, or there are too many."""
    options = [
        [*values, *(() if k in required else (_LEFT_OUT,))] for k, values in listed.items() if values is not None
    ]
    if len(options) < len(listed) or math.prod(map(len, options)) > MAX_CLOSED:
        return None
    rows = itertools.product(*options)
    return [{k: v for k, v in zip(listed, row, strict=True) if v is not _LEFT_OUT} for row in rows]


def _list_arrays(schema: Mapping[str, Any], where: str) -> list[Any] | None:
    """Return all arrays that satisfy a schema, shorter arrays first; None if they cannot be listed."""
    first = [listed_values(part, where) for part in schema.get("prefixItems", ())]
    rest = schema.get("items", True)
    min_items, max_items = schema.get("minItems", 0), schema.get("maxItems", len(first) if rest is False else None)
    if max_items is None or max_items > MAX_CLOSED:
        return None
    other = listed_values(rest, where) if isinstance(rest, Mapping) and max_items > len(first) else None
    parts = [*first, *[other] * (max_items - len(first))][:max_items]
    values: list[Any] = []
    for length in range(min_items, max_items + 1):
        options = parts[:length]
        if any(o is None for o in options) or len(values) + math.prod(len(o) for o in options if o) > MAX_CLOSED:
            return None
        values += map(list, itertools.product(*(o for o in options if o is not None)))
    unique = schema.get("uniqueItems")
    return [v for v in values if not unique or not any(is_same(a, b) for a, b in itertools.combinations(v, 2))]


def closed_domain(values: tuple[Any, ...], where: str, numbers: bool = False) -> ClosedDomain:
    """Return the closed domain of these values without duplicates. If a string has the text of another value (true and
    "true"), all strings are written as JSON. With `numbers`, integers become floats, but keep their texts. Raises
    UserError if a value cannot be written as JSON."""
    if large := [v for v in values if isinstance(v, int) and not MIN_INTEGER <= v <= MAX_INTEGER]:
        raise UserError(f"{where}: {large[0]} does not fit in 64 bits.", "Use smaller numbers, or strings.")
    if not values:
        raise UserError(f"{where}: no value satisfies its schema.", "Relax the schema.")
    try:
        texts = [value_text(v) for v in values]
    except (TypeError, ValueError):  # a value is not JSON, or not finite
        raise UserError(
            f"{where}: not all of its values can be written as JSON: {values!r}.",
            "Use strings, finite numbers, booleans, or lists and objects of these.",
        ) from None
    strings = {v for v in values if isinstance(v, str)}
    if any(text in strings and not isinstance(v, str) for v, text in zip(values, texts, strict=True)):
        texts = [json_text(v) for v in values]
    by_text: dict[str, Any] = {}
    for value, text in zip(values, texts, strict=True):
        by_text.setdefault(text, float(value) if numbers and type(value) is int else value)
    return ClosedDomain(tuple(by_text.values()), tuple(by_text))
