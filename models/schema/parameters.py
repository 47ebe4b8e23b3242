"""A tool's parameters, read from the schema of all its arguments: each one's own schema and domain, and which of them
depend on each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import SHAPE
from rtcontrol.models.schema.domain import ClosedDomain, Domain, Free, domain_of
from rtcontrol.models.schema.json_schema import in_one_way, without_null
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.references import DEFINITIONS, SchemaDocument
from rtcontrol.models.schema.root_rules import (
    RootRules,
    check_named,
    described,
    kept_values,
    required_always,
    together,
)
from rtcontrol.models.schema.validator import ABOUT, NOTHING, check_patterns

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
