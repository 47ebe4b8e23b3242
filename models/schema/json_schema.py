"""One reading of a JSON schema, however it was written: what plan, training rows and validation agree on.

References are replaced by what they name, `oneOf` and lists of types become `anyOf`, the parts of an `allOf` are laid
together, OpenAPI's `nullable` and draft 4's exclusive bounds are written as JSON Schema 2020-12 has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jsonschema

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import same, written
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.references import SchemaDocument
from rtcontrol.models.schema.validator import ABOUT, Validator, equal

# What speaks of values of one type alone, and goes with it where a schema lists several.
OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
}


def _common(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    known = {equal(v) for v in b}
    return [v for v in a if equal(v) in known]


LAST = {"anyOf": 1, "allOf": 2}  # of a schema's keys, in this order
# What holds where two parts do.
BOTH: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
    "required": lambda a, b: list(dict.fromkeys((*a, *b))),
    "enum": _common,
    "additionalProperties": lambda a, b: a and b,
}
# Draft 4's, where 1.0 is no integer; Python's tuples are arrays, too.
TYPES = jsonschema.Draft4Validator.TYPE_CHECKER.redefine("array", lambda _, value: isinstance(value, list | tuple))


def normalise(schema: Mapping[str, Any], where: str, definitions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The schema written in the one way: `definitions` are those of the document that it stands in.

    Raises UserError (`where` names tool and parameter) for what is no schema, for a reference that leads nowhere,
    outside or in a circle, and for a schema that grows too large when its references are written out.
    """
    if not isinstance(schema, Mapping):
        raise UserError(f"{where}: its schema is {schema!r}.", "Write a JSON schema object.")
    if definitions:
        schema = {**schema, "$defs": {**definitions, **schema.get("$defs", {})}}
    return in_one_way(SchemaDocument(schema, where, Room()).plain(), where)


def in_one_way(schema: Any, where: str) -> dict[str, Any]:
    """A schema without references (`SchemaDocument.plain`) written in the one way."""
    return _Normaliser(where).read(schema)


