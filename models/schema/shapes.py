"""Write the rules about an object's properties (`oneOf` of `required`, `dependentRequired`, `if`, ...) as alternatives,
each with the properties that it has, so that the rules can be enforced while the object is decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.combinations import (
    ABSENT_CLASS,
    ANY_VALUE,
    Combinations,
    legal_combinations,
)
from rtcontrol.models.schema.domain import ClosedDomain, domain_of
from rtcontrol.models.schema.json_schema import normal_form
from rtcontrol.models.schema.parameters import CLOSING, Parameter, RootRules, subschemas
from rtcontrol.models.schema.validator import NO_VALUE, Validator

MAX_OBJECTS = 8  # maximum number of objects of one schema that are written as alternatives
MAX_SHAPES = 64  # alternatives of one object
Options = tuple[frozenset[Any], ...]  # for each name: the classes that its value may have


class ShapeWriter:
    """Writes the objects of one schema as alternatives. `where` names tool and parameter in errors."""

    def __init__(self, where: str) -> None:
        self._where, self._room = where, MAX_OBJECTS

    def write(self, schema: Any) -> Any:
        """Return an equivalent schema, in which objects have alternatives in place of rules about their properties."""
        if not isinstance(schema, Mapping):
            return schema
        written = dict(schema)
        if isinstance(properties := schema.get("properties"), Mapping):
            written["properties"] = {name: self.write(part) for name, part in properties.items()}
        for key in ("prefixItems", "anyOf", "oneOf"):
            if isinstance(parts := schema.get(key), list | tuple):
                written[key] = [self.write(part) for part in parts]
        if "items" in schema:
            written["items"] = self.write(schema["items"])
        combinations = self._combinations(schema)
        return written if combinations is None else self._alternatives(written, combinations)

    def _combinations(self, schema: Mapping[str, Any]) -> Combinations | None:
        """Return the legal combinations of an object's properties; None if they are not known before it is decoded."""
        properties, required = schema.get("properties"), {*schema.get("required", ())}
        closed = schema.get("additionalProperties", False) in (False, NO_VALUE) and "patternProperties" not in schema
        if schema.get("type") != "object" or not properties or not closed or not required <= properties.keys():
            return None
        rules = RootRules.from_root(schema, self._where)
        named = {name for part in subschemas(schema) for name in part.get("properties", ())}
        if rules is None or self._room <= 0 or not named <= properties.keys():
            return None
        self._room -= 1
        try:
            parameters = [self._parameter(name, part, name in required) for name, part in properties.items()]
        except UserError:  # raised for a part that no value satisfies
            return None
        combinations = legal_combinations(parameters, rules)
        known = combinations is not None and not any(ANY_VALUE in row for row in combinations.rows)
        return combinations if known else None

    def _parameter(self, name: str, part: Any, required: bool) -> Parameter:
        schema = normal_form(part, self._where)
        return Parameter(name, schema, required, domain_of(schema, self._where), False, None)

    def _alternatives(self, schema: Mapping[str, Any], combinations: Combinations) -> dict[str, Any]:
        """Return an object's schema with its legal combinations as alternatives; unchanged if these are too many."""
        shapes = _merged([tuple(frozenset([each]) for each in row) for row in combinations.rows])
        if len(shapes) > MAX_SHAPES:
            return dict(schema)
        rules = RootRules.from_root(schema, self._where)
        apart = {"properties", "required", *(rules.document if rules else ())} - {*CLOSING}
        outside = {key: value for key, value in schema.items() if key not in apart}
        if not shapes:
            return dict(NO_VALUE)
        arms = [self._arm(schema, combinations, shape) for shape in shapes]
        annotations = {key: value for key, value in outside.items() if key not in ("type", *CLOSING)}
        return {**annotations, "anyOf": arms}

    def _arm(self, schema: Mapping[str, Any], combinations: Combinations, shape: Options) -> dict[str, Any]:
        """Return the schema of the objects whose properties have these classes."""
        classes = dict(zip(combinations.names, shape, strict=True))
        properties = {
            name: self._values(part, [*classes[name]], combinations.rules[combinations.names.index(name)])
            if name in classes
            else part
            for name, part in schema["properties"].items()
            if classes.get(name) != frozenset([ABSENT_CLASS])
        }
        must = {name for name, options in classes.items() if ABSENT_CLASS not in options}
        required = [name for name in properties if name in must or name in schema.get("required", ())]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def _values(self, part: Any, classes: Sequence[Any], rules: Sequence[Validator]) -> Any:
        """Return the schema of a property's values that are of one of these classes."""
        domain = domain_of(normal_form(part, self._where), self._where)
        if not rules or not isinstance(domain, ClosedDomain):
            return part
        judge = Validator(part, self._where)
        values = [v for v in domain.values if judge.accepts(v) and tuple(r.accepts(v) for r in rules) in classes]
        return {**({"type": part["type"]} if "type" in part else {}), "enum": values}


def _merged(rows: Sequence[Options]) -> list[Options]:
    """Return fewer rows that allow the same: those that differ in one place only are merged there."""
    for place in range(len(rows[0]) if rows else 0):
        groups: dict[Any, frozenset[Any]] = {}
        for row in rows:
            rest = row[:place], row[place + 1 :]
            groups[rest] = groups.get(rest, frozenset()) | row[place]
        rows = [(*before, options, *after) for (before, after), options in groups.items()]
    return [*rows]
