"""The mask of a free value: its schema as llguidance enforces it, and the keywords that it does not enforce.

A complete value is validated by its whole schema; keywords that the mask leaves out are validated, not enforced. Values
have the model's form: compact JSON, keys in declared order, numbers without exponent. Objects with `properties` have no
others unless the schema allows them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from math import lcm
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import Free, json_text
from rtcontrol.models.schema.numbers import range_of
from rtcontrol.models.schema.references import RULES
from rtcontrol.models.schema.validator import BY_NAME, DATA, PatternError, byte_matcher

FAR = 2**62  # a bound where a number has none: with one it has no exponent, and it is one that the library takes
EXACT = 2**53  # up to which the library takes bounds, and steps of floating-point numbers, exactly
LARGEST_STEP, PLACES = 10_000, 6  # of steps: the library makes so many states of one
# What the library enforces, besides what is written out below.
ENFORCED = {
    *("type", "minLength", "maxLength", "pattern", "format", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "required"),
}
# Of an object that may have more properties than are declared.
OPEN = {"additionalProperties", "patternProperties"}
# Restrict values, and are left to the check.
CHECKED = {
    *("not", "if", "dependentRequired", "dependentSchemas", "contains", "uniqueItems", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems", "minProperties", "maxProperties"),
}
FORMATS = {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
# What is left out, one after another, until the library takes the rest.
LOOSER: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset(["format"]),
    frozenset(["format", "patternProperties", *BOUNDS, "multipleOf"]),
    frozenset(["format", "patternProperties", *BOUNDS, "multipleOf", "pattern", "minItems", "maxItems"]),
)
# Parts of a schema that are read.
PARTS = ("items", "additionalProperties", "prefixItems", "allOf", "anyOf", "properties", "patternProperties")
# A value without a type: its numbers have no exponent either.
ANYTHING = {"$ref": "#/$defs/any"}
ANY = {
    "anyOf": [
        {"type": ["string", "boolean", "null"]},
        {"type": "number", "minimum": -FAR, "maximum": FAR},
        {"type": "array", "items": ANYTHING},
        {"type": "object", "additionalProperties": ANYTHING},
    ]
}
OPTIONS = {"whitespace_flexible": False, "coerce_one_of": True, "lenient": True}


@dataclass(frozen=True)
class Mask:
    """llguidance's grammar of a value, and the keywords that are validated, not enforced."""

    grammar: str
    checked: tuple[str, ...]


def mask_of(domain: Free, where: str, space: str = "") -> Mask:
    """Return the mask of a free domain. `space` precedes JSON values and follows their separators.

    Raises UserError (`where` names tool and parameter) for a schema without values, or one that is too large.
    """
    try:
        return _mask(json.dumps([domain.schema, domain.rules], default=repr), where, space)
    except RecursionError:
        problem = f"{where}: its schema has too many properties, or too many levels."
        raise UserError(problem, "Describe a smaller value.") from None


@lru_cache(maxsize=256)
def _mask(written: str, where: str, space: str) -> Mask:
    schema, rules = json.loads(written)
    options = OPTIONS | {"key_separator": f":{space}", "item_separator": f",{space}"}
    reason = ""
    for level in LOOSER:
        reader = _Masked(level)
        masked = reader.read(schema)
        if masked is False:
            raise UserError(f"{where}: no value satisfies its schema.", "Loosen its rules.")
        masked = {**(masked if isinstance(masked, dict) else {}), "$defs": {"any": ANY}, "x-guidance": options}
        grammar = f"start: {json.dumps(space) if space else ''} %json {json.dumps(masked)}\n"
        try:
            byte_matcher(grammar)
        except PatternError as error:
            reason = str(error)
            if level and reason.startswith("Unsatisfiable"):
                raise UserError(f"{where}: no value satisfies its schema.", "Loosen its rules.") from None
            continue
        exactly_one = [key for key in keywords(rules) if key == "oneOf"]
        return Mask(grammar, tuple(dict.fromkeys([*exactly_one, *reader.left_out])))
    raise UserError(
        f"{where}: its schema cannot be decoded ({reason}).",
        "Use a plain type, bounds or an enum, or shorter patterns.",
    )


def keywords(schema: Any) -> Iterator[str]:
    """Yield the keywords of a schema, and of its parts, that restrict values."""
    if isinstance(schema, list):
        for part in schema:
            yield from keywords(part)
    elif isinstance(schema, Mapping):
        yield from (key for key in schema if key in RULES)
        for key, part in schema.items():
            if key not in DATA and key not in CHECKED:
                yield from keywords([*part.values()] if key in BY_NAME and isinstance(part, Mapping) else part)


