"""Translate the schema of a free value to a grammar for llguidance, which computes the legal tokens (the token mask).

Keywords that llguidance cannot enforce are dropped here; complete values are validated by the whole schema. Values are
decoded as compact JSON with keys in declared order and numbers without exponents. Objects with `properties` have no
other properties unless the schema allows them explicitly.
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
from rtcontrol.models.schema.domain import FreeDomain, json_text, listed_values
from rtcontrol.models.schema.json_schema import normal_form, without_null
from rtcontrol.models.schema.numbers import number_range
from rtcontrol.models.schema.references import RULE_KEYWORDS
from rtcontrol.models.schema.shapes import ShapeWriter
from rtcontrol.models.schema.validator import (
    DATA_KEYWORDS,
    SCHEMA_MAPS,
    PatternError,
    Validator,
    byte_matcher,
    equality_key,
    with_countable_repeats,
)

FAR_BOUND = 2**62  # unbounded numbers get this bound, because only bounded numbers are written without exponents
MAX_UNIQUE = 1024  # maximum listed items of an array of unique items: a grammar is compiled for each item
MAX_EXACT = 2**53  # up to this number, llguidance computes exactly with bounds and with steps of floats
MAX_COUNT = 2**32 - 1  # the largest count (of characters or items) in llguidance; no decoded value reaches it
LARGEST_STEP, MAX_DECIMALS = 10_000, 6  # larger or finer steps would need too many states in llguidance
# Keywords that are passed to llguidance unchanged.
ENFORCED_KEYWORDS = {
    *("type", "minLength", "maxLength", "pattern", "format", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "required"),
}
# Keywords that allow an object to have undeclared properties.
OPEN_KEYWORDS = {"additionalProperties", "patternProperties"}
# Keywords that the mask ignores. They are checked only when a value is complete.
CHECKED_KEYWORDS = {
    *("not", "if", "dependentRequired", "dependentSchemas", "contains", "uniqueItems", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems", "minProperties", "maxProperties"),
}
FORMATS = {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
LEAST_COUNTS = {"string": "minLength", "array": "minItems"}
COUNTS = {*LEAST_COUNTS.values(), "maxLength", "maxItems"}
# If llguidance refuses a schema, these sets of keywords are dropped one after another until it accepts the schema.
RELAXATIONS: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset(["format"]),
    frozenset(["format", "patternProperties", *BOUNDS, "multipleOf"]),
    frozenset(["format", "patternProperties", *BOUNDS, "multipleOf", "pattern", "minItems", "maxItems"]),
)
# Keywords with subschemas, which are translated as well.
SUBSCHEMAS = ("items", "additionalProperties", "prefixItems", "allOf", "anyOf", "properties", "patternProperties")
# ANY_VALUE is the schema of any value whose numbers have no exponents. ANY_REFERENCE refers to it.
ANY_REFERENCE = {"$ref": "#/$defs/any"}
ANY_VALUE = {
    "anyOf": [
        {"type": ["string", "boolean", "null"]},
        {"type": "number", "minimum": -FAR_BOUND, "maximum": FAR_BOUND},
        {"type": "array", "items": ANY_REFERENCE},
        {"type": "object", "additionalProperties": ANY_REFERENCE},
    ]
}
UNIQUE = "x-unique"  # marks an array of unique listed items, whose uniqueness `without_repeats` enforces
MAX_CACHED = 1 << 16  # characters; the masks of longer schemas are not cached
OPTIONS = {"whitespace_flexible": False, "coerce_one_of": True, "lenient": True}


@dataclass(frozen=True)
class Mask:
    """A grammar for llguidance. It does not enforce the keywords `checked`, which are checked in complete values."""

    grammar: str
    checked: tuple[str, ...]


def compile_mask(domain: FreeDomain, where: str, space: str = "") -> Mask:
    """Return the strictest mask of a schema that llguidance compiles. Raises UserError as `compile_masks` does."""
    return next(compile_masks(domain, where, space))


def compile_masks(domain: FreeDomain, where: str, space: str = "") -> Iterator[Mask]:
    """Translate the schema of a free domain to grammars, and yield the grammars that llguidance compiles, starting with
    the strictest. `space` precedes JSON values and follows their separators.

    Raises UserError (`where` names tool and parameter) if no value satisfies the schema, or it is too large.
    """
    fault: str | None = None
    try:
        written = json.dumps([domain.schema, domain.rules], default=repr)
        compile_json = _compile_json if len(written) <= MAX_CACHED else _compile_json.__wrapped__
        for without in RELAXATIONS:
            mask, fault = compile_json(written, where, space, without)
            if fault is None:
                yield mask
            elif without and fault.startswith("Unsatisfiable"):
                raise unsatisfiable(where, written)
    except RecursionError:
        problem = f"{where}: its schema has too many properties, or too many levels."
        raise UserError(problem, "Use a smaller schema.") from None
    if fault is not None:
        raise undecodable(where, fault)


def unsatisfiable(where: str, source: str) -> UserError:
    """Return the error of a schema without any value, which names the rules that may exclude all values."""
    names = {*keywords(json.loads(source)[1])} & {"oneOf", *CHECKED_KEYWORDS}
    rules = f" ({', '.join(f'`{name}`' for name in sorted(names))})" if names else ""
    return UserError(f"{where}: no value satisfies its schema{rules}.", "Relax the schema.")


def undecodable(where: str, fault: str) -> UserError:
    """Return the UserError for a schema that llguidance rejects; `fault` is llguidance's reason."""
    hint = "Use a plain type, bounds or an enum, or shorter patterns."
    return UserError(f"{where}: its schema cannot be decoded ({fault}).", hint)


