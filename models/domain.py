"""The legal values of a parameter, and how a value is written as text.

A *closed* domain lists its values, so the decoder can build a token trie of them; a *free* domain (an unbounded
number, a free string, a nested object, or more values than `MAX_CLOSED`) is decoded token by token under a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rtcontrol.models.errors import UserError

MAX_CLOSED = 4096
EXACT = 10**20  # steps up to which decimal division is exact; bounds beyond are left to the grammar


@dataclass(frozen=True)
class ClosedDomain:
    """Finitely many typed values; `texts[i]` is how the model writes `values[i]`."""

    values: tuple[Any, ...]
    texts: tuple[str, ...]

    def holds(self, value: Any) -> bool:
        """Whether `value` is one of these; 1 means 1.0 where that is one, never the other way round."""
        if type(value) is int and any(type(v) is float and v == value for v in self.values):
            return True
        return any(same(value, v) for v in self.values)


@dataclass(frozen=True)
class Free:
    """Values that are not listed; `schema` is the JSON schema that a parsed value must satisfy."""

    schema: Mapping[str, Any]

    @property
    def is_string(self) -> bool:
        return self.schema.get("type") == "string"


Domain = ClosedDomain | Free


def number_text(value: Decimal, digits: int) -> str:
    """`value` with `digits` decimals: no exponent, no minus zero."""
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def decimals(value: Decimal) -> int:
    """Digits after the point that `value` needs."""
    return max(0, -int(value.normalize().as_tuple().exponent))


def value_text(value: Any) -> str:
    """A value as the model writes it: strings raw, everything else compact JSON (design, section 3)."""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    if isinstance(value, float):
        number = Decimal(repr(value))
        return number_text(number, max(1, decimals(number)))
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{json.dumps(k, ensure_ascii=False)}:{_json(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_json, value))}]"
    return json.dumps(value, ensure_ascii=False)


def same(a: Any, b: Any) -> bool:
    """Equality that keeps `1`, `1.0` and `True` apart."""
    if type(a) is not type(b) or a != b:
        return False
    return not isinstance(a, list | dict) or json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def _grid(schema: Mapping[str, Any], where: str) -> ClosedDomain | None:
    """The listed values of a bounded integer, or of a bounded number with a step; None when there is no such list."""
    integer = schema["type"] == "integer"
    low, high, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf", 1 if integer else None)
    if low is None or high is None or step is None:
        return None
    lo, hi, by = Decimal(str(low)), Decimal(str(high)), Decimal(str(step))
    if not (lo.is_finite() and hi.is_finite() and by.is_finite()):
        raise UserError(f"{where}: bounds {low} to {high} in steps of {step}.", "Give finite numbers.")
    if by > 0 and max(abs(lo), abs(hi)) / by > EXACT:
        return None
    if by <= 0:
        raise UserError(f"{where}: the step {step} is not positive.", "Give a step greater than zero.")
    if lo > hi:
        raise UserError(f"{where}: minimum {low} is above maximum {high}.", "Swap them.")
    if integer and (lo % 1 or by % 1):
        raise UserError(f"{where}: an integer with minimum {low} and step {step}.", "Use whole numbers, or a number.")
    if lo % by:
        raise UserError(
            f"{where}: minimum {low} is not a multiple of the step {step}.",
            f"Start at {lo // by * by} or choose another step (JSON schema's multipleOf counts from zero).",
        )
    count = int((hi - lo) / by) + 1
    if count > MAX_CLOSED:
        return None
    numbers = [lo + i * by for i in range(count)]
    digits = max(decimals(by), decimals(lo))
    if integer:
        return ClosedDomain(tuple(int(n) for n in numbers), tuple(number_text(n, 0) for n in numbers))
    return ClosedDomain(tuple(float(n) + 0.0 for n in numbers), tuple(number_text(n, max(1, digits)) for n in numbers))


def domain_of(schema: Mapping[str, Any], where: str) -> Domain:
    """The domain of a JSON schema; `where` names tool and parameter for the error.

    Raises UserError for a definition that cannot be decoded, with what to write instead.
    """
    if "const" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    if "enum" in schema:
        values = tuple(schema["enum"])
        if not values:
            raise UserError(f"{where}: an empty enum.", "List at least one value.")
        return closed(values, where, schema.get("type") == "number")
    kind = schema.get("type")
    if kind == "boolean":
        return ClosedDomain((False, True), ("false", "true"))
    if kind in ("integer", "number"):
        return _grid(schema, where) or Free(schema)
    if kind in ("string", "array", "object"):
        return Free(schema)
    if any(key in schema for key in ("anyOf", "oneOf", "$ref", "allOf")):
        return Free(schema)
    raise UserError(
        f"{where}: the type {kind!r} has no schema that can be decoded.",
        "Use string, integer, number, boolean, array, object or an enum.",
    )


def closed(values: tuple[Any, ...], where: str, numbers: bool = False) -> ClosedDomain:
    """A closed domain of exactly these values; two that are written alike are refused. With `numbers` an integer among
    them is a float, written as it was given."""
    if large := [v for v in values if isinstance(v, int) and not -(2**63) <= v < 2**63]:
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
    seen: dict[str, Any] = {}
    for value, text in zip(values, texts, strict=True):
        if text in seen:
            raise UserError(
                f"{where}: the values {seen[text]!r} and {value!r} are both written {text!r}.",
                "Remove one of them, or give them different names.",
            )
        seen[text] = value
    return ClosedDomain(values, texts)
