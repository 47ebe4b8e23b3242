"""What a tool's root schema says of several arguments at once: `oneOf`, `if`, `dependentRequired`, `minProperties`...

Each argument is decoded by itself, and a whole call is judged by these rules: one that breaks them is no call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.validator import ABOUT, NOTHING, Validator, constants

ARMS = ("anyOf", "oneOf")
BRANCHES = ("then", "else")
CLOSING = ("additionalProperties", "unevaluatedProperties")
# Says nothing of which arguments stand together.
SILENT = {*ABOUT, "example", "type", "$comment", "deprecated", "readOnly", "writeOnly", "discriminator", "strict"}
RULES = {"allOf", *ARMS, "not", "if", *BRANCHES, "dependentRequired", "dependentSchemas"}
RULES |= {"minProperties", "maxProperties", "propertyNames", "const", "enum"}


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
