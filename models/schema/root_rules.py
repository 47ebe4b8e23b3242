"""What a tool's root schema says of several arguments at once: `oneOf`, `if`, `dependentRequired`, `minProperties`...

Where the arguments that it speaks of have few combinations, these are listed and each is judged: the mask enforces the
rules. Else a call is judged when it is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import objects
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.validator import ABOUT, NOTHING, Validator, constants

ARMS = ("anyOf", "oneOf")
BRANCHES = ("then", "else")
CLOSING = ("additionalProperties", "unevaluatedProperties")
# Says nothing of which arguments stand together.
SILENT = {*ABOUT, "example", "type", "$comment", "deprecated", "readOnly", "writeOnly", "discriminator", "strict"}
RULES = {"allOf", *ARMS, "not", "if", *BRANCHES, "dependentRequired", "dependentSchemas"}
RULES |= {"minProperties", "maxProperties", "propertyNames", "const", "enum"}
OF_ALL = {"minProperties", "maxProperties", "propertyNames", "const", "enum", *CLOSING}  # speak of every argument


@dataclass(frozen=True)
class RootRules:
    """The rules of one tool: the keywords that say them as `written`, and the schema of a call that keeps them.

    `names` are the arguments that share a head for them, `values` all that these may be together (None: too many, or
    not listed). `never` are arguments that are described, and that no call has."""

    written: Mapping[str, Any]
    document: Mapping[str, Any]
    names: frozenset[str] = frozenset()
    values: tuple[Mapping[str, Any], ...] | None = None
    never: tuple[str, ...] = ()

    @cached_property
    def _judge(self) -> Validator:
        return Validator(self.document, "the arguments of a call")

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        """Return why arguments may not stand together, None where they may."""
        fault = self._judge.fault(dict(arguments))
        return None if fault is None else f"its arguments may not stand together by {self.keywords} ({fault})"

    @property
    def keywords(self) -> str:
        """The keywords, for people."""
        return ", ".join(f"`{key}`" for key in self.written)


def rules_in(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a root schema that speak of several arguments."""
    return {key: value for key, value in root.items() if key in RULES}


def parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and those within that may hold of the same arguments, but conditions and what is excluded."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    several = (part for key in ("allOf", *ARMS) for part in schema.get(key, ()))
    one = (schema[key] for key in BRANCHES if key in schema)
    for part in (*several, *one, *schema.get("dependentSchemas", {}).values()):
        yield from parts(part)


