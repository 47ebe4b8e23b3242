"""List the combinations of arguments that satisfy the rules of a tool's root schema, as combinations of value classes.

Two values of a parameter are in the same class if each rule treats them alike. Most rules are about which parameters
are present, so most parameters have two classes: absent and present.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.parameters import BRANCH_KEYWORDS, LIST_KEYWORDS, Parameter, RootRules
from rtcontrol.models.schema.validator import Validator, equality_key

MAX_ROWS = 1024  # maximum number of combinations of classes that are checked
MAX_JUDGED = 8192  # maximum of (listed values * rules) that are checked to find the classes of a parameter
# COUNTING are keywords that apply to all parameters together; OF_EACH are keywords that apply to every parameter.
COUNTING = ("minProperties", "maxProperties", "propertyNames", "enum", "const")
OF_EACH = ("additionalProperties", "unevaluatedProperties", "patternProperties")
ABSENT_CLASS = None
ValueClass = tuple[bool, ...] | None  # for each rule, whether a parameter's value satisfies it; ABSENT_CLASS if absent
ClassRow = tuple["ValueClass | str", ...]
ANY_VALUE = "any"  # in a row: the value is present, but its class is unknown until it is decoded


@dataclass(frozen=True)
class Combinations:
    """The legal combinations of the parameters `names`, which the rules restrict. Each row is a legal combination: a
    class for each name. `rules` has for each name the schemas that distinguish its values."""

    names: tuple[str, ...]
    rules: tuple[tuple[Validator, ...], ...]
    rows: tuple[ClassRow, ...]

    def class_of(self, name: str, arguments: Mapping[str, Any]) -> ValueClass:
        """Return the class of a parameter's value in a call's arguments."""
        if name not in arguments:
            return ABSENT_CLASS
        return tuple(rule.accepts(arguments[name]) for rule in self.rules[self.names.index(name)])

    def matching_rows(
        self, rows: Sequence[ClassRow], names: Sequence[str], arguments: Mapping[str, Any]
    ) -> list[ClassRow]:
        """Return the rows in which the parameters `names` have the classes of their values in `arguments`."""
        places = [self.names.index(name) for name in names]
        classes = [self.class_of(name, arguments) for name in names]
        return [row for row in rows if all(map(class_matches, classes, (row[place] for place in places)))]

    def distinct_rows(self, rows: Sequence[ClassRow], names: Sequence[str]) -> list[ClassRow]:
        """Return one row for each different combination of classes that the parameters `names` have in `rows`."""
        places = [self.names.index(name) for name in names]
        return [*{tuple(row[place] for place in places): row for row in rows}.values()]


def class_matches(value: ValueClass, allowed: ValueClass | str) -> bool:
    """Return whether a value of the class `value` is allowed where a row has the class `allowed`."""
    return value is not ABSENT_CLASS if allowed == ANY_VALUE else value == allowed


def legal_combinations(parameters: Sequence[Parameter], rules: RootRules | None) -> Combinations | None:
    """Return the legal combinations of arguments; None if there are no rules, or too many combinations to check."""
    if rules is None:
        return None
    whole, *inner = parts = [*_object_parts(rules.document)]
    mentioned = {name for part in parts for name in _restricted_names(part)}
    # Ignore OF_EACH in the whole schema: all parameters are declared, so a false `additionalProperties` restricts none.
    every = any(key in whole for key in COUNTING) or any(key in part for part in inner for key in (*COUNTING, *OF_EACH))
    named = [p for p in parameters if every or p.name in mentioned]
    validators = [tuple(Validator(s, "a rule") for s in _value_rules(parts, p.name)) for p in named]
    options = [_class_options(p, each) for p, each in zip(named, validators, strict=True)]
    if math.prod(map(len, options)) > MAX_ROWS:
        return None
    rows = [
        tuple(option[0] for option in row)
        for row in itertools.product(*options)
        if any(option[0] == ANY_VALUE for option in row)
        or rules.violation({p.name: o[1] for p, o in zip(named, row, strict=True) if o[0] is not ABSENT_CLASS}) is None
    ]
    return Combinations(tuple(p.name for p in named), tuple(validators), tuple(rows))


def _object_parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema of an object, and all its parts about the same object."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    several = [part for key in LIST_KEYWORDS for part in schema.get(key, ())]
    single = [schema[key] for key in ("not", "if", *BRANCH_KEYWORDS) if key in schema]
    for part in (*several, *single, *schema.get("dependentSchemas", {}).values()):
        yield from _object_parts(part)


def _restricted_names(part: Mapping[str, Any]) -> set[str]:
    """Return the names of the properties that a part of a schema restricts."""
    dependent = part.get("dependentRequired", {})
    names = {*part.get("required", ()), *dependent, *itertools.chain(*dependent.values())}
    declared = {name for name, rule in part.get("properties", {}).items() if rule not in (True, {})}
    return names | declared | {*part.get("dependentSchemas", ())}


def _value_rules(parts: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the different schemas in the parts that may distinguish two values of a property."""
    schemas = [part.get("properties", {}).get(name) for part in parts]
    schemas += [part.get(key) for part in parts for key in OF_EACH[:2]]
    schemas += [rule for part in parts for rule in part.get("patternProperties", {}).values()]
    whole = [v for part in parts for v in (*part.get("enum", ()), *([part["const"]] if "const" in part else ()))]
    schemas += [{"const": v[name]} for v in whole if isinstance(v, Mapping) and name in v]
    return [*{equality_key(s): s for s in schemas if isinstance(s, Mapping) and s}.values()]


def _class_options(p: Parameter, validators: Sequence[Validator]) -> list[tuple[ValueClass | str, Any]]:
    """Return the classes of a parameter's values, each with one of its values."""
    options: dict[ValueClass | str, Any] = {} if p.required else {ABSENT_CLASS: None}
    if not validators:
        options[()] = None  # no rule restricts the value itself
    elif isinstance(p.domain, ClosedDomain) and len(p.domain.values) * len(validators) <= MAX_JUDGED:
        for value in (*p.domain.values, *[None] * (p.nullable and p.required)):
            options.setdefault(tuple(rule.accepts(value) for rule in validators), value)
    else:
        options[ANY_VALUE] = None
    return [*options.items()]
