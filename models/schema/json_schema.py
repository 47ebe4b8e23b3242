"""Write a JSON schema in a normal form that plan, training rows and validation share.

References are replaced by their targets, `const` becomes `enum`, `oneOf` and lists of types become `anyOf`; the parts
of an `allOf` are merged where one schema can express them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import same, written
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.references import SchemaDocument
from rtcontrol.models.schema.validator import ABOUT, Validator, equal

# Keywords about values of one type alone, which go with it where a schema lists several.
OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": OF_NUMBERS,
    "number": OF_NUMBERS,
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
}
LAST = {"anyOf": 1, "allOf": 2}  # of a schema's keys, in this order
# Keywords whose meaning depends on one another in the same schema.
COUPLED = {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "if", "then", "else"}
COUPLED |= {"items", "prefixItems", "unevaluatedItems", "contains", "minContains", "maxContains"}
# Draft 4's, where 1.0 is not an integer; Python's tuples are arrays, too.
TYPES = jsonschema.Draft4Validator.TYPE_CHECKER.redefine("array", lambda _, value: isinstance(value, list | tuple))


def normalise(schema: Mapping[str, Any], where: str, definitions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema in normal form; `definitions` are those of its document.

    Raises UserError (`where` names tool and parameter) for something that is not a schema, for a reference without a
    target, to another document or in a circle, and for a schema that is too large with its references written out.
    """
    if not isinstance(schema, Mapping):
        raise UserError(f"{where}: its schema is {schema!r}.", "Write a JSON schema object.")
    if definitions:
        schema = {**schema, "$defs": {**definitions, **schema.get("$defs", {})}}
    return in_one_way(SchemaDocument(schema, where, Room()).plain(), where)


def in_one_way(source: Any, where: str) -> dict[str, Any]:
    """Return a schema without references (`SchemaDocument.plain`) in normal form."""
    if source is True:
        return {}
    if not isinstance(source, Mapping):
        raise UserError(f"{where}: its schema is {source!r}.", "Write a JSON schema object.")
    schema = dict(source)
    parts = [*schema.pop("allOf", ())]
    if "const" in schema:
        parts.append({"enum": [schema.pop("const")]})
    if "oneOf" in schema:
        parts.append({"anyOf": schema.pop("oneOf")})
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            schema[key] = in_one_way(schema[key], where)
    if isinstance(properties := schema.get("properties"), Mapping):
        schema["properties"] = {name: in_one_way(part, where) for name, part in properties.items()}
    if isinstance(items := schema.get("prefixItems"), list | tuple):
        schema["prefixItems"] = [in_one_way(part, where) for part in items]
    schema = _with_arms(schema, where)
    rest: dict[str, Any] = {}
    for part in (*schema.pop("allOf", ()), *parts):
        read = in_one_way(part, where)
        inner = read.pop("allOf", [])
        for each in (read, *inner):
            if (joined := _joined(each, schema)) is None:
                rest.setdefault(written(each), each)
            else:
                schema = joined
    if rest:
        schema["allOf"] = [*rest.values()]
    # In the place that they have when it is read again.
    return _listed({key: schema[key] for key in sorted(schema, key=lambda key: LAST.get(key, 0))})


def _with_arms(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Flatten alternatives and remove duplicates; a single one replaces the schema."""
    kinds = schema.get("type")
    arms = [in_one_way(arm, where) for arm in schema.pop("anyOf", ())]
    if isinstance(kinds, list) and not arms and "enum" not in schema:
        del schema["type"]
        of = {k: schema.pop(k) for keys in OF_TYPE.values() for k in keys if k in schema}
        arms = [{"type": k, **{key: of[key] for key in OF_TYPE.get(k, ()) if key in of}} for k in kinds]
    flat: dict[str, dict[str, Any]] = {}
    for arm in arms:
        # An alternative among alternatives, with no more to say.
        for each in arm["anyOf"] if set(arm) <= {"anyOf", *ABOUT} and "anyOf" in arm else [arm]:
            flat.setdefault(written(each), each)
    if len(flat) == 1:
        (arm,) = flat.values()
        if (joined := _joined(arm, schema)) is not None:
            return joined
    return {**schema, "anyOf": [*flat.values()]} if flat else schema


def _joined(schema: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one schema that means both, with the second one's annotations; None where that is not possible."""
    if schema.keys() & COUPLED and part.keys() & COUPLED:
        return None
    if any(key in schema and key not in ABOUT and not same(schema[key], part[key]) for key in part):
        return None
    return {**schema, **part}


def _listed(schema: dict[str, Any]) -> dict[str, Any]:
    """List each value once; of integers 1.0 is 1."""
    if "enum" not in schema:
        return schema
    values: Sequence[Any] = schema["enum"]
    if schema.get("type") in ("integer", ["integer", "null"], ["null", "integer"]):
        values = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    return {**schema, "enum": list({(type(v), written(v)): v for v in values}.values())}


def without_null(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the normalised schema of the values except null, and whether null is one: a head writes it as
    `<|null|>`."""
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
    others = {k: v for k, v in schema.items() if k != "anyOf"}
    joined = _joined(kept[0], others) if len(kept) == 1 else None
    return joined or {**others, "anyOf": kept}, True


def as_declared(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value with the types of its normalised schema, at all depths: numbers of the declared type (an integer
    literal for a `number` is a float), and an object's keys in the declared order."""
    for part in (schema, *schema.get("allOf", ())):
        value = _as_declared(value, part)
    return value


def _as_declared(value: Any, schema: Mapping[str, Any]) -> Any:
    if arms := schema.get("anyOf"):
        taking = [arm for arm in arms if Validator(arm, "an alternative").takes(value)]
        exact = [arm for arm in taking if _fits(value, arm)]
        value = as_declared(value, next(iter(exact or taking), {}))
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
    """Return whether a value belongs to an alternative, by its type or its list."""
    if "enum" in arm:
        return any(same(value, v) for v in arm["enum"])
    kind = arm.get("type")
    return not isinstance(kind, str) or TYPES.is_type(value, kind)
