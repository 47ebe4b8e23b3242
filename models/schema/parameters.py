"""A tool's parameters, read from the schema of all its arguments: each one's own schema and domain.

What a root schema says of several arguments at once (`oneOf`, `if`, `dependentRequired`, `minProperties` ...) judges a
whole call: each argument is decoded by itself, and a call that breaks a rule is no call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import SHAPE
from rtcontrol.models.schema.domain import ClosedDomain, Domain, Free, domain_of
from rtcontrol.models.schema.json_schema import in_one_way, without_null
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.references import DEFINITIONS, SchemaDocument
from rtcontrol.models.schema.validator import ABOUT, NOTHING, Validator, check_patterns, constants

COMBINED = {"enum", "const", "anyOf", "oneOf", "allOf", "not", "if"}
ARMS = ("anyOf", "oneOf")
BRANCHES = ("then", "else")
CLOSING = ("additionalProperties", "unevaluatedProperties")
# Says nothing of which arguments stand together.
SILENT = {*ABOUT, "example", "type", "$comment", "deprecated", "readOnly", "writeOnly", "discriminator", "strict"}
RULES = {"allOf", *ARMS, "not", "if", *BRANCHES, "dependentRequired", "dependentSchemas"}
RULES |= {"minProperties", "maxProperties", "propertyNames", "const", "enum"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool: its own normalised JSON schema (with description), and what follows from it: the domain
    of its values but null, and whether null is one (`nullable`). `declared`: whether it stands among the properties, or
    in alternatives alone."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    domain: Domain
    nullable: bool
    group: str | None
    declared: bool = True

    @property
    def values(self) -> Sequence[Any] | None:
        """All of them, where they are listed."""
        return None if isinstance(self.domain, Free) else _with_null(self.domain.values, self.nullable)

    @property
    def rules(self) -> Mapping[str, Any]:
        """What a value must satisfy."""
        own = self.domain.rules if isinstance(self.domain, Free) else None
        return self.schema if own is None else own


class Reading:
    """Reads the root schema of one tool."""

    def __init__(self, tool: str, room: Room) -> None:
        self._tool, self._where, self._room = tool, f"Tool {tool[:64]}", room

    def read(self, given: Any) -> tuple[tuple[Parameter, ...], RootRules | None]:
        """Return the parameters in head order, and what is said of several at once. Raises UserError."""
        root = self._root({} if given is None else given)
        declared = root.get("properties", {})
        check_named(root, self._where)
        for name in (name for name, part in declared.items() if part is False):
            what = f"{self._where}, parameter {name}: its schema is False."
            raise UserError(what, "Write a JSON schema object, or leave the parameter out.")
        if root == NOTHING:
            raise UserError(f"{self._where}: its `not` excludes every call.", "Loosen it.")
        schemas, required = described(root), required_always(root)
        if root.get("additionalProperties") in (False, NOTHING):
            schemas = {name: each for name, each in schemas.items() if name in declared}
        if missing := [name for name in sorted(required) if name not in schemas]:
            why = "required, but not among its properties, or no value satisfies them"
            raise UserError(f"{self._where}: {missing} are {why}.", "Define them.")
        order = dict.fromkeys((*(name for name in declared if name in schemas), *schemas))
        found = {n: self._parameter(n, declared.get(n), schemas[n], n in required) for n in order}
        rules = RootRules.of(root)
        if rules is not None:
            found = {n: replace(p, declared=n in declared) for n, p in found.items()}
        return _in_order(found, declared), rules

    def _root(self, given: Any) -> dict[str, Any]:
        """The schema of all arguments: without references, what holds in any case laid together."""
        kinds = given.get("type") if isinstance(given, Mapping) else type(given).__name__
        kinds = kinds.lower() if isinstance(kinds, str) and kinds.isupper() else kinds
        fits = kinds is None or kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
        if not isinstance(given, Mapping) or not fits:
            raise UserError(f"{self._where}: its parameters are of type {kinds!r}, no object.", f"{SHAPE}.")
        if not isinstance(given.get("properties") or {}, Mapping):
            raise UserError(f"{self._where}: its properties are no JSON object.", "Map each parameter to its schema.")
        required = given.get("required") or []
        if not isinstance(required, list | tuple) or not all(isinstance(r, str) for r in required):
            raise UserError(
                f"{self._where}: `required` is {repr(required)[:80]}.", "Write a list of parameters' names."
            )
        for key in DEFINITIONS:
            if not isinstance(given.get(key) or {}, Mapping):
                raise UserError(f"{self._where}: {key} is {repr(given[key])[:80]}.", "Map each name to its schema.")
        return together(SchemaDocument(given, self._where, self._room).plain(call=True))

    def _parameter(self, name: str, declared: Any, schemas: Sequence[Any], required: bool) -> Parameter:
        """A parameter as it is shown: as it is declared, or any of what alternatives say."""
        if declared is None:
            each = {json.dumps(part, sort_keys=True, default=repr): part for part in schemas if part is not False}
            declared = {"anyOf": [*each.values()]} if len(each) > 1 else next(iter(each.values()))
        return replace(self._of_schema(name, declared), required=required)

    def _of_schema(self, name: str, given: Any) -> Parameter:
        where = f"Tool {self._tool}, parameter {name}"
        document = {} if given is True else given
        schema = _typed(in_one_way(document, where))
        if not isinstance(schema.get("x-group", ""), str):
            raise UserError(f"{where}: x-group is {str(schema['x-group'])[:80]}.", "Write a name: a string.")
        plain, nullable = without_null(schema)
        if plain.get("not") == {}:
            written = "'not'" in repr(document)
            told = "its `not` excludes every value" if written else "no value satisfies all of its rules"
            raise UserError(f"{where}: {told}.", "Loosen it.")
        domain = domain_of(plain, where)
        if isinstance(domain, ClosedDomain):
            values = _with_null(domain.values, nullable)
            self._room.take(where, values=len(values))
            kept = kept_values(values, document, where, self._room)
            if kept is None:
                domain = Free(plain)
            elif len(kept) < len(values):
                if not kept:
                    raise UserError(f"{where}: no value satisfies all of its rules.", "Loosen them.")
                kind = {"type": t} if isinstance(t := plain.get("type"), str) and None not in kept else {}
                schema = {**{k: v for k, v in schema.items() if k in ABOUT}, **kind, "enum": kept}
                plain, nullable = without_null(schema)
                domain = domain_of(plain, where)
        if isinstance(domain, Free):
            check_patterns(document, where)
            domain = replace(domain, rules=document)  # which says what is lost of `oneOf` and `allOf` in one schema
            nullable = nullable and domain.judge.takes(None)
        check_spelled({name: schema}, where)
        return Parameter(name, schema, False, domain, nullable, schema.get("x-group"))


def check_spelled(value: Any, where: str) -> None:
    """UserError for what JSON cannot write, or UTF-8 cannot encode."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:  # of which an encoding error is one
        what = "half a character (a lone surrogate)" if isinstance(error, UnicodeError) else "what JSON cannot write"
        raise UserError(
            f"{where}: it holds {what}.", "Use whole characters, finite numbers, lists and objects."
        ) from None


