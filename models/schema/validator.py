"""Whether a value is one of a schema: `jsonschema`'s reading of draft 2020-12, with what a call's values need besides.

Patterns are searched for by a linear engine (`models/schema/pattern.py`), steps are counted in decimals, numbers are
finite and integers have 64 bits. `format` says nothing of what is valid. No reference is fetched. Alternatives within
each other are asked once of a value, however many `unevaluatedProperties` and `unevaluatedItems` stand among them.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jsonschema
import referencing
import referencing.exceptions

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.pattern import PatternError, compiled

LEAST_INTEGER, MOST_INTEGER = -(2**63), 2**64 - 1  # what messages take
DATA = ("enum", "const", "default", "examples")
ABOUT = ("title", "description", "default", "examples", "x-group")  # says nothing of the values
BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
NOTHING: dict[str, Any] = {"not": {}}  # the schema that takes no value
Errors = Iterator[jsonschema.ValidationError]


class Validator:
    """Judges values by one schema. Raises UserError (`where` names tool and parameter) for a pattern that cannot be
    searched for."""

    def __init__(self, schema: Mapping[str, Any], where: str) -> None:
        check_patterns(schema, where)
        self._where = where
        self._listed: dict[int, tuple[Any, Any]] = {}  # of lists that stand in it: what their values are found by
        self._made = _MADE(schema, registry=referencing.Registry())

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value, in a few words; None where it is one of the schema. Raises UserError where the
        schema itself is wrong: a reference that leads nowhere."""
        _asked.known, _asked.listed = {}, self._listed
        try:
            error = next(self._made.iter_errors(value), None)
        except PatternError as given_up:
            return f"its pattern took too long ({given_up})"
        except (referencing.exceptions.Unresolvable, RecursionError) as lost:
            told = f"{self._where}: its rules cannot be checked ({str(lost)[:120]})."
            raise UserError(told, "Write them out.") from None
        if error is None:
            return None
        place = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in error.absolute_path)
        return f"{place.removeprefix('.')}: {error.message}"[:200].removeprefix(": ")

    def takes(self, value: Any) -> bool:
        """Whether it is one. Raises UserError as `fault` does."""
        return self.fault(value) is None


def check_patterns(schema: Any, where: str) -> None:
    """UserError for the first pattern of a schema, in whatever depth, that cannot be searched for."""
    if isinstance(schema, list | tuple):
        for part in schema:
            check_patterns(part, where)
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        named = key in BY_NAME and isinstance(value, Mapping)
        sources = [value] if key == "pattern" else [*value] if key == "patternProperties" and named else []
        for source in sources:
            try:
                compiled(source)
            except PatternError as error:
                told = f"{where}: its {key} {source[:80]!r} cannot be searched for: {error}."
                raise UserError(told, "Write it with classes, groups, repetitions and anchors at its ends.") from None
        if key not in DATA:
            check_patterns(list(value.values()) if named else value, where)


def _pattern(_: Any, source: str, value: Any, __: Any) -> Errors:
    if isinstance(value, str) and not compiled(source).matches(value):
        yield jsonschema.ValidationError(f"{value[:60]!r} does not match {source[:60]!r}")


def _pattern_properties(validator: Any, parts: Mapping[str, Any], value: Any, _: Any) -> Errors:
    if isinstance(value, Mapping):
        for source, part in parts.items():
            for key in (key for key in value if compiled(source).matches(key)):
                yield from validator.descend(value[key], part, path=key, schema_path=source)


def _additional(validator: Any, part: Any, value: Any, schema: Mapping[str, Any]) -> Errors:
    if isinstance(value, Mapping):
        for key in undeclared(value, schema):
            if part is False:
                yield jsonschema.ValidationError(f"{key[:60]!r} is none of its properties")
            elif isinstance(part, Mapping):
                yield from validator.descend(value[key], part, path=key)