class _Normaliser:
    def __init__(self, where: str) -> None:
        self._where = where

    def read(self, given: Any) -> dict[str, Any]:
        if given is True:
            return {}
        if not isinstance(given, Mapping):
            raise UserError(f"{self._where}: its schema is {given!r}.", "Write a JSON schema object.")
        schema, apart = dict(given), []
        if "const" in schema:
            apart.append({"enum": [schema.pop("const")]})
        if "enum" in schema:
            schema["enum"] = list({(type(v), written(v)): v for v in schema["enum"]}.values())
        if (arms := schema.pop("oneOf", None)) is not None:
            apart.append({"anyOf": arms})
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), Mapping):
                schema[key] = self.read(schema[key])
        if isinstance(properties := schema.get("properties"), Mapping):
            schema["properties"] = {k: self.read(v) for k, v in properties.items()}
        if isinstance(items := schema.get("prefixItems"), list | tuple):
            schema["prefixItems"] = [self.read(v) for v in items]
        parts = [self.read(part) for part in schema.pop("allOf", ())]
        parts += [self._with_arms(part) for part in apart]
        own = self._with_arms(schema)
        # What was left over when it was written so stands behind again.
        left_over = all(set(part) <= set(own) for part in parts)
        found = self._joined([own, *parts] if left_over else [*parts, own])
        # In the place that they have when it is read again.
        return {key: found[key] for key in sorted(found, key=lambda key: LAST.get(key, 0))}

    def _with_arms(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Alternatives flat, each once; a single one is the schema itself."""
        kinds = schema.get("type")
        arms = [self.read(arm) for arm in schema.pop("anyOf", ())]
        if isinstance(kinds, list) and not arms and "enum" not in schema:
            del schema["type"]
            of = {k: schema.pop(k) for keys in OF_TYPE.values() for k in keys if k in schema}
            arms = [{"type": k, **{key: of[key] for key in OF_TYPE.get(k, ()) if key in of}} for k in kinds]
        found: dict[str, dict[str, Any]] = {}
        for arm in arms:
            # An alternative among alternatives, with no more to say.
            inner = arm["anyOf"] if set(arm) <= {"anyOf", *ABOUT} and "anyOf" in arm else [arm]
            for each in inner:
                found.setdefault(written(each), each)
        flat = list(found.values())
        if len(flat) == 1:
            return self._joined([flat[0], schema])
        return {**schema, "anyOf": flat} if flat else schema

    def _joined(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """What holds where all parts do; the later ones' descriptions. What no one schema says stays in an `allOf`."""
        found: dict[str, Any] = {}
        apart: dict[str, Any] = {}
        for part in parts:
            apart |= {written(one): one for one in part.get("allOf", ())}
            own = {key: value for key, value in part.items() if key != "allOf"}
            both = self._both(found, own)
            if both is None:
                about = {key: own[key] for key in ABOUT if key in own}
                rest = {key: value for key, value in own.items() if key not in about}
                both, apart[written(rest)] = {**found, **about}, rest
            found = both
        if apart:
            found["allOf"] = [apart[key] for key in sorted(apart)]
        if "enum" in found and found.get("type") in ("integer", ["integer", "null"], ["null", "integer"]):
            whole = [int(v) if isinstance(v, float) and v.is_integer() else v for v in found["enum"]]
            found["enum"] = list({(type(v), written(v)): v for v in whole}.values())
        return found

    def _both(self, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
        """Two parts in one schema, None where none says what both do."""
        found = dict(one)
        for part, beside in ((one, other), (other, one)):
            # What one says of the properties that it does not name, it says of those of the other.
            more = beside.get("properties", {}).keys() - part.get("properties", {}).keys()
            if more and part.get("additionalProperties", True) not in (True, {}):
                return None
        for key, value in other.items():
            if key not in found or key in ABOUT or same(found[key], value):
                found[key] = value
            elif key == "properties":
                each = (found[key], value)
                found[key] = {k: self._joined([own[k] for own in each if k in own]) for k in {**each[0], **each[1]}}
            elif key in BOTH:
                found[key] = BOTH[key](found[key], value)
            elif key == "type" and {written(found[key]), written(value)} == {'"integer"', '"number"'}:
                found[key] = "integer"
            elif key == "type" and isinstance(value, str) and isinstance(found[key], str):
                what = f"{self._where}: two parts of it say type {found[key]!r} and {value!r}."
                raise UserError(what, "Write one schema that holds.")
            else:
                return None
        return found


def without_null(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The normalised schema of the values but null, and whether null is one: a head writes it as `<|null|>`."""
    if "enum" in schema:
        values = [v for v in schema["enum"] if v is not None]
        if not values or len(values) == len(schema["enum"]):
            return dict(schema), False
        kinds = schema.get("type")
        rest = [k for k in kinds if k != "null"] if isinstance(kinds, list | tuple) else [kinds] if kinds else []
        typed = {"type": rest[0]} if len(rest) == 1 else {}
        return {**{k: v for k, v in schema.items() if k != "type"}, **typed, "enum": values}, True
    arms = schema.get("anyOf", ())
    kept = [arm for arm in arms if arm.get("type") != "null" and arm.get("enum") != [None]]
    if not kept or len(kept) == len(arms):
        return dict(schema), False
    rest_of = {k: v for k, v in schema.items() if k != "anyOf"}
    return ({**rest_of, "anyOf": kept} if len(kept) > 1 else {**kept[0], **rest_of}), True


def as_declared(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value by its normalised schema: numbers of the declared type (an integer literal for a `number` is a float),
    an object's keys in the declared order, in nested places too."""
    if arms := schema.get("anyOf"):
        fitting = [arm for arm in arms if _fits(value, arm)]
        if not (len(fitting) == 1 and Validator(fitting[0], "an alternative").takes(value)):
            taking = [arm for arm in arms if Validator(arm, "an alternative").takes(value)]
            fitting = [arm for arm in fitting if arm in taking] or taking or fitting
        value = as_declared(value, fitting[0] if fitting else {})
    kind = schema.get("type")
    if not isinstance(kind, str) and "enum" in schema:  # as it is listed: 1 is 1.0, alone and within
        return next((v for v in schema["enum"] if equal(v) == equal(value)), value)
    if kind == "number" and type(value) is int:
        return float(value)
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        first, rest = schema.get("prefixItems", []), schema.get("items")
        other = rest if isinstance(rest, Mapping) else {}
        return [as_declared(v, first[i] if i < len(first) else other) for i, v in enumerate(value)]
    if isinstance(value, Mapping):
        properties: Mapping[str, Any] = schema.get("properties", {})
        order = [*(k for k in properties if k in value), *(k for k in value if k not in properties)]
        return {k: as_declared(value[k], properties.get(k, {})) for k in order}
    return value


def _fits(value: Any, arm: Mapping[str, Any]) -> bool:
    """Whether a value is of an alternative, by its type or its list."""
    if "enum" in arm:
        return any(same(value, v) for v in arm["enum"])
    if isinstance(value, Mapping) and "properties" in arm:
        return set(arm.get("required", ())) <= set(value) <= set(arm["properties"])
    kind = arm.get("type")
    return not isinstance(kind, str) or TYPES.is_type(value, kind)