def described(root: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return by argument the schemas that a root and its parts have for it."""
    found: dict[str, list[Any]] = {}
    for part in parts(root):
        listed = [*part.get("enum", ()), *([part["const"]] if "const" in part else ())]
        for value in (v for v in listed if isinstance(v, Mapping)):
            for name, one in value.items():
                found.setdefault(name, []).append({"const": one})
        for name, one in part.get("properties", {}).items():
            found.setdefault(name, []).append(one)
    return found


def required_somewhere(root: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments that a root or one of its parts requires."""
    for part in parts(root):
        yield from part.get("required", ())
        for name, needs in part.get("dependentRequired", {}).items():
            yield from needs if name in known else ()


def required_always(schema: Any) -> set[str]:
    """Return the arguments that every call has by `required`, as far as it says so without conditions."""
    if not isinstance(schema, Mapping):
        return set()
    found = {*schema.get("required", ())}.union(*map(required_always, schema.get("allOf", ())))
    for key in ARMS:
        arms = [required_always(arm) for arm in schema.get(key, ()) if arm is not False]
        found |= set.intersection(*arms) if arms else set()
    return found


def check_named(root: Mapping[str, Any], where: str) -> None:
    """Raise UserError for a keyword that gives a call arguments without names."""
    for part in parts(root):
        unnamed = [key for key in CLOSING if isinstance(part.get(key), Mapping) and part[key] not in ({}, NOTHING)]
        for key in (*unnamed, *(["patternProperties"] if part.get("patternProperties") else ())):
            raise UserError(
                f"{where}: `{key}` gives a call arguments without names.",
                "List them under `properties`, or take them as one parameter that is an object.",
            )


def spoken_of(rules: Any, every: Sequence[str]) -> set[str]:
    """Return those of `every` argument that rules depend on."""
    if not isinstance(rules, Mapping):
        return set()
    if any(key in OF_ALL and value is not True and value != {} for key, value in rules.items()):
        return {*every}
    dependent = {**rules.get("dependentRequired", {}), **rules.get("dependentSchemas", {})}
    found = {*rules.get("properties", ()), *rules.get("required", ()), *dependent}
    found |= {name for needs in rules.get("dependentRequired", {}).values() for name in needs}
    inner = [part for key in ("allOf", *ARMS) for part in rules.get(key, ())]
    inner += [rules[key] for key in ("not", "if", *BRANCHES) if key in rules]
    for part in (*inner, *rules.get("dependentSchemas", {}).values()):
        found |= spoken_of(part, every)
    return found & {*every}


def with_closed_arms(rules: Mapping[str, Any], outer: Sequence[str]) -> dict[str, Any]:
    """Return rules whose alternatives have no other arguments than those that they, or the root (`outer`), name."""
    found = dict(rules)
    for key in ARMS:
        if key in rules:
            found[key] = [_closed_arm(arm, outer) for arm in rules[key]]
    if "allOf" in rules:
        found["allOf"] = [with_closed_arms(p, outer) if isinstance(p, Mapping) else p for p in rules["allOf"]]
    return found


def _closed_arm(arm: Any, outer: Sequence[str]) -> Any:
    if not isinstance(arm, Mapping) or "properties" not in arm or not arm.keys().isdisjoint(CLOSING):
        return arm
    names = dict.fromkeys((*outer, *described(arm), *arm.get("required", ())), True)
    inner = with_closed_arms(arm, [*names])
    return {**inner, "properties": {**names, **arm["properties"]}, "additionalProperties": False}


def combinations(
    rules: Mapping[str, Any],
    values: Mapping[str, Sequence[Any] | None],
    required: Sequence[str],
    where: str,
    room: Room,
) -> list[dict[str, Any]] | None:
    """Return what arguments may be together, of these `values` by name; None where there are too many, or are not
    listed."""
    every = objects(values, required)
    if every is None or not room.checked(len(every) * weight(rules)):
        return None
    judge = Validator(rules, where)
    return [call for call in every if judge.takes(call)]


def independent(calls: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]] | None:
    """Return the values of each argument where they may stand together in every way, else None. An argument that may
    be left out is so in any case."""
    each = {name: {id(call[name]): call[name] for call in calls if name in call} for name in names}
    ways = [len(each[name]) + any(name not in call for call in calls) for name in names]
    return {name: [*own.values()] for name, own in each.items()} if math.prod(ways) == len(calls) else None


def weight(rules: Any) -> int:
    """Return how many parts of a schema are checked one by one: those of a list of constants count as one."""
    if isinstance(rules, Mapping):
        return 1 + sum(weight(v) for k, v in rules.items() if k not in ("enum", "const", *ABOUT))
    if isinstance(rules, list | tuple):
        return sum(weight(v) for v in rules if constants(v) is None)
    return 0


# Rules that listed values keep, as they are listed by them.
NUMBERS = {"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
ARRAYS = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}
OBJECTS = {"properties", "required", "additionalProperties"}


def kept_by_listing(document: Any) -> bool:
    """Whether all values that are listed of a schema keep its rules."""
    if not isinstance(document, Mapping):
        return isinstance(document, bool)
    said = document.keys() - {*ABOUT}
    if said <= {"enum"} or said <= {"const"}:
        return True
    if not said <= {"type", *NUMBERS, *ARRAYS, *OBJECTS} or not isinstance(document.get("type"), str):
        return False
    inner = [*document.get("properties", {}).values(), *document.get("prefixItems", ()), document.get("items", True)]
    return {*document.get("required", ())} <= {*document.get("properties", ())} and all(map(kept_by_listing, inner))


def kept_values(values: Sequence[Any], document: Mapping[str, Any], where: str, room: Room) -> list[Any] | None:
    """Return those of the listed values that all rules of their `document`, a schema without references, allow.

    None where there is no room for so many checks. Raises UserError for a pattern that cannot be searched for."""
    if kept_by_listing(document):
        return list(values)
    if not room.checked(len(values) * weight(document)):
        return None
    judge = Validator(document, where)
    kept = [v for v in values if judge.takes(v)]
    other = [] if len(kept) == len(values) else [v for v in values if v is not None and not judge.takes(v)]
    if document.keys() - {*ABOUT} <= {"type", "enum"} and other:
        kind = document["type"]
        raise UserError(f"{where}: the value {other[0]!r} is no {kind}.", f"List values of type {kind} only.")
    return kept
