"""One reading of a JSON schema, however it was written: what plan, training rows and validation agree on.

References are replaced by what they name, `oneOf` and lists of types become `anyOf`, the parts of an `allOf` are laid
together, OpenAPI's `nullable` and draft 4's exclusive bounds are written as JSON Schema 2020-12 has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jsonschema

from rtcontrol.models.domain import same, written
from rtcontrol.models.errors import UserError

DEFINITIONS = ("$defs", "definitions")
NAMED = (*DEFINITIONS, "properties", "patternProperties", "dependentSchemas")  # schemas by name
DATA = ("enum", "const", "default", "examples")
ABOUT = ("title", "description", "default", "examples", "x-group")  # says nothing of the values
BOUNDS = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
MAX_PARTS = 10_000  # of one parameter, its references written out
# What speaks of values of one type alone, and goes with it where a schema lists several.
OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
}


def _common(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    known = {written(v) for v in b}
    return [v for v in a if written(v) in known]


# What holds where two parts do.
BOTH: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
    "required": lambda a, b: [*a, *(r for r in b if r not in a)],
    "enum": _common,
    "additionalProperties": lambda a, b: a and b,
}
# Draft 4's, where 1.0 is no integer; Python's tuples are arrays, too.
TYPES = jsonschema.Draft4Validator.TYPE_CHECKER.redefine("array", lambda _, value: isinstance(value, list | tuple))


def normalise(schema: Mapping[str, Any], where: str, definitions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The schema written in the one way: see `read`."""
    return read(schema, where, definitions)[1]


def read(given: Any, where: str, definitions: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema as JSON Schema 2020-12 has it, with all definitions; and written in the one way. `definitions` are
    those of the document that it stands in.

    Raises UserError (`where` names tool and parameter) for what is no schema, for a reference that leads nowhere,
    outside or in a circle, and for a schema that grows beyond MAX_PARTS when its references are written out.
    """
    if not isinstance(given, Mapping):
        raise UserError(f"{where}: its schema is {given!r}.", "Write a JSON schema object.")
    try:
        found, named = _modern(given), _modern({"$defs": definitions or {}})
        for part in (found, named):
            jsonschema.Draft202012Validator.check_schema(part, format_checker=None)
        own = {**named["$defs"], **found.pop("definitions", {}), **found.pop("$defs", {})}
        document = {**found, **dict.fromkeys(DEFINITIONS, own)}
        return document, _Normaliser(where).read(document, ())
    except jsonschema.SchemaError as error:
        place = ".".join(map(str, error.absolute_path))
        raise UserError(
            f"{where}: {place} is {repr(error.instance)[:80]}.",
            f"Write what JSON schema has there ({error.message[-120:]}).",
        ) from None
    except RecursionError:
        raise UserError(f"{where}: its schema is nested too deeply.", "Describe a flatter value.") from None


def _modern(given: Any) -> Any:
    if isinstance(given, list | tuple):
        return [_modern(v) for v in given]
    if not isinstance(given, Mapping):
        return given
    schema: dict[str, Any] = {}
    for key, value in given.items():
        if key in NAMED and isinstance(value, Mapping):
            schema[key] = {name: _modern(part) for name, part in value.items()}
        elif key not in ("$id", "$schema"):
            schema[key] = value if key in DATA and not isinstance(value, tuple) else _modern(value)
    for kept, bound in BOUNDS.items():
        if isinstance(exclusive := schema.get(bound), bool):
            del schema[bound]
            if exclusive and kept in schema:
                schema[bound] = schema.pop(kept)
    if schema.pop("nullable", False) is True:
        rest = {k: schema.pop(k) for k in tuple(schema) if k not in (*ABOUT, *DEFINITIONS)}
        schema["anyOf"] = [rest, {"type": "null"}]
    return schema


class _Normaliser:
    def __init__(self, where: str) -> None:
        self._where, self._parts = where, 0
        self._definitions: dict[str, Any] = {}

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
            flat += [a for a in inner if not any(same(a, b) for b in flat)]
        if len(flat) == 1:
            return self._joined([flat[0], schema])
        return {**schema, "anyOf": flat} if flat else schema

    def _joined(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """What holds where all parts do; the later ones' descriptions."""
        found: dict[str, Any] = {}
        for part in parts:
            for key, value in part.items():
                if key not in found or key in ABOUT or same(found[key], value):
                    found[key] = value
                elif key == "properties":
                    each = (found[key], value)
                    found[key] = {k: self._joined([own[k] for own in each if k in own]) for k in {**each[0], **each[1]}}
                elif key in BOTH:
                    found[key] = BOTH[key](found[key], value)
                else:
                    raise UserError(
                        f"{self._where}: two parts of it say {key} {found[key]!r} and {value!r}.",
                        "Write one schema that holds.",
                    )
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


def _fits(value: Any, arm: Mapping[str, Any]) -> bool:
    """Whether a value is of an alternative, by its type or its list."""
    if "enum" in arm:
        return any(same(value, v) for v in arm["enum"])
    if isinstance(value, Mapping) and "properties" in arm:
        return set(arm.get("required", ())) <= set(value) <= set(arm["properties"])
    kind = arm.get("type")
    return not isinstance(kind, str) or TYPES.is_type(value, kind)
