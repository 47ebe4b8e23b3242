"""Convert JSON schemas to a normal form, which decoding, training and validation share.

References are replaced by their targets, `const` becomes `enum`, `oneOf` and lists of types become `anyOf`. The parts
of an `allOf` are merged if one schema can express them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import is_same, sorted_json
from rtcontrol.models.schema.limits import SchemaBudget
from rtcontrol.models.schema.references import SchemaDocument
from rtcontrol.models.schema.validator import ANNOTATIONS, Validator, equality_key

# Keywords that apply to one type only. A schema with several types is split into an alternative for each type.
NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TYPE_KEYWORDS = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": NUMBER_KEYWORDS,
    "number": NUMBER_KEYWORDS,
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
}
KEY_ORDER = {"anyOf": 1, "allOf": 2}  # a normal form has these keys at its end, in this order
# Keywords whose meaning depends on other keywords of the same schema.
COUPLED = {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "if", "then", "else"}
COUPLED |= {"items", "prefixItems", "unevaluatedItems", "contains", "minContains", "maxContains"}
# The types are those of JSON Schema draft 4, where 1.0 is not an integer. Python's tuples count as arrays.
TYPES = jsonschema.Draft4Validator.TYPE_CHECKER.redefine("array", lambda _, value: isinstance(value, list | tuple))


def normalise(schema: Mapping[str, Any], where: str, definitions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a schema in normal form. References may point to the `definitions` of its document. Raises UserError
    (`where` names tool and parameter) if it is not a schema, if a reference has no target, points to another document
    or is circular, or if the schema is too large after references are replaced by their targets."""
    if not isinstance(schema, Mapping):
        raise UserError(f"{where}: its schema is {schema!r}.", "Write a JSON schema object.")
    if definitions:
        schema = {**schema, "$defs": {**definitions, **schema.get("$defs", {})}}
    return normal_form(SchemaDocument(schema, where, SchemaBudget()).without_references(), where)


def normal_form(source: Any, where: str) -> dict[str, Any]:
    """Return the normal form of a schema without references (the result of `SchemaDocument.without_references`)."""
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
            schema[key] = normal_form(schema[key], where)
    if isinstance(properties := schema.get("properties"), Mapping):
        schema["properties"] = {name: normal_form(part, where) for name, part in properties.items()}
    if isinstance(items := schema.get("prefixItems"), list | tuple):
        schema["prefixItems"] = [normal_form(part, where) for part in items]
    schema = _merge_alternatives(schema, where)
    rest: dict[str, Any] = {}
    for part in (*schema.pop("allOf", ()), *parts):
        read = normal_form(part, where)
        inner = read.pop("allOf", [])
        for each in (read, *inner):
            if (joined := _merge(each, schema)) is None:
                rest.setdefault(sorted_json(each), each)
            else:
                schema = joined
    if rest:
        schema["allOf"] = [*rest.values()]
    # Sort the keys, so that a schema in normal form stays the same.
    return _unique_enum({key: schema[key] for key in sorted(schema, key=lambda key: KEY_ORDER.get(key, 0))})


