"""The rules of a tool's root schema as alternatives: which arguments a call may have together.

A root schema says of all arguments at once what may stand beside what: `oneOf`, `if`, `dependentRequired`,
`minProperties`, ... Each alternative that it leaves is an object of its own: which arguments may be given, which must
be, and what holds of each. A call has no other arguments than those that its alternative names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.references import BOUNDS
from rtcontrol.models.schema.validator import ABOUT, NOTHING, Validator, constants, listed_values

# Rules that are kept by listing the values.
KEPT: tuple[set[str], ...] = ({"enum"}, {"const"}, {"type", "multipleOf", *BOUNDS, *BOUNDS.values()})


class ValidatorCache:
    """Says whether a value satisfies a schema, of many that are asked about more than once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._known: dict[int, tuple[Any, Validator]] = {}

    def allows(self, schema: Any, value: Any) -> bool:
        """Raises UserError for a pattern that cannot be searched for."""
        if isinstance(schema, bool):
            return schema
        if id(schema) not in self._known:  # it is kept, for its id
            self._known[id(schema)] = schema, Validator(schema, self._where)
        return self._known[id(schema)][1].takes(value)


def weight(rules: Any) -> int:
    """Parts of a schema that are checked one by one: constants among alternatives are looked up."""
    if isinstance(rules, Mapping):
        return 1 + sum(weight(v) for k, v in rules.items() if k not in ("enum", "const", *ABOUT))
    if isinstance(rules, list | tuple):
        return sum(weight(v) for v in rules if constants(v) is None)
    return 0


def kept_values(values: Sequence[Any], document: Mapping[str, Any], where: str, room: Room) -> list[Any]:
    """Those of the listed values that all rules of their `document`, a schema without references, allow.

    Raises UserError for a pattern that cannot be searched for, and for more checks than there is room for."""
    said = set(document) - {*ABOUT}
    if any(said <= kept for kept in KEPT):
        return list(values)
    room.take(where, checks=len(values) * weight(document))
    judge = Validator(document, where)
    kept = [v for v in values if judge.takes(v)]
    other = [] if len(kept) == len(values) else [v for v in values if v is not None and not judge.takes(v)]
    if said <= {"type", "enum"} and other:
        kind = document["type"]
        raise UserError(f"{where}: the value {other[0]!r} is no {kind}.", f"List values of type {kind} only.")
    return kept


Schema = Mapping[str, Any]
MAX_ALTERNATIVES = 256
MAX_WORK = 20_000  # alternatives that are laid together, and values that are checked meanwhile
# Says nothing of which arguments a call has.
SILENT = {*ABOUT, "example", "type", "$comment", "deprecated", "readOnly", "writeOnly", "discriminator", "strict"}


@dataclass(frozen=True)
class Alternative:
    """`given` are the arguments that it names, `properties` the schemas that hold of them and of others; `closed`: the
    only ones that may be named by other rules (None: any). It has at least `least` and at most `most` arguments."""

    properties: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    closed: frozenset[str] | None = None
    least: int = 0
    most: float = math.inf

    def names(self) -> list[str]:
        """The arguments that may be given."""
        return [n for n in sorted(self.given | self.required) if self.may_give(n)]

    def may_give(self, name: str) -> bool:
        """Whether the argument may be given."""
        named = name in self.given or name in self.required
        return named and name not in self.absent and (self.closed is None or name in self.closed)


def named(schema: Any) -> list[str]:
    """The arguments that a root schema and its alternatives have schemas for, in their order."""
    found: dict[str, None] = {}
    if isinstance(schema, Mapping):
        found |= dict.fromkeys(schema.get("properties", {}))
        for value in (schema[k] for k in ("const",) if isinstance(schema.get(k), Mapping)):
            found |= dict.fromkeys(value)
        for value in (v for v in schema.get("enum", ()) if isinstance(v, Mapping)):
            found |= dict.fromkeys(value)
        one = (schema.get(k) for k in ("not", "if", "then", "else"))
        several = (part for k in ("allOf", "anyOf", "oneOf") for part in schema.get(k, ()))
        for part in (*several, *one, *schema.get("dependentSchemas", {}).values()):
            found |= dict.fromkeys(named(part))
    return list(found)


