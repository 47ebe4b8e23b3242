"""The alternatives of a schema, laid flat: each is one schema with all that holds of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from rtcontrol.models.normal import BOTH, CONTAINS
from rtcontrol.models.validator import equal

ALTERNATIVES = 256  # that a part of a schema may have once all is laid together; else each is a part of its own
TOO = "x-too"  # of a string, patterns and formats that it has besides its own
LAID = ("anyOf", "oneOf", "allOf", "dependentRequired", "dependentSchemas", "if", "then", "else")
Schema = Mapping[str, Any]


def flattened(schema: Schema) -> list[Schema]:
    """The alternatives of a schema, each with all that holds of it, and without what only the check knows."""
    found: list[Schema] = [{k: v for k, v in schema.items() if k not in LAID}]
    groups = [[part] for part in schema.get("allOf", ())] + [schema[k] for k in ("anyOf", "oneOf") if k in schema]
    if "if" in schema:
        groups.append([{"allOf": [schema["if"], schema.get("then", True)]}, schema.get("else", True)])
    if "properties" in schema:  # else nothing says that there are no others
        needs = schema.get("dependentRequired", {}) | schema.get("dependentSchemas", {})
        for key, value in needs.items():
            part = {"required": value} if isinstance(value, list | tuple) else value
            groups.append([{"properties": {key: False}}, {"allOf": [{"required": [key]}, part]}])
    if not groups:
        return [schema]
    for group in groups:
        arms = [arm for part in group for arm in (flattened(part) if isinstance(part, Mapping) else [{}] * bool(part))]
        if len(found) * len(arms) > ALTERNATIVES and len(found) > 1:
            continue
        found = [both for one, other in itertools.product(found, arms) if (both := joined(one, other)) is not None]
    return found


def joined(one: Schema, other: Schema) -> Schema | None:
    """What holds where both do, as far as one schema says it; None where nothing does."""
    containing = max((s for s in (one, other) if "contains" in s), key=lambda s: s.get("minContains", 1), default={})
    counted = {key: containing[key] for key in CONTAINS if key in containing}  # one of them: the other is checked
    found: dict[str, Any] = {key: value for key, value in one.items() if key not in CONTAINS} | counted
    rest: list[Any] = []
    for key, value in other.items():
        if key in CONTAINS:
            continue
        if key not in found or found[key] == value:
            found[key] = value
        elif key == "type":
            kinds = _kinds(found[key], value)
            if not kinds:
                return None
            found[key] = kinds[0] if len(kinds) == 1 else kinds
        elif key in ("properties", "patternProperties"):
            mine = found[key]
            found[key] = {
                k: {"allOf": [mine[k], value[k]]}
                if k in mine and k in value and mine[k] != value[k]
                else {**value, **mine}[k]
                for k in {**mine, **value}
            }
        elif key == "enum":
            known = {equal(v) for v in value}
            found[key] = [v for v in found[key] if equal(v) in known]
        elif key in ("minProperties", "maxProperties"):
            found[key] = (max if key == "minProperties" else min)(found[key], value)
        elif key in ("items", "additionalProperties"):
            both = (found[key], value)
            found[key] = False if False in both else both[0] if both[1] is True else {"allOf": [*both]}
        elif key in BOTH:
            found[key] = BOTH[key](found[key], value)
        elif key in ("pattern", "format"):
            rest.append({key: value})
        elif key == TOO:
            rest += value
    if rest:  # patterns, which a string may have several of
        found[TOO] = [*found.get(TOO, ()), *rest]
    for side, against in ((one, other), (other, one)):
        if side.get("additionalProperties") is False and not side.get("patternProperties"):
            gone = set(against.get("properties", ())) - set(side.get("properties", ()))
            found["properties"] = {k: False if k in gone else v for k, v in found.get("properties", {}).items()}
    return found


def _kinds(one: Any, other: Any) -> list[str]:
    mine, others = ([kinds] if isinstance(kinds, str) else [*kinds] for kinds in (one, other))
    kept = [k for k in mine if k in others or (k == "integer" and "number" in others)]
    return kept + [k for k in others if k == "integer" and "number" in mine and "integer" not in kept]
