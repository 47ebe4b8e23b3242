"""A tool's parameters, read from the schema of all its arguments: each one's own schema and domain, and which of them
depend on each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.alternatives import SILENT, Alternative, alternatives, kept_values, named
from rtcontrol.models.schema.definition import SHAPE, TYPES
from rtcontrol.models.schema.domain import ClosedDomain, Domain, Free, domain_of
from rtcontrol.models.schema.json_schema import in_one_way, without_null
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.references import DEFINITIONS, KNOWN, SchemaDocument
from rtcontrol.models.schema.validator import ABOUT, NOTHING, check_patterns

PLAIN = {"type", "properties", "required", *ABOUT}  # what says nothing of several arguments at once
CLOSING = ("additionalProperties", "unevaluatedProperties")
COMBINED = {"enum", "const", "anyOf", "oneOf", "allOf", "not", "if"}


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


@dataclass(frozen=True)
class RootRules:
    """What a tool's root schema says of several arguments at once: the keywords that say it, and the alternatives that
    they leave of the arguments that depend on others."""

    written: Mapping[str, Any]
    alternatives: tuple[tuple[Parameter, ...], ...]
    never: tuple[str, ...] = ()  # described, and given by no call: what asks for them has to know them

    @property
    def names(self) -> frozenset[str]:
        """The arguments that depend on others."""
        return frozenset(p.name for own in self.alternatives for p in own)

    def allow(self, arguments: Mapping[str, Any], takes: Callable[[Parameter, Any], bool]) -> bool:
        """Whether arguments may stand together; `takes` tells whether a parameter has a value."""
        given = {name: value for name, value in arguments.items() if name in self.names}
        return any(
            {p.name for p in own if p.required} <= set(given) <= {p.name for p in own}
            and all(takes(p, given[p.name]) for p in own if p.name in given)
            for own in self.alternatives
        )

    @property
    def keywords(self) -> str:
        """The keywords, for people."""
        return ", ".join(f"`{key}`" for key in self.written)


class Reading:
    """Reads the root schema of one tool."""

    def __init__(self, tool: str, room: Room) -> None:
        self._tool, self._where, self._room = tool, f"Tool {tool[:64]}", room
        self._read: dict[Any, tuple[Any, Parameter]] = {}

    def read(self, given: Any) -> tuple[tuple[Parameter, ...], RootRules | None]:
        """The parameters in head order, and what is said of several at once. Raises UserError."""
        root = self._root({} if given is None else given)
        declared = root.get("properties", {})
        names = {*declared, *named(root)}
        self._check_defined(root.get("required", ()), names)
        for name in (name for name, part in declared.items() if part is False):
            told = f"{self._where}, parameter {name}: its schema is False."
            raise UserError(told, "Write a JSON schema object, or leave the parameter out.")
        left = alternatives(root, self._where)
        if not left:
            told = "no call satisfies all rules of its arguments"
            told = "its `not` excludes every call" if root == NOTHING else told
            never = [n for n in root.get("required", ()) if declared.get(n) == NOTHING]
            told = f"parameter {never[0]} is required, and its `not` excludes every value" if never else told
            raise UserError(f"{self._where}: {told}.", "Loosen them.")
        self._check_defined(sorted({n for a in left for n in a.required}), names)
        tied = _tied(left)
        always = frozenset.intersection(*(a.required for a in left))
        own = {n: None for a in left for n in a.names()}
        first = [n for n in declared if n in always]
        order = [*first, *sorted(always - {*first}), *sorted(n for n in own if n not in always)]
        parameters = tuple(self._one(n, left, n in always, n in tied, declared) for n in order)
        if not tied:
            return parameters, None
        each = {}
        for a in left:
            listed = tuple(n for n in order if n in tied and n in a.names())
            key = tuple((n, n in a.required, tuple(map(id, a.properties.get(n, ())))) for n in listed)
            each[key] = tuple(self._parameter(n, a.properties.get(n, ()), n in a.required) for n in listed)
        keywords = {k: v for k, v in root.items() if k not in PLAIN | SILENT}
        ungiven = tuple(n for n in declared if n not in order)
        return parameters, RootRules(keywords, tuple(each.values()), ungiven)

    def _check_defined(self, required: Iterable[str], names: Collection[str]) -> None:
        if missing := [r for r in required if r not in names]:
            raise UserError(f"{self._where}: {missing} are required but not among its properties.", "Define them.")

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
        for key in (key for key in given if key not in KNOWN):
            value, names = given[key], set(given.get("properties") or ())
            listed = (
                str(key).lower().startswith("req") and isinstance(value, list) and names.issuperset(map(str, value))
            )
            if listed or (isinstance(value, str) and value in TYPES):
                told = f"{self._where}: its key `{key}` is not read, and seems to speak of parameters."
                raise UserError(told, f"{SHAPE}, or take the key away.")
        for key in DEFINITIONS:
            if not isinstance(given.get(key) or {}, Mapping):
                raise UserError(f"{self._where}: {key} is {repr(given[key])[:80]}.", "Map each name to its schema.")
        return _together(SchemaDocument(given, self._where, self._room).plain(call=True))

    def _one(
        self, name: str, left: Sequence[Alternative], required: bool, tied: bool, declared: Mapping[str, Any]
    ) -> Parameter:
        """A parameter as it is shown: whatever else is given."""
        each = {
            tuple(map(id, a.properties.get(name, ()))): a.properties.get(name, ()) for a in left if a.may_give(name)
        }
        if tied and name in declared:
            parts: tuple[Any, ...] = (declared[name],)  # what holds in any case
        elif len(each) == 1:
            (parts,) = each.values()
        else:
            parts = ({"anyOf": [_all(own) for own in each.values()]},)
        return replace(self._parameter(name, parts, required), declared=name in declared or not tied)

    def _parameter(self, name: str, parts: Sequence[Any], required: bool) -> Parameter:
        key = name, tuple(map(id, parts))
        if key not in self._read:
            found = self._of_schema(name, _all(parts))
            if len(parts) > 1 and isinstance(found.domain, ClosedDomain):
                first = self._of_schema(name, parts[0])
                # What takes no value away is not written.
                found = first if (first.domain, first.nullable) == (found.domain, found.nullable) else found
            self._read[key] = parts, found  # the parts are kept, for their ids
        return replace(self._read[key][1], required=required)

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
            if len(kept := kept_values(values, document, where, self._room)) < len(values):
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


def _together(root: Mapping[str, Any]) -> dict[str, Any]:
    """A root schema with those parts of its `allOf` laid into it that say the same there."""
    found = {k: v for k, v in root.items() if k != "allOf" and not (k in CLOSING and v in (True, {}))}
    apart = []
    for part in root.get("allOf", ()):
        inner = _together(part) if isinstance(part, Mapping) else part
        if not isinstance(inner, Mapping) or not _fits_in(inner, found):
            apart.append(inner)
            continue
        for key, value in inner.items():
            if key == "properties":
                both = {
                    n: {"allOf": [found["properties"][n], v]} if n in found.get(key, {}) else v
                    for n, v in value.items()
                }
                found[key] = {**found.get(key, {}), **both}
            elif key == "required":
                found[key] = list(dict.fromkeys((*found.get(key, ()), *value)))
            elif key not in found:
                found[key] = value
    return {**found, "allOf": apart} if apart else found


def _fits_in(part: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    if part.get("type", "object") != "object":
        return False
    said = set(part) - PLAIN - SILENT
    if {*CLOSING} & set(root):
        return not said and set(part.get("properties", ())) <= set(root.get("properties", ()))
    return said.isdisjoint({*root, *CLOSING})


def _tied(left: Sequence[Alternative]) -> frozenset[str]:
    """The arguments that depend on others: they are not the same in all alternatives."""
    ways: dict[str, set[Any]] = {n: set() for a in left for n in a.names()}
    for a in left:
        may = set(a.names())
        for name, own in ways.items():
            own.add(
                (name in may, name in a.required, tuple(map(id, a.properties.get(name, ()))) if name in may else ())
            )
    found = frozenset(name for name, own in ways.items() if len(own) > 1)
    # One alone depends on none: its values are those of all alternatives.
    return found if len(found) > 1 else frozenset()


def _with_null(values: Sequence[Any], nullable: bool) -> list[Any]:
    return [*values, *[None] * (nullable and not any(v is None for v in values))]


def _all(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else {"allOf": list(parts)} if parts else {}


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """With its type, where only one can be meant."""
    if "type" not in schema and COMBINED.isdisjoint(schema):
        for kind, keys in (("object", ("properties",)), ("array", ("items", "prefixItems"))):
            if any(isinstance(schema.get(key), Mapping | list) for key in keys):
                return {"type": kind, **schema}
    return schema
