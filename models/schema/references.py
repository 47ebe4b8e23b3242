"""A schema as one tree: its references written out, the words of older drafts in those of JSON Schema 2020-12, the
shape of each keyword checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import jsonschema
import referencing
import referencing.exceptions
import referencing.jsonschema

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import SHAPE, TYPES, refuse_unread
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.validator import ABOUT, NOTHING

DEFINITIONS = ("$defs", "definitions")
UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
BOUNDS = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
COUNTS = tuple(f"{end}{of}" for of in ("Length", "Items", "Properties", "Contains") for end in ("min", "max"))
ONE = ("items", "contains", "not", "if", "then", "else", "propertyNames", "additionalProperties", *UNEVALUATED)
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("properties", "patternProperties", "dependentSchemas")
# What holds schemas of the very same value.
SAME = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
GONE = {*DEFINITIONS, "$schema", "$id", "$anchor"}  # not needed when references are written out
FOLLOWED = {"$dynamicRef", "$recursiveRef"}
DEFINITION = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
MAX_DEPTH = 100  # of parts in parts


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)


def _mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _several(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0


# What is surely right; of anything else jsonschema says what is wrong with it.
SHAPES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(ONE, _schema),
    **dict.fromkeys(LISTED, _several),
    **dict.fromkeys((*NAMED, *DEFINITIONS, "dependentRequired"), _mapping),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(BOUNDS.values(), lambda v: _number(v) or isinstance(v, bool)),
    **dict.fromkeys(COUNTS, _count),
    **dict.fromkeys(("pattern", "format", "title", "description", "$ref", "$comment"), _text),
    "items": lambda v: _schema(v) or _several(v),
    "type": lambda v: v in TYPES if isinstance(v, str) else _texts(v) and set(v) <= {*TYPES},
    "required": _texts,
    "enum": lambda v: isinstance(v, list | tuple),
    "uniqueItems": lambda v: isinstance(v, bool),
    "multipleOf": lambda v: _number(v) and v > 0,
}
# Keywords that may exclude a value.
RULES = {*SHAPES, "const"} - {*DEFINITIONS, "format", "title", "description", "$ref", "$comment", "then", "else"}
OTHER = {"const", "default", "examples", "example", "$schema", "$id", "id", "$anchor", "nullable", "discriminator"}
APART = {"contentSchema", "xml", "externalDocs", "propertyOrdering", "property_ordering", "metadata", "_meta"}
KNOWN = {*SHAPES, *OTHER, *FOLLOWED, *APART, "dependencies", "additionalItems"}
# A misspelt keyword is taken for one of these: by its letters, of which few get the first one wrong.
SPELLED = {k.lower().strip("$"): k for k in {*SHAPES} - {"title", "description", "$comment", "format", *DEFINITIONS}}
SHORT, LIKE, LIKE_SHORT = 6, 0.84, 0.75  # of a name with fewer letters, each one is more of it
# Without one of them an object's schema does not say what is in it.
INSIDE = {*LISTED, *NAMED, "$ref", "if", "not", "enum", "const", "propertyNames", "dependentRequired", "dependencies"}


class SchemaDocument:
    """A whole schema, in which references point. `where` names it for errors, `room` is what it may take."""

    def __init__(self, root: Mapping[str, Any], where: str, room: Room) -> None:
        self._root, self._where, self._room = root, where, room
        # Schemas that were put into others keep their own definitions, to which their references still point.
        self._nested: dict[str, Any] = {}

    def plain(self, call: bool = False) -> dict[str, Any]:
        """It without references. With `call` its properties, and those of its alternatives, are the parameters of a
        call, which errors name.

        Raises UserError for what is no schema, for a reference that leads nowhere, outside or in a circle, and for more
        parts than there is room for."""
        found = self._read(self._root, (), 0, call)
        assert isinstance(found, dict)
        return found

    def _read(self, given: Any, inside: tuple[str, ...], depth: int, call: bool = False) -> dict[str, Any] | bool:
        """`inside`: the references that led here."""
        self._room.take(self._where, parts=1)
        if isinstance(given, bool):
            return given
        if not isinstance(given, Mapping):
            raise UserError(f"{self._where}: its schema is {repr(given)[:80]}.", "Write a JSON schema object.")
        if depth > MAX_DEPTH:
            raise UserError(f"{self._where}: its schema is nested too deeply.", "Describe a flatter value.")
        given = _of_gemini(given)
        self._check(given, call and not depth)
        if depth:
            for key in DEFINITIONS:
                self._nested |= given.get(key) or {}
        schema: dict[str, Any] = {}
        for key, value in given.items():
            # Some languages write null for what is not there.
            if key not in GONE and (value is not None or key in ("const", "default")):
                schema[key] = self._value(key, value, inside, depth, call)
        whole = self._with_target(schema, inside, depth, call)
        if not isinstance(whole, dict):
            return whole
        return NOTHING if whole.get("not") == {} else _modern(whole)

    def _value(self, key: str, value: Any, inside: tuple[str, ...], depth: int, call: bool) -> Any:
        same = call and key in SAME
        if key in ("additionalItems", *ONE) and not isinstance(value, list | tuple):
            found = self._read(value, inside, depth + 1, same)
            return self._excluded(found) if key == "not" else found
        if key in LISTED or (key == "items" and isinstance(value, list | tuple)):
            return [self._read(part, inside, depth + 1, same) for part in value]
        if key not in (*NAMED, "dependencies") or not isinstance(value, Mapping):
            return list(value) if isinstance(value, tuple) else value
        parts, outer = {}, self._where
        for name, part in value.items():
            if call and key == "properties":
                self._where = f"{outer}, parameter {name}"
            listed = key == "dependencies" and isinstance(part, list | tuple)
            parts[name] = list(part) if listed else self._read(part, inside, depth + 1, same)
            self._where = outer
        return parts

    def _excluded(self, found: dict[str, Any] | bool) -> dict[str, Any] | bool:
        """What a `not` holds: nothing, on purpose, excludes all; words alone do as well, and were hardly meant so."""
        if found is True or found is False or RULES & set(found):
            return {} if found is True else found
        if found:
            told = f"{self._where}: its `not` has no rule ({', '.join(found)[:80]}), and so excludes every value."
            raise UserError(told, "Write into it what is not allowed, or take it away.")
        return {}

    def _with_target(self, schema: dict[str, Any], inside: tuple[str, ...], depth: int, call: bool) -> Any:
        """The schema and what its reference names, both of which hold."""
        name = schema.pop("$ref", None)
        if name is None:
            return schema
        if name in inside:
            raise UserError(
                f"{self._where}: {name} refers to itself, so that its values may be nested without end.",
                "A value must end: write out as many levels as there may be.",
            )
        target = self._read(self._named(name), (*inside, name), depth + 1, call)
        if target is True or (target is False and not schema):
            return schema if target else False
        if isinstance(target, dict) and set(schema) <= {*ABOUT}:
            return {**target, **schema}
        return {**schema, "allOf": [target, *schema.get("allOf", ())]}

    def _named(self, name: str) -> Any:
        """Return what a reference names in the document. Raises UserError for one that leads nowhere, or outside."""
        try:
            return self._resolver.lookup(name).contents
        except (referencing.exceptions.Unresolvable, LookupError, ValueError, TypeError, AttributeError):
            inner = DEFINITION.fullmatch(name)
            if inner is not None and inner[1] in self._nested:
                return self._nested[inner[1]]
            raise UserError(
                f"{self._where}: {name[:200]} names no definition.", "Put it under `$defs`, or write it out."
            ) from None

    @cached_property
    def _resolver(self) -> Any:
        try:
            resource = referencing.Resource.from_contents(
                self._root, default_specification=referencing.jsonschema.DRAFT202012
            )
        except referencing.jsonschema.UnknownDialect:
            resource = referencing.jsonschema.DRAFT202012.create_resource(self._root)
        return referencing.Registry().resolver_with_root(resource)

    def _check(self, given: Mapping[str, Any], root: bool) -> None:
        kind, said = given.get("type"), {key for key, value in given.items() if value is not None}
        bare = said.isdisjoint(INSIDE) and (kind in (None, "object") or (_texts(kind) and "object" in kind))
        if bare:
            remedy = f"{SHAPE}." if root else "Write a keyword of JSON schema (`properties`?), or take it away."
            refuse_unread(given, KNOWN, self._where, remedy)
        if root and bare and (said & {*DEFINITIONS} or not said & KNOWN):
            keys = ", ".join(f"`{str(key)[:40]}`" for key in (*given,)[:4] if not str(key).startswith("x-"))
            if keys:
                raise UserError(f"{self._where}: its parameters say nothing of arguments ({keys}).", f"{SHAPE}.")
        for key, value in given.items():
            if key in FOLLOWED:
                raise UserError(f"{self._where}: `{key}` is not read.", "Use `$ref` to a definition under `$defs`.")
            if value is None or (shape := SHAPES.get(key)) is None:
                if value is not None and (meant := _misspelt(str(key), value)) is not None:
                    what = f"{self._where}: its key `{str(key)[:64]}` is not read: `{meant}` is meant, it seems."
                    raise UserError(what, f"Write `{meant}`, or take the key away.")
                continue
            if shape(value):
                continue
            try:
                jsonschema.Draft202012Validator.check_schema({key: value}, format_checker=None)
            except jsonschema.SchemaError as error:
                place = ".".join(map(str, error.absolute_path))
                raise UserError(
                    f"{self._where}: {place} is {repr(error.instance)[:80]}.",
                    f"Write what JSON schema has there ({error.message[-120:]}).",
                ) from None


def _misspelt(name: str, value: Any) -> str | None:
    """Return the keyword that an unknown name is nearly spelled as, if it takes such a value: else its rule is lost."""
    plain = re.sub("[^a-z]", "", name.lower()) if len(name) < 32 and not name.startswith("x-") else ""
    short = len(plain) < SHORT
    spelled = [known for known in SPELLED if known[0] == plain[:1]]
    near = get_close_matches(plain, spelled, 1, LIKE_SHORT if short else LIKE)
    keyword = SPELLED[near[0]] if near else name
    if keyword == name or name in KNOWN or (short and isinstance(value, bool)):  # a flag of somebody's
        return None
    return keyword if SHAPES[keyword](value) else None


def _of_gemini(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Gemini's types, in capitals, in the words of JSON schema."""
    kind = given.get("type")
    return {**given, "type": kind.lower()} if isinstance(kind, str) and kind.isupper() else given


def _modern(schema: dict[str, Any]) -> dict[str, Any]:
    """Draft 4's exclusive bounds, draft 7's tuples and dependencies, OpenAPI's `nullable` in the words of 2020-12."""
    if isinstance(kinds := schema.get("type"), list):
        schema["type"] = list(dict.fromkeys(kinds))  # some generators write "null" once more for a default of null
    if isinstance(schema.get("items"), list):
        rest = schema.pop("additionalItems", True)
        schema["prefixItems"] = schema.pop("items")
        if rest is not True:
            schema["items"] = rest
    schema.pop("additionalItems", None)
    for name, needs in (schema.pop("dependencies", None) or {}).items():
        key = "dependentRequired" if isinstance(needs, list) else "dependentSchemas"
        schema[key] = {**schema.get(key, {}), name: needs}
    for kept, bound in BOUNDS.items():
        if isinstance(exclusive := schema.get(bound), bool):
            del schema[bound]
            if exclusive and kept in schema:
                schema[bound] = schema.pop(kept)
    if schema.pop("nullable", False) is True:
        rest = {k: schema.pop(k) for k in tuple(schema) if k not in ABOUT}
        schema["anyOf"] = [rest, {"type": "null"}]
    return schema