def alternatives(root: Schema, where: str) -> list[Alternative]:
    """Those of a root schema without references; none where no call satisfies it.

    Raises UserError naming the keyword that makes too many, or that no call of named arguments can keep."""
    return _AlternativesReader(root, where).of_root()


class _AlternativesReader:
    def __init__(self, root: Schema, where: str) -> None:
        self._root, self._where, self._judge, self._work = root, where, ValidatorCache(where), 0
        self._names = named(root)
        self._keyword = "its rules"
        self._negations: dict[int, Any] = {}
        self._values: dict[tuple[int, ...], tuple[Any, ...] | None] = {}
        self._kept: list[Any] = []  # schemas that are known by their id

    def of_root(self) -> list[Alternative]:
        found = [Alternative()]
        for key in sorted(self._root, key=lambda key: key != "properties"):
            self._keyword = f"`{key}`"
            found = self._both(found, self._of_keyword(self._root, key))
        self._keyword = "its rules"
        found = self._sealed(self._root, found)
        return self._each_once(itertools.chain.from_iterable(map(self._counted, found)))

    def _of(self, schema: Any) -> list[Alternative]:
        """The alternatives of a schema of the whole call."""
        if not isinstance(schema, Mapping):
            return [Alternative()] if schema is True else []
        found = [Alternative()]
        for key in schema:
            found = self._both(found, self._of_keyword(schema, key))
        return self._sealed(schema, found)

    def _sealed(self, schema: Schema, found: list[Alternative]) -> list[Alternative]:
        if schema.get("unevaluatedProperties") in (False, NOTHING):
            return [b for a in found for b in self._both([a], [Alternative(closed=a.given)])]
        return found

    def _without(self, schema: Any) -> list[Alternative]:
        """The alternatives of what a schema does not allow."""
        if not isinstance(schema, Mapping):
            return [] if schema is True else [Alternative()]
        return self._each_once(a for key in schema for a in self._without_keyword(schema, key))

    def _of_keyword(self, schema: Schema, key: str) -> list[Alternative]:
        value = schema[key]
        match key:
            case "type":
                return [Alternative()] if "object" in ([value] if isinstance(value, str) else value) else []
            case "properties":
                return self._settled(Alternative({n: (part,) for n, part in value.items()}, frozenset(value)))
            case "required":
                return [Alternative(required=frozenset(value))]
            case "minProperties":
                return [Alternative(least=int(value))]
            case "maxProperties":
                return [Alternative(most=int(value))]
            case "additionalProperties" | "unevaluatedProperties":
                self._only_named(value, key)
                closes = key == "additionalProperties" and value is not True and value != {}
                return [Alternative(closed=frozenset(schema.get("properties", ())) if closes else None)]
            case "propertyNames":
                return [Alternative(absent=frozenset(n for n in self._names if not self._judge.allows(value, n)))]
            case "const" | "enum":
                listed = value if key == "enum" else [value]
                return [a for v in listed if isinstance(v, Mapping) for a in self._exactly(v)]
            case "allOf":
                found = [Alternative()]
                for part in value:
                    found = self._both(found, self._of(part))
                return found
            case "anyOf":
                return self._each_once(a for part in value for a in self._of(part))
            case "oneOf":
                return self._one_of(value)
            case "not":
                return self._without(value)
            case "if":
                then, other = schema.get("then", True), schema.get("else", True)
                if {"then", "else"}.isdisjoint(schema):
                    return [Alternative()]
                yes = self._both(self._of(value), self._of(then))
                return self._each_once([*yes, *self._both(self._without(value), self._of(other))])
            case "dependentRequired" | "dependentSchemas":
                found = [Alternative()]
                for name, needs in value.items():
                    given = [Alternative(required=frozenset([name]))]
                    more = [Alternative(required=frozenset(needs))] if isinstance(needs, list) else self._of(needs)
                    found = self._both(found, [Alternative(absent=frozenset([name])), *self._both(given, more)])
                return found
            case "then" | "else":
                return [Alternative()]
        self._refuse_unknown(key)
        return [Alternative()]

    def _without_keyword(self, schema: Schema, key: str) -> list[Alternative]:
        value = schema[key]
        match key:
            case "type":
                return [] if "object" in ([value] if isinstance(value, str) else value) else [Alternative()]
            case "properties":
                parts = ((name, self._negated(part)) for name, part in value.items() if part is not True and part != {})
                wrong = (Alternative({name: (part,)}, required=frozenset([name])) for name, part in parts)
                return [a for one in wrong for a in self._settled(one)]
            case "required":
                return [Alternative(absent=frozenset([name])) for name in value]
            case "minProperties":
                return [Alternative(most=int(value) - 1)] if value else []
            case "maxProperties":
                return [Alternative(least=int(value) + 1)]
            case "additionalProperties":
                self._only_named(value, key)
                others = [n for n in self._names if n not in schema.get("properties", ())]
                open_ = value is True or value == {}
                return [] if open_ else [Alternative(required=frozenset([n])) for n in others]
            case "propertyNames":
                wrong_names = [n for n in self._names if not self._judge.allows(value, n)]
                return [Alternative(required=frozenset([n])) for n in wrong_names]
            case "allOf":
                return self._each_once(a for part in value for a in self._without(part))
            case "anyOf":
                found = [Alternative()]
                for part in value:
                    found = self._both(found, self._without(part))
                return found
            case "oneOf":
                none = self._without_keyword({"anyOf": value}, "anyOf")
                pairs = itertools.combinations([self._of(part) for part in value], 2)
                return self._each_once([*none, *(a for one, other in pairs for a in self._both(one, other))])
            case "not":
                return self._of(value)
            case "if":
                no_then, no_else = self._without(schema.get("then", True)), self._without(schema.get("else", True))
                yes = self._both(self._of(value), no_then)
                return self._each_once([*yes, *self._both(self._without(value), no_else)])
            case "dependentRequired" | "dependentSchemas":
                found = []
                for name, needs in value.items():
                    given = [Alternative(required=frozenset([name]))]
                    lacks = self._without({"required": needs} if isinstance(needs, list) else needs)
                    found += self._both(given, lacks)
                return self._each_once(found)
            case "then" | "else":
                return []
            case "const" | "enum" | "unevaluatedProperties":
                raise UserError(f"{self._where}: `{key}` of all arguments inside `not` or `oneOf` is not read.", APART)
        self._refuse_unknown(key)
        return []

    def _one_of(self, arms: Sequence[Any]) -> list[Alternative]:
        """Of each arm what no other one allows."""
        each = [self._of(arm) for arm in arms]
        found = []
        for i, own in enumerate(each):
            for k, arm in enumerate(arms):
                if k != i:
                    # What an alternative has in common with another arm is taken from it.
                    own = [a for one in own for a in self._apart(one, arm, each[k])]
            found += own
        return self._each_once(found)

    def _apart(self, one: Alternative, arm: Any, other: Sequence[Alternative]) -> list[Alternative]:
        """Of an alternative what another arm does not allow."""
        return self._both([one], self._without(arm)) if self._both([one], other) else [one]

    def _exactly(self, value: Mapping[str, Any]) -> list[Alternative]:
        properties = {name: (self._keep({"const": v}),) for name, v in value.items()}
        return [Alternative(properties, frozenset(value), frozenset(value), closed=frozenset(value))]

    def _only_named(self, value: Any, key: str) -> None:
        if isinstance(value, Mapping) and value and value != NOTHING:
            self._refuse(key)

    def _refuse_unknown(self, key: str) -> None:
        if key == "patternProperties":
            self._refuse(key)

    def _refuse(self, key: str) -> None:
        raise UserError(
            f"{self._where}: `{key}` gives a call arguments without names.",
            "List them under `properties`, or take them as one parameter that is an object.",
        )

    def _both(self, one: Sequence[Alternative], other: Sequence[Alternative]) -> list[Alternative]:
        """What holds where both do."""
        if other == [Alternative()]:
            return list(one)
        return self._each_once(a for x in one for y in other for a in self._joined(x, y))

    def _joined(self, one: Alternative, other: Alternative) -> list[Alternative]:
        self._did(1)
        properties = dict(one.properties)
        for name, parts in other.properties.items():
            properties[name] = tuple({id(p): p for p in (*properties.get(name, ()), *parts)}.values())
        closed = (
            one.closed if other.closed is None else other.closed if one.closed is None else one.closed & other.closed
        )
        return self._settled(
            Alternative(
                properties,
                one.given | other.given,
                one.required | other.required,
                one.absent | other.absent,
                closed,
                max(one.least, other.least),
                min(one.most, other.most),
            )
        )

    def _settled(self, one: Alternative) -> list[Alternative]:
        """It, without the arguments that can have no value; none where such a one is required."""
        never = {n for n, parts in one.properties.items() if n not in one.absent and self._listed(parts) == ()}
        absent = one.absent | never
        outside = set() if one.closed is None else one.required - one.closed
        return [] if absent & one.required or outside else [replace(one, absent=absent) if never else one]

    def _listed(self, parts: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The values that schemas of one argument leave, where one of them lists them."""
        key = tuple(map(id, parts))
        if key not in self._values:
            self._kept += parts
            least: Sequence[Any] | None = () if any(p is False or p == NOTHING for p in parts) else None
            if least is None and len(parts) > 1:
                listed = [v for p in parts if (v := listed_values(p))]
                least = min(listed, key=len, default=None)
            if least:
                rules = [p for p in parts if isinstance(p, Mapping) and constants(p) is not least]
                self._did(len(least) * len(rules))
                least = tuple(v for v in least if all(self._judge.allows(p, v) for p in rules))
            self._values[key] = None if least is None else tuple(least)
        return self._values[key]

    def _negated(self, part: Any) -> Any:
        if id(part) not in self._negations:
            self._negations[id(part)] = self._keep({"not": part})
        return self._negations[id(part)]

    def _keep(self, part: Any) -> Any:
        self._kept.append(part)
        return part

    def _counted(self, one: Alternative) -> list[Alternative]:
        """It as alternatives that need no count."""
        optional = [n for n in one.names() if n not in one.required]
        must, most = len(one.required), len(one.required) + len(optional)
        if one.least > most or one.most < must:
            return []
        found = [replace(one, least=0, most=math.inf)]
        if one.least > must:
            found = [
                replace(found[0], required=one.required | {*some}) for some in self._some(optional, one.least - must)
            ]
        if one.most < most:
            left_out = self._some(optional, most - int(one.most))
            found = [
                replace(a, absent=a.absent | {*some}) for a in found for some in left_out if not a.required & {*some}
            ]
        return found

    def _some(self, names: Sequence[str], count: int) -> list[tuple[str, ...]]:
        if math.comb(len(names), count) > MAX_ALTERNATIVES:
            self._refuse_many("`minProperties` or `maxProperties`")
        return list(itertools.combinations(names, count))

    def _each_once(self, found: Iterable[Alternative]) -> list[Alternative]:
        once: dict[Any, Alternative] = {}
        for a in found:
            parts = tuple(sorted((n, tuple(map(id, p))) for n, p in a.properties.items() if n not in a.absent))
            once.setdefault((parts, a.given, a.required, a.absent, a.closed, a.least, a.most), a)
            if len(once) > MAX_ALTERNATIVES:
                self._refuse_many(self._keyword)
        return list(once.values())

    def _did(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            self._refuse_many(self._keyword)

    def _refuse_many(self, what: str) -> None:
        raise UserError(f"{self._where}: {what} of all arguments makes too many alternatives of a call.", APART)


APART = "Make tools of the alternatives, or one parameter that is an object."
