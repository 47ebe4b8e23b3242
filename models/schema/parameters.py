"""Read a tool's parameters, each with its schema and domain, from the schema of all its arguments (the root schema).

Keywords of the root schema that restrict combinations of arguments (`oneOf`, `if`, `dependentRequired`, ...) become
`RootRules`; `combinations.py` lists what these allow. A call that violates them is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rtcontrol.models.errors import UserError, quoted_name
from rtcontrol.models.schema.definition import SHAPE_HINT
from rtcontrol.models.schema.domain import ClosedDomain, Domain, FreeDomain, domain_of
from rtcontrol.models.schema.json_schema import normal_form, without_null
from rtcontrol.models.schema.limits import SchemaBudget
from rtcontrol.models.schema.references import SchemaDocument
from rtcontrol.models.schema.validator import ANNOTATIONS, NO_VALUE, Validator, check_patterns, constant_values

VALUE_KEYWORDS = {"enum", "const", "anyOf", "oneOf", "allOf", "not", "if"}
CLOSING = ("additionalProperties", "unevaluatedProperties")
LIST_KEYWORDS = ("allOf", "anyOf", "oneOf")
BRANCH_KEYWORDS = ("then", "else")
# Keywords of the root schema that may restrict how arguments are combined.
COMBINING = {*LIST_KEYWORDS, "not", "if", *BRANCH_KEYWORDS, "dependentRequired", "dependentSchemas"}
COMBINING |= {"minProperties", "maxProperties", "propertyNames"}
# Keywords of the root schema that restrict nothing.
NEUTRAL = {"example", "type", "$comment", "deprecated", "readOnly", "writeOnly", "discriminator", "strict"}
NEUTRAL |= {*ANNOTATIONS}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a tool: its normalised JSON schema (with description), the domain of its values except null, and
    whether null is a legal value (`nullable`). Parameters with the same `group` share a head."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    domain: Domain
    nullable: bool
    group: str | None

    @property
    def values(self) -> Sequence[Any] | None:
        """Return all values if they are listed, else None."""
        return None if isinstance(self.domain, FreeDomain) else _with_null(self.domain.values, self.nullable)

    @property
    def rules(self) -> Mapping[str, Any]:
        """Return the schema that a value must satisfy."""
        local = self.domain.rules if isinstance(self.domain, FreeDomain) else None
        return self.schema if local is None else local


class ParameterReader:
    """Reads the root schema of one tool. `room` limits the total size of schemas."""

    def __init__(self, tool: str, room: SchemaBudget) -> None:
        self._where, self._room = f"Tool {quoted_name(tool)}", room

    def read(self, source: Any) -> tuple[tuple[Parameter, ...], RootRules | None]:
        """Return the parameters in head order, and the rules for combinations of arguments. Raises UserError."""
        root = self._read_root({} if source is None else source)
        properties, required = root.get("properties", {}), {*root.get("required", ())}
        self._check_properties(root)
        if missing := [name for name in sorted(required) if properties.get(name, False) in (False, NO_VALUE)]:
            why = "required, but not among its properties, or no value satisfies their schemas"
            raise UserError(f"{self._where}: {missing} are {why}.", "Add them to the properties.")
        parameters = [
            self._read_parameter(name, part, name in required) for name, part in properties.items() if part != NO_VALUE
        ]
        # Order of the heads: required parameters as declared, then optional parameters sorted by name.
        optional = sorted((p for p in parameters if not p.required), key=lambda p: p.name)
        return (*(p for p in parameters if p.required), *optional), RootRules.from_root(root, self._where)

    def _check_properties(self, root: Mapping[str, Any]) -> None:
        """Raise UserError if an argument is not listed in `properties`, or has no legal value."""
        if root == NO_VALUE:
            raise UserError(f"{self._where}: its `not` excludes every call.", "Relax it.")
        properties = root.get("properties", {})
        for name in (name for name, part in properties.items() if part is False):
            problem = f"{self._where}, parameter {name}: its schema is False."
            raise UserError(problem, "Write a JSON schema object, or remove the parameter.")
        unnamed = [key for key in CLOSING if isinstance(root.get(key), Mapping) and root[key] not in ({}, NO_VALUE)]
        unnamed += [key for key in ("patternProperties", "enum", "const") if root.get(key)]
        if unnamed:
            raise UserError(
                f"{self._where}: `{unnamed[0]}` allows arguments that are not listed in `properties`.",
                "List them in `properties`, or use one parameter that is an object.",
            )
        if more := sorted({name for part in subschemas(root) for name in part.get("properties", ())} - set(properties)):
            problem = f"{self._where}: its parameter {more[0]} is listed in alternatives only."
            raise UserError(problem, "List it in the tool's `properties`, too.")

    def _read_root(self, source: Any) -> dict[str, Any]:
        """Return the root schema without references, and with its unconditional parts merged."""
        root, kinds = {}, type(source).__name__
        if isinstance(source, Mapping):
            root = {key: value for key, value in source.items() if key != "nullable"}  # arguments are never null
            root = merge_all_of(SchemaDocument(root, self._where, self._room).without_references(call=True))
            kinds = root.get("type", "object")
        if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
            raise UserError(f"{self._where}: its parameters are of type {kinds!r}, not an object.", f"{SHAPE_HINT}.")
        return root

    def _read_parameter(self, name: str, source: Any, required: bool) -> Parameter:
        where = f"{self._where}, parameter {quoted_name(name)}"
        document = {} if source is True else source
        schema = _with_implied_type(normal_form(document, where))
        if not isinstance(schema.get("x-group", ""), str):
            raise UserError(f"{where}: x-group is {str(schema['x-group'])[:80]}.", "Write a string.")
        plain, nullable = without_null(schema)
        if plain.get("not") == {}:
            written = "'not'" in repr(document)
            problem = "its `not` excludes every value" if written else "no value satisfies all of its rules"
            raise UserError(f"{where}: {problem}.", "Relax the schema.")
        domain = domain_of(plain, where)
        if isinstance(domain, ClosedDomain):
            values = _with_null(domain.values, nullable)
            self._room.use(where, values=len(values))
            allowed = allowed_values(values, document, where, self._room)
            if allowed is None:
                domain = FreeDomain(plain)
            elif len(allowed) < len(values):
                if not allowed:
                    raise UserError(f"{where}: no value satisfies all of its rules.", "Relax the schema.")
                kind = {"type": t} if isinstance(t := plain.get("type"), str) and None not in allowed else {}
                schema = {**{k: v for k, v in schema.items() if k in ANNOTATIONS}, **kind, "enum": allowed}
                plain, nullable = without_null(schema)
                domain = domain_of(plain, where)
        if isinstance(domain, FreeDomain):
            check_patterns(document, where)
            domain = replace(domain, rules=document)  # stricter than `plain`, where `oneOf` and `allOf` are merged
            nullable = nullable and domain.validator.accepts(None)
        check_encodable({name: schema}, where)
        return Parameter(name, schema, required, domain, nullable, schema.get("x-group"))


def check_encodable(value: Any, where: str) -> None:
    """Raise UserError if a value cannot be written as JSON in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:  # UnicodeError is a ValueError
        problem = "half a character (a lone surrogate)" if isinstance(error, UnicodeError) else "a value not in JSON"
        raise UserError(
            f"{where}: it contains {problem}.", "Use whole characters, finite numbers, lists and objects."
        ) from None