def undeclared(value: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """The keys that neither `properties` nor `patternProperties` speak of."""
    patterns = [compiled(source) for source in schema.get("patternProperties", ())]
    own = schema.get("properties", ())
    return [key for key in value if key not in own and not any(p.matches(key) for p in patterns)]


def _enum(_: Any, allowed: list[Any], value: Any, __: Any) -> Errors:
    if _key(value) not in _of_list(allowed, lambda: {_key(v) for v in allowed}):
        yield jsonschema.ValidationError(f"{str(value)[:60]!r} is not listed")


def _fitting(validator: Any, arms: list[Any], value: Any) -> Iterator[int]:
    """1 for each alternative that takes a value: constants are looked up, however many there are."""

    def made() -> tuple[Counter[str | bytes], list[Any]]:
        listed = [(arm, constants(arm)) for arm in arms]
        counts = Counter(key for _, values in listed for key in {_key(v) for v in values or ()})
        return counts, [arm for arm, values in listed if values is None]

    counts, others = _of_list(arms, made)
    yield from [1] * counts[_key(value)]
    yield from (1 for arm in others if _takes(validator, arm, value))


def _key(value: Any) -> str | bytes:
    """As `equal`, sooner of a text."""
    return value if type(value) is str else equal(value).encode()


def _of_list(given: list[Any], make: Callable[[], Any]) -> Any:
    """What is made of a list that stands in a schema: once, for the one who judges by it."""
    if id(given) not in _asked.listed:
        _asked.listed[id(given)] = given, make()  # with the list, for its id
    return _asked.listed[id(given)][1]


# Of who judges, by list: what was made of it (`listed`); of the value that is judged, by schema and part: whether the
# schema takes the part (`known`).
_asked = threading.local()


def _takes(validator: Any, schema: Any, value: Any) -> bool:
    key = id(schema), id(value)  # both stand in what is judged, and by what
    if key not in _asked.known:
        _asked.known[key] = validator.evolve(schema=schema).is_valid(value)
    return bool(_asked.known[key])


def _any_of(validator: Any, arms: list[Any], value: Any, _: Any) -> Errors:
    if next(_fitting(validator, arms, value), 0) == 0:
        yield jsonschema.ValidationError(f"{str(value)[:60]!r} is none of its alternatives")


def _one_of(validator: Any, arms: list[Any], value: Any, _: Any) -> Errors:
    fitting = _fitting(validator, arms, value)
    if next(fitting, 0) == 0 or next(fitting, 0):
        yield jsonschema.ValidationError(f"{str(value)[:60]!r} is not one of its alternatives, and of one alone")


def _unevaluated_properties(validator: Any, part: Any, value: Any, schema: Mapping[str, Any]) -> Errors:
    if isinstance(value, Mapping):
        yield from _unevaluated(validator, part, value, schema)


def _unevaluated_items(validator: Any, part: Any, value: Any, schema: Mapping[str, Any]) -> Errors:
    if isinstance(value, list | tuple):
        yield from _unevaluated(validator, part, value, schema)


def _unevaluated(validator: Any, part: Any, value: Any, schema: Mapping[str, Any]) -> Errors:
    evaluated = _evaluated(validator, schema, value)
    for key, own in _parts(value):
        if key not in evaluated and not _takes(validator, part, own):
            yield jsonschema.ValidationError(f"{str(key)[:60]!r} is evaluated by no part of it, and not taken then")


def _evaluated(validator: Any, schema: Any, value: Any) -> set[Any]:
    """The keys of an object, or the places of an array, of which a schema speaks that takes it."""
    if not isinstance(schema, Mapping):
        return set()
    if isinstance(value, Mapping):
        found = {*value} - {*undeclared(value, schema)}
        others = [schema[k] for k in ("additionalProperties", "unevaluatedProperties") if k in schema]
    else:
        found = {*range(len(value) if "items" in schema else len(schema.get("prefixItems", ())))}
        others = [schema[k] for k in ("contains", "unevaluatedItems") if k in schema]
    found |= {key for key, v in _parts(value) if any(_takes(validator, other, v) for other in others)}
    arms = [*schema.get("allOf", ())]
    arms += [arm for k in ("anyOf", "oneOf") for arm in schema.get(k, ()) if _takes(validator, arm, value)]
    if isinstance(value, Mapping):
        arms += [arm for name, arm in schema.get("dependentSchemas", {}).items() if name in value]
    if "if" in schema:
        yes = _takes(validator, schema["if"], value)
        arms += [schema["if"], schema.get("then")] if yes else [schema.get("else")]
    return found.union(*(_evaluated(validator, arm, value) for arm in arms))


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, Mapping) else enumerate(value)


def constants(arm: Any) -> list[Any] | None:
    """The values of an alternative that is a list of them, and says nothing else of values."""
    if not isinstance(arm, Mapping) or not set(arm) <= {"const", "enum", *ABOUT} or {"const", "enum"} <= set(arm):
        return None
    return [arm["const"]] if "const" in arm else arm.get("enum")


def listed_values(part: Any) -> Sequence[Any] | None:
    """Of a schema that lists them, with whatever else it says."""
    if not isinstance(part, Mapping):
        return None
    if "allOf" in part:
        return min((v for p in part["allOf"] if (v := listed_values(p))), key=len, default=None)
    if part.get("type") == "boolean" and "enum" not in part and "const" not in part:
        return (False, True)
    listed = constants({k: v for k, v in part.items() if k in ("enum", "const")})
    if listed is None:
        arms = next((part[k] for k in ("anyOf", "oneOf") if k in part), None)
        each = [constants(arm) for arm in arms] if arms else [None]
        return None if any(v is None for v in each) else [v for own in each if own for v in own]
    return listed


def _multiple(_: Any, step: float, value: Any, __: Any) -> Errors:
    # In decimals: jsonschema says that 0.3 is no multiple of 0.1.
    if type(value) in (int, float) and math.isfinite(value) and Fraction(str(value)) % Fraction(str(step)):
        yield jsonschema.ValidationError(f"{value} is no multiple of {step}")


def equal(value: Any) -> str:
    """Equal for what JSON schema calls equal: 1 and 1.0 are, 1 and true are not, keys stand in any order."""
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
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_BASE = jsonschema.Draft202012Validator
_MADE = jsonschema.validators.extend(
    _BASE,
    {
        "enum": _enum,
        "anyOf": _any_of,
        "oneOf": _one_of,
        "multipleOf": _multiple,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional,
        "unevaluatedProperties": _unevaluated_properties,
        "unevaluatedItems": _unevaluated_items,
    },
    type_checker=_BASE.TYPE_CHECKER.redefine_many(
        {
            "integer": _is_integer,
            "number": _is_number,
            "array": lambda _, value: isinstance(value, list | tuple),
        }
    ),
)