@lru_cache(maxsize=256)
def _compile_json(source: str, where: str, space: str, without: frozenset[str]) -> tuple[Mask, str | None]:
    """Return the mask of a schema, in which the keywords `without` are dropped, and llguidance's error or None."""
    schema, rules = _with_shapes(source, where)
    options = OPTIONS | {"key_separator": f":{space}", "item_separator": f",{space}"}
    translator = _Translator(without, where)
    masked = translator.translate(schema)
    if masked is False:
        raise unsatisfiable(where, source)
    masked = {**(masked if isinstance(masked, dict) else {}), "$defs": {"any": ANY_VALUE}, "x-guidance": options}
    grammar = f"start: {json.dumps(space) if space else ''} %json {json.dumps(masked)}\n"
    exactly_one = [key for key in keywords(rules) if key == "oneOf"]
    mask = Mask(grammar, tuple(dict.fromkeys([*exactly_one, *translator.dropped])))
    try:
        byte_matcher(grammar)
    except PatternError as error:
        return mask, str(error)
    return mask, None


@lru_cache(maxsize=64)
def _with_shapes(source: str, where: str) -> tuple[Any, Any]:
    """Return a domain's schema and rules with alternatives in place of rules about the properties of objects."""
    schema, rules = json.loads(source)
    written = ShapeWriter(where).write(rules)
    if written == rules:
        return schema, rules
    shaped = normal_form(written, where)
    return (shaped if Validator(schema, where).accepts(None) else without_null(shaped)[0]), written


def keywords(schema: Any) -> Iterator[str]:
    """Yield the keywords of a schema and its subschemas that restrict values."""
    if isinstance(schema, list):
        for part in schema:
            yield from keywords(part)
    elif isinstance(schema, Mapping):
        yield from (key for key in schema if key in RULE_KEYWORDS)
        for key, part in schema.items():
            if key not in DATA_KEYWORDS and key not in CHECKED_KEYWORDS:
                yield from keywords([*part.values()] if key in SCHEMA_MAPS and isinstance(part, Mapping) else part)