def _with_null(values: Sequence[Any], nullable: bool) -> list[Any]:
    return [*values, *[None] * (nullable and not any(v is None for v in values))]


def _with_implied_type(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the type "object" or "array" to a schema without a type, if its keywords imply it."""
    if "type" not in schema and VALUE_KEYWORDS.isdisjoint(schema):
        for kind, keys in (("object", ("properties",)), ("array", ("items", "prefixItems"))):
            if any(isinstance(schema.get(key), Mapping | list) for key in keys):
                return {"type": kind, **schema}
    return schema


@dataclass(frozen=True)
class RootRules:
    """The rules for combinations of arguments: the keywords as `written` in the root schema, and a schema `document`
    with these rules, which the arguments of a call must satisfy. `where` names the tool in errors."""

    written: Mapping[str, Any]
    document: Mapping[str, Any]
    where: str

    @classmethod
    def from_root(cls, root: Mapping[str, Any], where: str) -> RootRules | None:
        """Return the rules of a root schema without references, or None if it has none."""
        written = {key: value for key, value in root.items() if key not in {"properties", "required", *NEUTRAL}}
        rules = {key: value for key, value in written.items() if key in COMBINING}
        if not rules:
            return None
        closing = {key: root[key] for key in CLOSING if root.get(key) in (False, NO_VALUE)}
        return cls(written, {**rules, **closing, "properties": dict.fromkeys(root.get("properties", ()), True)}, where)

    @cached_property
    def _validator(self) -> Validator:
        return Validator(self.document, self.where)

    def violation(self, arguments: Mapping[str, Any]) -> str | None:
        """Return why these arguments may not be combined, in a few words; None if they may."""
        fault = self._validator.violation(dict(arguments))
        return None if fault is None else f"its arguments violate {self.keywords} ({fault})"

    @property
    def keywords(self) -> str:
        """Return the keywords of these rules as text for messages."""
        return ", ".join(f"`{key}`" for key in self.written)


def subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its subschemas that may apply to the same arguments, except `if` and `not`."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    several = (part for key in LIST_KEYWORDS for part in schema.get(key, ()))
    single = (schema[key] for key in BRANCH_KEYWORDS if key in schema)
    for part in (*several, *single, *schema.get("dependentSchemas", {}).values()):
        yield from subschemas(part)


def merge_all_of(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a root schema in which the parts of `allOf` that only declare arguments are merged with the schema."""
    whole = {k: v for k, v in root.items() if k != "allOf" and not (k in CLOSING and v in (True, {}))}
    closed = not whole.keys().isdisjoint(CLOSING)
    apart = []
    for part in root.get("allOf", ()):
        inner = merge_all_of(part) if isinstance(part, Mapping) else part
        named = isinstance(inner, Mapping) and inner.keys() <= {"properties", "required", *NEUTRAL}
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


def count_rules(rules: Any) -> int:
    """Return how many keywords and subschemas a validation checks. A list of constants counts as one keyword."""
    if isinstance(rules, Mapping):
        return 1 + sum(count_rules(v) for k, v in rules.items() if k not in ("enum", "const", *ANNOTATIONS))
    if isinstance(rules, list | tuple):
        return sum(count_rules(v) for v in rules if constant_values(v) is None)
    return 0


# The values of a domain are listed by these keywords, so each value satisfies them.
NUMBERS = {"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
ARRAYS = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}
OBJECTS = {"properties", "required", "additionalProperties"}


def always_satisfied(document: Any) -> bool:
    """Return whether the listed values of a schema satisfy all its keywords, so that no check is needed."""
    if not isinstance(document, Mapping):
        return isinstance(document, bool)
    keywords = document.keys() - {*ANNOTATIONS}
    if keywords <= {"enum"} or keywords <= {"const"}:
        return True
    if not keywords <= {"type", *NUMBERS, *ARRAYS, *OBJECTS} or not isinstance(document.get("type"), str):
        return False
    inner = [*document.get("properties", {}).values(), *document.get("prefixItems", ()), document.get("items", True)]
    return {*document.get("required", ())} <= {*document.get("properties", ())} and all(map(always_satisfied, inner))


def allowed_values(
    values: Sequence[Any], document: Mapping[str, Any], where: str, room: SchemaBudget
) -> list[Any] | None:
    """Return the `values` that satisfy the whole schema `document`, or None if this would take more checks than `room`
    allows. Raises UserError for an unsupported pattern."""
    if always_satisfied(document):
        return list(values)
    if not room.use_checks(len(values) * count_rules(document)):
        return None
    judge = Validator(document, where)
    allowed = [v for v in values if judge.accepts(v)]
    other = [] if len(allowed) == len(values) else [v for v in values if v is not None and not judge.accepts(v)]
    if document.keys() - {*ANNOTATIONS} <= {"type", "enum"} and other:
        kind = document["type"]
        raise UserError(f"{where}: the value {other[0]!r} is not of type {kind}.", f"List values of type {kind} only.")
    return allowed