def _merge_alternatives(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Flatten nested `anyOf`, remove duplicate alternatives, and merge a single alternative with the schema."""
    kinds = schema.get("type")
    arms = [normal_form(arm, where) for arm in schema.pop("anyOf", ())]
    if isinstance(kinds, list) and not arms and "enum" not in schema:
        del schema["type"]
        of = {k: schema.pop(k) for keys in TYPE_KEYWORDS.values() for k in keys if k in schema}
        arms = [{"type": k, **{key: of[key] for key in TYPE_KEYWORDS.get(k, ()) if key in of}} for k in kinds]
    flat: dict[str, dict[str, Any]] = {}
    for arm in arms:
        # Flatten an alternative that consists only of alternatives.
        for each in arm["anyOf"] if set(arm) <= {"anyOf", *ANNOTATIONS} and "anyOf" in arm else [arm]:
            flat.setdefault(sorted_json(each), each)
    if len(flat) == 1:
        (arm,) = flat.values()
        if (joined := _merge(arm, schema)) is not None:
            return joined
    return {**schema, "anyOf": [*flat.values()]} if flat else schema


def _merge(schema: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one schema that is equivalent to both, with the annotations of `part`; None if there is none."""
    if schema.keys() & COUPLED and part.keys() & COUPLED:
        return None
    if any(key in schema and key not in ANNOTATIONS and not is_same(schema[key], part[key]) for key in part):
        return None
    return {**schema, **part}


def _unique_enum(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without duplicates in `enum`, and with integers for values such as 1.0 if the type is integer."""
    if "enum" not in schema:
        return schema
    values: Sequence[Any] = schema["enum"]
    if schema.get("type") in ("integer", ["integer", "null"], ["null", "integer"]):
        values = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    return {**schema, "enum": list({(type(v), sorted_json(v)): v for v in values}.values())}


def without_null(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the normalised schema of all values except null, and whether null is legal (the token `<|null|>`)."""
    if "enum" in schema:
        values = [v for v in schema["enum"] if v is not None]
        if not values or len(values) == len(schema["enum"]):
            return dict(schema), False
        kinds = schema.get("type")
        rest = [k for k in kinds if k != "null"] if isinstance(kinds, list | tuple) else [kinds] if kinds else []
        typed = {"type": rest[0]} if len(rest) == 1 else {}
        return {**{k: v for k, v in schema.items() if k != "type"}, **typed, "enum": values}, True
    arms = schema.get("anyOf", ())
    other_arms = [arm for arm in arms if arm.get("type") != "null" and arm.get("enum") != [None]]
    if not other_arms or len(other_arms) == len(arms):
        return dict(schema), False
    others = {k: v for k, v in schema.items() if k != "anyOf"}
    joined = _merge(other_arms[0], others) if len(other_arms) == 1 else None
    return joined or {**others, "anyOf": other_arms}, True


def to_declared_types(value: Any, schema: Mapping[str, Any]) -> Any:
    """Convert a value to the types of its normalised schema, at all depths. Numbers get the declared type (3 becomes
    3.0 for a `number`), and objects the declared order of keys."""
    for part in (schema, *schema.get("allOf", ())):
        value = _to_declared_types(value, part)
    return value


def _to_declared_types(value: Any, schema: Mapping[str, Any]) -> Any:
    if arms := schema.get("anyOf"):
        taking = [arm for arm in arms if Validator(arm, "an alternative").accepts(value)]
        exact = [arm for arm in taking if _matches(value, arm)]
        value = to_declared_types(value, next(iter(exact or taking), {}))
    kind = schema.get("type")
    if not isinstance(kind, str) and "enum" in schema:  # use the equal value of the list (for 1.0, this may be 1)
        return next((v for v in schema["enum"] if equality_key(v) == equality_key(value)), value)
    if kind == "number" and type(value) is int:
        return float(value)
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        first, rest = schema.get("prefixItems", []), schema.get("items")
        other = rest if isinstance(rest, Mapping) else {}
        return [to_declared_types(v, first[i] if i < len(first) else other) for i, v in enumerate(value)]
    if isinstance(value, Mapping):
        properties: Mapping[str, Any] = schema.get("properties", {})
        order = [*(k for k in properties if k in value), *(k for k in value if k not in properties)]
        return {k: to_declared_types(value[k], properties.get(k, {})) for k in order}
    return value


def _matches(value: Any, arm: Mapping[str, Any]) -> bool:
    """Return whether a value has the type of an alternative, or is in its list."""
    if "enum" in arm:
        return any(is_same(value, v) for v in arm["enum"])
    kind = arm.get("type")
    return not isinstance(kind, str) or TYPES.is_type(value, kind)