class _Translator:
    """Translates a normalised schema for llguidance, except the keywords `without`. `dropped` lists dropped
    keywords."""

    def __init__(self, without: frozenset[str], where: str) -> None:
        self._without, self._where = without, where
        self.dropped: dict[str, None] = {}

    def translate(self, schema: Any, outer: Iterable[str] | None = ()) -> dict[str, Any] | bool:
        """Return the translation of a subschema; False if no value satisfies it.

        `outer` are properties that enclosing schemas declare for the same object (None: any, in a part of an `allOf`).
        """
        if not isinstance(schema, Mapping):
            return dict(ANY_REFERENCE) if schema else False
        if schema.get("not") == {} or schema.get(LEAST_COUNTS.get(str(schema.get("type")), ""), 0) > MAX_COUNT:
            return False
        if "enum" in schema:
            return self._translate_enum(schema)
        if not schema.keys() & {*ENFORCED_KEYWORDS, *CHECKED_KEYWORDS, *SUBSCHEMAS}:
            return dict(ANY_REFERENCE)
        parts = [schema, *(part for part in schema.get("allOf", ()) if isinstance(part, Mapping))]
        names = {name for part in parts for name in part.get("properties", ())}
        named = any("properties" in arm for part in parts for arm in part.get("anyOf", ()))
        inner = None if outer is None else {*outer, *names}
        masked = {key: self._translate_keyword(key, value, inner) for key, value in schema.items()}
        masked = {key: value for key, value in masked.items() if value is not None}
        if masked.get("anyOf") == []:
            return False
        if names and outer is not None and not named and not any(part.keys() & OPEN_KEYWORDS for part in parts):
            more = sorted({*outer, *names, *schema.get("required", ())} - masked.get("properties", {}).keys())
            masked["properties"] = masked.get("properties", {}) | dict.fromkeys(more, True)
            masked["additionalProperties"] = False
        if masked.get("type") == "array":
            masked.setdefault("items", dict(ANY_REFERENCE))
        elif masked.get("type") == "object" and outer is not None and "anyOf" not in masked:
            masked.setdefault("additionalProperties", dict(ANY_REFERENCE))
        if masked.pop("uniqueItems", False):
            return self._translate_unique(schema, masked)
        return self._translate_bounds(masked) if masked.get("type") in ("integer", "number") else masked

    def _translate_keyword(self, key: str, value: Any, outer: Iterable[str] | None) -> Any:
        """Return the translated value of a keyword, or None if the keyword is dropped."""
        if key == "uniqueItems":
            return value or None
        if key in self._without or key in CHECKED_KEYWORDS:
            self.dropped[key] = None
        elif key in ("items", "additionalProperties"):
            return self.translate(value)
        elif key == "prefixItems":
            return [self.translate(part) for part in value]
        elif key == "allOf":
            return [self.translate(part, None) for part in value]
        elif key == "anyOf":
            return [arm for arm in (self.translate(part, outer) for part in value) if arm is not False]
        elif key == "properties":
            return {name: self.translate(part) for name, part in value.items()}
        elif key == "patternProperties":
            return {with_countable_repeats(name): self.translate(part) for name, part in value.items()}
        elif key == "pattern":
            return with_countable_repeats(value)
        elif key in COUNTS:
            return min(value, MAX_COUNT)
        elif key in ENFORCED_KEYWORDS and (key != "format" or value in FORMATS):
            return value
        return None

    def _translate_unique(self, schema: Mapping[str, Any], masked: dict[str, Any]) -> dict[str, Any] | bool:
        """Return the translation of an array of unique items. Uniqueness is enforced if all possible items are listed,
        and none of them is a list, an object or a float."""
        rest: Any = schema.get("items")
        listable = isinstance(rest, Mapping) and masked.get("type") == "array" and "prefixItems" not in schema
        items = listed_values(rest, self._where) if listable else None
        if items is None or len(items) > MAX_UNIQUE or any(isinstance(v, list | Mapping | float) for v in items):
            self.dropped["uniqueItems"] = None
            return masked
        items = [*{equality_key(v): v for v in items}.values()]
        most = min(masked.get("maxItems", len(items)), len(items))
        if masked.get("minItems", 0) > most:
            return False
        return {**masked, "items": {"enum": items}, "maxItems": most, UNIQUE: True}

    def _translate_enum(self, schema: Mapping[str, Any]) -> dict[str, Any] | bool:
        """Return the translation of an `enum`. Values that llguidance writes differently are replaced by their type."""
        values = schema["enum"]
        if schema.get("type") == "number":
            values = [float(v) for v in values if isinstance(v, int | float)]
        if all(_same_spelling(v) for v in values):
            return {"enum": [*values]} if values else False
        self.dropped["enum"] = None
        unchanged = [{"enum": names}] if (names := [v for v in values if _same_spelling(v)]) else []
        types = {_type_of(v): None for v in values if not _same_spelling(v)}
        return {"anyOf": [*unchanged, *(self.translate({"type": type_name}) for type_name in types)]}

    def _translate_bounds(self, masked: dict[str, Any]) -> dict[str, Any] | bool:
        """Return a number schema whose bounds and step llguidance enforces exactly; False if no number satisfies it."""
        numbers = number_range(masked)
        if numbers.low > numbers.high:
            return False
        for key in BOUNDS:
            if key in masked and not abs(masked[key]) <= MAX_EXACT:
                self.dropped[key] = None
                del masked[key]
        far = MAX_EXACT if "multipleOf" in masked and masked["type"] == "number" else FAR_BOUND
        if masked.keys().isdisjoint(("minimum", "exclusiveMinimum")):
            masked["minimum"] = -far
        if masked.keys().isdisjoint(("maximum", "exclusiveMaximum")):
            masked["maximum"] = far
        if "multipleOf" not in masked:
            return masked
        places = max(0, -int(Decimal(str(masked["multipleOf"])).normalize().as_tuple().exponent))
        units = int(Decimal(str(masked["multipleOf"])).scaleb(places))
        if places > MAX_DECIMALS or units > LARGEST_STEP or (places and masked["type"] == "integer"):
            self.dropped["multipleOf"] = None
            return {key: value for key, value in masked.items() if key != "multipleOf"}
        # llguidance writes numbers with exactly as many decimals as the step. Add larger steps for fewer decimals.
        steps = dict.fromkeys(lcm(units, 10 ** (places - k)) for k in range(min(places, 1), places + 1))
        each = [{**masked, "multipleOf": n // 10**places if n % 10**places == 0 else n / 10**places} for n in steps]
        return each[0] if len(each) == 1 else {"anyOf": each}


def _type_of(value: Any) -> str:
    return "number" if isinstance(value, float) else "object" if isinstance(value, Mapping) else "array"


def _same_spelling(value: Any) -> bool:
    """Return whether llguidance writes a value with the same text as `json_text`."""
    if isinstance(value, float):
        return math.isfinite(value) and json_text(value) == repr(value) and not value.is_integer()
    if isinstance(value, Mapping):
        return all(map(_same_spelling, value.values()))
    return all(map(_same_spelling, value)) if isinstance(value, list | tuple) else True


def without_repeats(masked: Any, value: Any) -> Any:
    """Return a stricter schema in llguidance's form: arrays of unique items start with the complete items of `value`,
    and later items differ from these."""
    if not isinstance(masked, Mapping):
        return masked
    narrowed = dict(masked)
    for key in ("anyOf", "allOf"):
        if key in masked:
            narrowed[key] = [without_repeats(part, value) for part in masked[key]]
    if isinstance(value, dict) and (declared := masked.get("properties")):
        written = {name: without_repeats(declared[name], value[name]) for name in declared.keys() & value.keys()}
        narrowed["properties"] = {**declared, **written}
    elif isinstance(value, list) and value and masked.get(UNIQUE):
        keys = {equality_key(v) for v in value}
        items = masked["items"]["enum"] if masked["items"] else ()  # false: the array has all values
        rest = [v for v in items if equality_key(v) not in keys]
        narrowed |= {"prefixItems": [{"enum": [v]} for v in value], "items": {"enum": rest} if rest else False}
    elif isinstance(value, list) and value and "items" in masked:
        parts = [*masked.get("prefixItems", ()), *[masked["items"]] * len(value)]
        last = len(value) - 1
        if (part := without_repeats(parts[last], value[last])) != parts[last]:
            narrowed["prefixItems"] = [*parts[:last], part, *masked.get("prefixItems", ())[last + 1 :]]
    return narrowed
