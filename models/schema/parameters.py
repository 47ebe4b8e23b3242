"""Read a tool's parameters from the schema of all its arguments: the schema and domain of each.

Rules of the root schema over several arguments (`oneOf`, `if`, `dependentRequired`, `minProperties` ...) apply to a
whole call: each argument is decoded separately, and a call that breaks a rule is refused.
"""

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
from rtcontrol.models.schema.references import SchemaDocument
from rtcontrol.models.schema.validator import ABOUT, NOTHING, Validator, check_patterns, constants

COMBINED = {"enum", "const", "anyOf", "oneOf", "allOf", "not", "if"}
CLOSING = ("additionalProperties", "unevaluatedProperties")
ARMS = ("allOf", "anyOf", "oneOf")
BRANCHES = ("then", "else")
# Says which arguments stand together.
TOGETHER = {*ARMS, "not", "if", *BRANCHES, "dependentRequired", "dependentSchemas"}
TOGETHER |= {"minProperties", "maxProperties", "propertyNames"}
# Says nothing of which arguments stand together.
SILENT = {*ABOUT, "example", "type", "$comment", "deprecated", "readOnly", "writeOnly", "discriminator", "strict"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool: its normalised JSON schema (with description), the domain of its values except null, and
    whether null is one (`nullable`)."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    domain: Domain
    nullable: bool
    group: str | None

    @property
    def values(self) -> Sequence[Any] | None:
        """Return all values if they are listed."""
        return None if isinstance(self.domain, Free) else _with_null(self.domain.values, self.nullable)

    @property
    def rules(self) -> Mapping[str, Any]:
        """Return the schema that a value must satisfy."""
        local = self.domain.rules if isinstance(self.domain, Free) else None
        return self.schema if local is None else local


class Reading:
    """Reads the root schema of one tool."""

    def __init__(self, tool: str, room: Room) -> None:
        self._tool, self._where, self._room = tool, f"Tool {tool[:64]}", room

    def read(self, source: Any) -> tuple[tuple[Parameter, ...], RootRules | None]:
        """Return the parameters in head order, and the rules over several of them. Raises UserError."""
        root = self._root({} if source is None else source)
        properties, required = root.get("properties", {}), {*root.get("required", ())}
        self._check_named(root)
        if missing := [name for name in sorted(required) if properties.get(name, False) in (False, NOTHING)]:
            why = "required, but not among its properties, or no value satisfies them"
            raise UserError(f"{self._where}: {missing} are {why}.", "Define them.")
        parameters = [
            self._parameter(name, part, name in required) for name, part in properties.items() if part != NOTHING
        ]
        # Head order: required parameters as they are declared, then optional ones by their names.
        optional = sorted((p for p in parameters if not p.required), key=lambda p: p.name)
        return (*(p for p in parameters if p.required), *optional), RootRules.of(root)

    def _check_named(self, root: Mapping[str, Any]) -> None:
        """Raise UserError for arguments that are not among the properties, or that have no value."""
        if root == NOTHING:
            raise UserError(f"{self._where}: its `not` excludes every call.", "Loosen it.")
        properties = root.get("properties", {})
        for name in (name for name, part in properties.items() if part is False):
            problem = f"{self._where}, parameter {name}: its schema is False."
            raise UserError(problem, "Write a JSON schema object, or leave the parameter out.")
        unnamed = [key for key in CLOSING if isinstance(root.get(key), Mapping) and root[key] not in ({}, NOTHING)]
        unnamed += [key for key in ("patternProperties", "enum", "const") if root.get(key)]
        if unnamed:
            raise UserError(
                f"{self._where}: `{unnamed[0]}` gives a call arguments without names.",
                "List them under `properties`, or take them as one parameter that is an object.",
            )
        if more := sorted({name for part in parts(root) for name in part.get("properties", ())} - set(properties)):
            problem = f"{self._where}: its parameter {more[0]} is in alternatives only."
            raise UserError(problem, "List it under the tool's `properties`, too.")

    def _root(self, source: Any) -> dict[str, Any]:
        """Return the schema of all arguments without references, with unconditional parts merged."""
        kinds = source.get("type") if isinstance(source, Mapping) else type(source).__name__
        if not isinstance(source, Mapping) or "object" not in (
            [kinds] if isinstance(kinds, str) else kinds or ["object"]
        ):
            raise UserError(f"{self._where}: its parameters are of type {kinds!r}, not an object.", f"{SHAPE}.")
        root = {key: value for key, value in source.items() if key != "nullable"}  # a call has arguments, or none
        return together(SchemaDocument(root, self._where, self._room).plain(call=True))

    def _parameter(self, name: str, source: Any, required: bool) -> Parameter:
        where = f"Tool {self._tool}, parameter {name}"
        document = {} if source is True else source
        schema = _typed(in_one_way(document, where))
        if not isinstance(schema.get("x-group", ""), str):
            raise UserError(f"{where}: x-group is {str(schema['x-group'])[:80]}.", "Write a name: a string.")
        plain, nullable = without_null(schema)
        if plain.get("not") == {}:
            written = "'not'" in repr(document)
            problem = "its `not` excludes every value" if written else "no value satisfies all of its rules"
            raise UserError(f"{where}: {problem}.", "Loosen it.")
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
        return Parameter(name, schema, required, domain, nullable, schema.get("x-group"))


def check_spelled(value: Any, where: str) -> None:
    """Raise UserError for values that JSON or UTF-8 cannot write."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:  # of which an encoding error is one
        problem = "half a character (a lone surrogate)" if isinstance(error, UnicodeError) else "what JSON cannot write"
        raise UserError(
            f"{where}: it holds {problem}.", "Use whole characters, finite numbers, lists and objects."
        ) from None


def _with_null(values: Sequence[Any], nullable: bool) -> list[Any]:
    return [*values, *[None] * (nullable and not any(v is None for v in values))]


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the type to a schema where only one is possible."""
    if "type" not in schema and COMBINED.isdisjoint(schema):
        for kind, keys in (("object", ("properties",)), ("array", ("items", "prefixItems"))):
            if any(isinstance(schema.get(key), Mapping | list) for key in keys):
                return {"type": kind, **schema}
    return schema


@dataclass(frozen=True)
class RootRules:
    """The rules over several arguments of a tool: the keywords as `written`, and the schema of a valid call."""

    written: Mapping[str, Any]
    document: Mapping[str, Any]

    @classmethod
    def of(cls, root: Mapping[str, Any]) -> RootRules | None:
        """Return the rules of a root schema without references, None where it has none."""
        written = {key: value for key, value in root.items() if key not in {"properties", "required", *SILENT}}
        rules = {key: value for key, value in written.items() if key in TOGETHER}
        if not rules:
            return None
        closing = {key: root[key] for key in CLOSING if root.get(key) in (False, NOTHING)}
        return cls(written, {**rules, **closing, "properties": dict.fromkeys(root.get("properties", ()), True)})

    @cached_property
    def _judge(self) -> Validator:
        return Validator(self.document, "the arguments of a call")

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        """Return why the arguments may not be combined; None where they may."""
        fault = self._judge.fault(dict(arguments))
        return None if fault is None else f"its arguments may not stand together by {self.keywords} ({fault})"

    @property
    def keywords(self) -> str:
        """Return the keywords, for people."""
        return ", ".join(f"`{key}`" for key in self.written)


def parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and those within that may apply to the same arguments, except conditions and exclusions."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    several = (part for key in ARMS for part in schema.get(key, ()))
    single = (schema[key] for key in BRANCHES if key in schema)
    for part in (*several, *single, *schema.get("dependentSchemas", {}).values()):
        yield from parts(part)


def together(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a root schema merged with those parts of its `allOf` that only name arguments."""
    whole = {k: v for k, v in root.items() if k != "allOf" and not (k in CLOSING and v in (True, {}))}
    closed = not whole.keys().isdisjoint(CLOSING)
    apart = []
    for part in root.get("allOf", ()):
        inner = together(part) if isinstance(part, Mapping) else part
        named = isinstance(inner, Mapping) and inner.keys() <= {"properties", "required", *SILENT}
        if not named or inner.get("type", "object") != "object":
            apart.append(inner)
            continue
        properties = dict(whole.get("properties", {}))
        if closed and inner.get("properties", {}).keys() - properties.keys():
            apart.append(inner)
            continue
        for name, schema in inner.get("properties", {}).items():
            properties[name] = {"allOf": [properties[name], schema]} if name in properties else schema
        required = dict.fromkeys((*whole.get("required", ()), *inner.get("required", ())))
        whole |= {"properties": properties, "required": [*required]}
    return {**whole, "allOf": apart} if apart else whole


def weight(rules: Any) -> int:
    """Return how many parts of a schema are checked one by one; a list of constants counts as one."""
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
    """Return whether all listed values of a schema satisfy its rules."""
    if not isinstance(document, Mapping):
        return isinstance(document, bool)
    keywords = document.keys() - {*ABOUT}
    if keywords <= {"enum"} or keywords <= {"const"}:
        return True
    if not keywords <= {"type", *NUMBERS, *ARRAYS, *OBJECTS} or not isinstance(document.get("type"), str):
        return False
    inner = [*document.get("properties", {}).values(), *document.get("prefixItems", ()), document.get("items", True)]
    return {*document.get("required", ())} <= {*document.get("properties", ())} and all(map(kept_by_listing, inner))


def kept_values(values: Sequence[Any], document: Mapping[str, Any], where: str, room: Room) -> list[Any] | None:
    """Return the listed values that all rules of their `document`, a schema without references, allow.

    Returns None where too few checks are left. Raises UserError for a pattern that cannot be searched for.
    """
    if kept_by_listing(document):
        return list(values)
    if not room.checked(len(values) * weight(document)):
        return None
    judge = Validator(document, where)
    kept = [v for v in values if judge.takes(v)]
    other = [] if len(kept) == len(values) else [v for v in values if v is not None and not judge.takes(v)]
    if document.keys() - {*ABOUT} <= {"type", "enum"} and other:
        kind = document["type"]
        raise UserError(f"{where}: the value {other[0]!r} is not of type {kind}.", f"List values of type {kind} only.")
    return kept
