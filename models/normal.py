"""One reading of a JSON schema, however it was written: what plan, training rows and validation agree on.

References are replaced by what they name, `oneOf` and lists of types become `anyOf`, the parts of an `allOf` are laid
together, OpenAPI's `nullable` and draft 4's exclusive bounds are written as JSON Schema 2020-12 has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.rules import ABOUT, DEFINITIONS, document

MAX_PARTS = 10_000  # of one parameter, its references written out
# What speaks of values of one type alone, and goes with it where a schema lists several.
OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
}


def normalise(schema: Mapping[str, Any], where: str, definitions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The schema written in the one way; `definitions` are those of the document that it stands in.

    Raises UserError (`where` names tool and parameter) for a reference that leads nowhere, outside or in a circle, and
    for a schema that grows beyond MAX_PARTS when its references are written out.
    """
    return written_out(document(schema, where, definitions), where)


def written_out(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`normalise`, of what `rules.document` gives."""
    try:
        return _Normaliser(where, dict(document["$defs"])).read(document, ())
    except RecursionError:
        raise UserError(f"{where}: its schema is nested too deeply.", "Describe a flatter value.") from None


class _Normaliser:
    def __init__(self, where: str, definitions: dict[str, Any]) -> None:
        self._where, self._definitions, self._parts = where, definitions, 0

    def read(self, given: Any, inside: tuple[str, ...]) -> dict[str, Any]:
        """`inside`: the references that led here."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise UserError(
                f"{self._where}: its schema has more than {MAX_PARTS} parts when its references are written out.",
                "Describe a smaller value.",
            )
        if not isinstance(given, Mapping):
            raise UserError(f"{self._where}: its schema is {given!r}.", "Write a JSON schema object.")
        schema = {k: v for k, v in given.items() if k not in DEFINITIONS}
        for key in DEFINITIONS:
            self._definitions |= given.get(key, {})
        apart = []
        if "const" in schema:
            apart.append({"enum": [schema.pop("const")]})
        if (name := schema.pop("$ref", None)) is not None:
            return self._joined([self._named(str(name), inside), self.read(schema, inside)])
        if (arms := schema.pop("oneOf", None)) is not None:
            apart.append({"anyOf": arms})
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), Mapping):
                schema[key] = self.read(schema[key], inside)
        if isinstance(properties := schema.get("properties"), Mapping):
            schema["properties"] = {k: self.read(v, inside) for k, v in properties.items()}
        if isinstance(items := schema.get("prefixItems"), list | tuple):
            schema["prefixItems"] = [self.read(v, inside) for v in items]
        parts = [self.read(part, inside) for part in schema.pop("allOf", ())]
        parts += [self._with_arms(part, inside) for part in apart]
        return self._joined([*parts, self._with_arms(schema, inside)])

    def _named(self, name: str, inside: tuple[str, ...]) -> dict[str, Any]:
        """What a reference names."""
        if name in inside:
            raise UserError(
                f"{self._where}: {name} refers to itself.",
                "A value must end: write out as many levels as there may be.",
            )
        head, _, last = name.rpartition("/")
        if head not in ("#/$defs", "#/definitions") or last not in self._definitions:
            raise UserError(f"{self._where}: {name} names no definition.", "Put it under `$defs`, or write it out.")
        return self.read(self._definitions[last], (*inside, name))

    def _with_arms(self, schema: dict[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
        """Alternatives flat, each once; a single one is the schema itself."""
        kinds = schema.get("type")
        arms = [self.read(arm, inside) for arm in schema.pop("anyOf", ())]
        if isinstance(kinds, list) and not arms and "enum" not in schema:
            del schema["type"]
            of = {k: schema.pop(k) for keys in OF_TYPE.values() for k in keys if k in schema}
            arms = [{"type": k, **{key: of[key] for key in OF_TYPE.get(k, ()) if key in of}} for k in kinds]
        flat: list[dict[str, Any]] = []
        for arm in arms:
            # An alternative among alternatives, with no more to say.
            inner = arm["anyOf"] if set(arm) <= {"anyOf", *ABOUT} and "anyOf" in arm else [arm]
            flat += [a for a in inner if not any(_same(a, b) for b in flat)]
        if len(flat) == 1:
            return self._joined([flat[0], schema])
        return {**schema, "anyOf": flat} if flat else schema

    def _joined(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """What holds where all parts do; the later ones' descriptions."""
        found: dict[str, Any] = {}
        for part in parts:
            for key, value in part.items():
                if key not in found or key in ABOUT or _same(found[key], value):
                    found[key] = value
                elif key == "properties":
                    both = {k: [found[key][k]] if k in found[key] else [] for k in {**found[key], **value}}
                    found[key] = {k: self._joined([*v, *([value[k]] if k in value else [])]) for k, v in both.items()}
                elif key == "required":
                    found[key] = [*found[key], *(r for r in value if r not in found[key])]
                elif key in ("minimum", "exclusiveMinimum", "minLength", "minItems"):
                    found[key] = max(found[key], value)
                elif key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems"):
                    found[key] = min(found[key], value)
                elif key == "enum":
                    other = {json.dumps(v, sort_keys=True, default=repr) for v in value}
                    found[key] = [v for v in found[key] if json.dumps(v, sort_keys=True, default=repr) in other]
                elif key == "additionalProperties":
                    found[key] = found[key] and value
                else:
                    raise UserError(
                        f"{self._where}: two parts of it say {key} {found[key]!r} and {value!r}.",
                        "Write one schema that holds.",
                    )
        return found


def _same(a: Any, b: Any) -> bool:
    """Equality that keeps 1, 1.0 and True apart."""
    return json.dumps(a, sort_keys=True, default=repr) == json.dumps(b, sort_keys=True, default=repr)


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
        return as_declared(value, next((arm for arm in arms if _fits(value, arm)), {}))
    kind = schema.get("type")
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


_PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (Mapping,),
    "null": (type(None),),
}


def _fits(value: Any, arm: Mapping[str, Any]) -> bool:
    """Whether a value is of an alternative, by its type or its list."""
    if "enum" in arm:
        return any(_same(value, v) for v in arm["enum"])
    kinds = _PYTHON.get(str(arm.get("type")), (object,))
    if isinstance(value, Mapping) and "properties" in arm:
        return set(arm.get("required", ())) <= set(value) <= set(arm["properties"])
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds or object in kinds)