class _Masked:
    """Translates a normalised schema without the keywords `without`; `left_out` collects those that it drops itself."""

    def __init__(self, without: frozenset[str]) -> None:
        self._without = without
        self.left_out: dict[str, None] = {}

    def read(self, schema: Any, outer: Iterable[str] | None = ()) -> dict[str, Any] | bool:
        """Return a part in llguidance's terms; False where it has no value.

        An object has its own properties and the `outer` ones (None: it is a part of another schema, and may have any).
        """
        if not isinstance(schema, Mapping):
            return dict(ANYTHING) if schema else False
        if schema.get("not") == {}:
            return False
        if "enum" in schema:
            return self._listed(schema)
        if not schema.keys() & {*ENFORCED, *CHECKED, *PARTS}:
            return dict(ANYTHING)
        parts = [schema, *(part for part in schema.get("allOf", ()) if isinstance(part, Mapping))]
        names = {name for part in parts for name in part.get("properties", ())}
        named = any("properties" in arm for part in parts for arm in part.get("anyOf", ()))
        inner = None if outer is None else {*outer, *names}
        masked = {key: self._keyword(key, value, inner) for key, value in schema.items()}
        masked = {key: value for key, value in masked.items() if value is not None}
        if masked.get("anyOf") == []:
            return False
        if names and outer is not None and not named and not any(part.keys() & OPEN for part in parts):
            more = sorted({*outer, *names, *schema.get("required", ())} - masked.get("properties", {}).keys())
            masked["properties"] = masked.get("properties", {}) | dict.fromkeys(more, True)
            masked["additionalProperties"] = False
        if masked.get("type") == "array":
            masked.setdefault("items", dict(ANYTHING))
        elif masked.get("type") == "object" and outer is not None and "anyOf" not in masked:
            masked.setdefault("additionalProperties", dict(ANYTHING))
        return self._bounded(masked) if masked.get("type") in ("integer", "number") else masked

    def _keyword(self, key: str, value: Any, outer: Iterable[str] | None) -> Any:
        """Return the value of a keyword in llguidance's terms; None where it is left out."""
        if key in self._without or key in CHECKED:
            self.left_out[key] = None
        elif key in ("items", "additionalProperties"):
            return self.read(value)
        elif key == "prefixItems":
            return [self.read(part) for part in value]
        elif key == "allOf":
            return [self.read(part, None) for part in value]
        elif key == "anyOf":
            return [arm for arm in (self.read(part, outer) for part in value) if arm is not False]
        elif key in ("properties", "patternProperties"):
            return {name: self.read(part) for name, part in value.items()}
        elif key in ENFORCED and (key != "format" or value in FORMATS):
            return value
        return None

    def _listed(self, schema: Mapping[str, Any]) -> dict[str, Any] | bool:
        """Return listed values; for numbers that llguidance writes differently, their type alone."""
        values = schema["enum"]
        if schema.get("type") == "number":
            values = [float(v) for v in values if isinstance(v, int | float)]
        if all(_alike(v) for v in values):
            return {"enum": [*values]} if values else False
        self.left_out["enum"] = None
        alike = [{"enum": names}] if (names := [v for v in values if _alike(v)]) else []
        kinds = {_kind(v): None for v in values if not _alike(v)}
        return {"anyOf": [*alike, *(self.read({"type": kind}) for kind in kinds)]}

    def _bounded(self, masked: dict[str, Any]) -> dict[str, Any] | bool:
        """Return numbers with the bounds and steps that llguidance enforces exactly; False where there are none."""
        numbers = range_of(masked)
        if numbers.low > numbers.high:  # within the bounds and 64 bits
            return False
        for key in BOUNDS:
            if key in masked and not abs(masked[key]) <= EXACT:
                self.left_out[key] = None
                del masked[key]
        far = EXACT if "multipleOf" in masked and masked["type"] == "number" else FAR
        if masked.keys().isdisjoint(("minimum", "exclusiveMinimum")):
            masked["minimum"] = -far
        if masked.keys().isdisjoint(("maximum", "exclusiveMaximum")):
            masked["maximum"] = far
        if "multipleOf" not in masked:
            return masked
        places = max(0, -int(Decimal(str(masked["multipleOf"])).normalize().as_tuple().exponent))
        units = int(Decimal(str(masked["multipleOf"])).scaleb(places))
        if places > PLACES or units > LARGEST_STEP or (places and masked["type"] == "integer"):
            self.left_out["multipleOf"] = None
            return {key: value for key, value in masked.items() if key != "multipleOf"}
        # The library writes so many decimals as a step has: those with fewer are of longer steps.
        steps = dict.fromkeys(lcm(units, 10 ** (places - k)) for k in range(min(places, 1), places + 1))
        each = [{**masked, "multipleOf": n // 10**places if n % 10**places == 0 else n / 10**places} for n in steps]
        return each[0] if len(each) == 1 else {"anyOf": each}


def _kind(value: Any) -> str:
    return "number" if isinstance(value, float) else "object" if isinstance(value, Mapping) else "array"


def _alike(value: Any) -> bool:
    """Return whether llguidance writes a value as the model does."""
    if isinstance(value, float):
        return math.isfinite(value) and json_text(value) == repr(value) and not value.is_integer()
    if isinstance(value, Mapping):
        return all(map(_alike, value.values()))
    return all(map(_alike, value)) if isinstance(value, list | tuple) else True