def _in_order(found: Mapping[str, Parameter], declared: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Head order: required parameters as they are declared, then optional ones by their names."""
    place = {n: i for i, n in enumerate(declared)}
    needed = [p for p in found.values() if p.required]
    needed.sort(key=lambda p: (place.get(p.name, len(place)), p.name))
    return (*needed, *sorted((p for p in found.values() if not p.required), key=lambda p: p.name))


def _with_null(values: Sequence[Any], nullable: bool) -> list[Any]:
    return [*values, *[None] * (nullable and not any(v is None for v in values))]


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """With its type, where only one can be meant."""
    if "type" not in schema and COMBINED.isdisjoint(schema):
        for kind, keys in (("object", ("properties",)), ("array", ("items", "prefixItems"))):
            if any(isinstance(schema.get(key), Mapping | list) for key in keys):
                return {"type": kind, **schema}
    return schema


@dataclass(frozen=True)
class RootRules:
    """The rules of one tool: the keywords that say them as `written`, and the schema of a call that keeps them."""

    written: Mapping[str, Any]
    document: Mapping[str, Any]

    @classmethod
    def of(cls, root: Mapping[str, Any]) -> RootRules | None:
        """Return the rules of a root schema without references, None where it has none."""
        rules = {key: value for key, value in root.items() if key in RULES}
        if not rules:
            return None
        closing = {key: root[key] for key in CLOSING if root.get(key) in (False, NOTHING)}
        written = {key: value for key, value in root.items() if key not in {"properties", "required", *SILENT}}
        return cls(written, {**rules, **closing, "properties": dict.fromkeys(root.get("properties", ()), True)})

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
    """Return by argument the schemas that a root and its parts have for it, but those that take no value."""
    found: dict[str, list[Any]] = {}
    for part in parts(root):
        listed = [*part.get("enum", ()), *([part["const"]] if "const" in part else ())]
        each = [(name, {"const": one}) for value in listed if isinstance(value, Mapping) for name, one in value.items()]
        for name, one in [*each, *part.get("properties", {}).items()]:
            if one not in (False, NOTHING):
                found.setdefault(name, []).append(one)
    return found


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


def together(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a root schema with those parts of its `allOf` laid into it that name arguments alone."""
    found = {k: v for k, v in root.items() if k != "allOf" and not (k in CLOSING and v in (True, {}))}
    apart = []
    for part in root.get("allOf", ()):
        inner = together(part) if isinstance(part, Mapping) else part
        if not _names_alone(inner, found):
            apart.append(inner)
            continue
        known = dict(found.get("properties", {}))
        for name, own in inner.get("properties", {}).items():
            known[name] = {"allOf": [known[name], own]} if name in known else own
        found["properties"] = known
        found["required"] = list(dict.fromkeys((*found.get("required", ()), *inner.get("required", ()))))
    return {**found, "allOf": apart} if apart else found


def _names_alone(part: Any, root: Mapping[str, Any]) -> bool:
    """Whether a part says which arguments there are and no more, in a root that lets it."""
    if not isinstance(part, Mapping) or part.get("type", "object") != "object":
        return False
    closed = not root.keys().isdisjoint(CLOSING)
    names = part.get("properties", {}).keys()
    return part.keys() <= {"properties", "required", *SILENT} and not (closed and names - root.get("properties", {}))


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
