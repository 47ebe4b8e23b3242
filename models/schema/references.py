"""Write a schema as one tree of draft 2020-12: references written out, keywords checked.

The keywords of each part are checked by jsonschema's meta-schemas, one part at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache, cached_property
from typing import Any

import jsonschema
import referencing
import referencing.exceptions
import referencing.jsonschema
from jsonschema_specifications import REGISTRY

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import SHAPE
from rtcontrol.models.schema.limits import Room
from rtcontrol.models.schema.validator import ABOUT, NOTHING

DEFINITIONS = ("$defs", "definitions")
TEXTS = ("format", "title", "description", "$ref", "$comment")
TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}
BOUNDS = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
COUNTS = {f"{end}{of}" for end in ("min", "max") for of in ("Length", "Items", "Properties", "Contains")}
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("properties", "patternProperties", "dependentSchemas")
GONE = {*DEFINITIONS, "$schema", "$id", "$anchor"}  # not needed when references are written out
FOLLOWED = {"$dynamicRef", "$recursiveRef"}
DEFINITION = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
MAX_DEPTH = 100  # of parts in parts


def _shallow(rule: Any) -> Any:
    """Return a meta-schema's rule for a keyword without its rules for schemas inside."""
    if isinstance(rule, list):
        return [_shallow(part) for part in rule]
    if not isinstance(rule, Mapping):
        return rule
    if "$dynamicRef" in rule:
        return True
    return {key: _shallow(part) for key, part in rule.items() if key != "uniqueItems"}  # some write "null" twice


def _rules() -> dict[str, Any]:
    rules: dict[str, Any] = {}
    for name in ("applicator", "unevaluated", "validation"):
        vocabulary = REGISTRY.contents(f"https://json-schema.org/draft/2020-12/meta/{name}")
        shared = _shallow(vocabulary.get("$defs", {}))
        for keyword, rule in vocabulary["properties"].items():
            of_one = isinstance(rule, Mapping) and "$dynamicRef" in rule
            rules[keyword] = {"type": ["object", "boolean"]} if of_one else {"allOf": [_shallow(rule)], "$defs": shared}
    schemas = rules["prefixItems"]["allOf"]
    rules["items"] = {"anyOf": [rules["items"], *schemas], "$defs": rules["prefixItems"]["$defs"]}  # of draft 7
    for bound in BOUNDS.values():
        rules[bound] = {"type": ["number", "boolean"]}  # of draft 4
    return rules


RULES_OF = _rules()
ONE = {keyword for keyword, rule in RULES_OF.items() if rule == {"type": ["object", "boolean"]}} | {"items"}
# Keywords that may exclude a value.
RULES = {*RULES_OF} - {"then", "else"}
RULES_OF |= {key: {"type": "string"} for key in TEXTS} | {key: {"type": "object"} for key in DEFINITIONS}
OTHER = {"default", "examples", "example", "$schema", "$id", "id", "$anchor", "nullable", "discriminator"}
APART = {"contentSchema", "xml", "externalDocs", "metadata", "_meta", "dependencies", "additionalItems"}
KNOWN = {*RULES_OF, *OTHER, *FOLLOWED, *APART}
# A misspelt keyword is taken for one of these: by its letters, of which few get the first one wrong.
PLAIN = {"title", "description", "$comment", "format", "const", *DEFINITIONS}  # words of annotations, too
SPELLED = {keyword.lower().strip("$"): keyword for keyword in {*RULES_OF} - PLAIN}
SHORT, LIKE, LIKE_SHORT = 6, 0.84, 0.75  # of a name with fewer letters, each one is more of it
# Without one of them an object's schema does not say what is in it.
INSIDE = {*LISTED, *NAMED, "$ref", "if", "not", "enum", "const", "propertyNames", "dependentRequired", "dependencies"}
_BASE = jsonschema.Draft202012Validator
_SHAPE = jsonschema.validators.extend(
    _BASE, type_checker=_BASE.TYPE_CHECKER.redefine("array", lambda _, value: isinstance(value, list | tuple))
)


@cache
def _judge(keyword: str) -> Any:
    return _SHAPE(RULES_OF[keyword])


class SchemaDocument:
    """A whole schema with its references. `where` names it in errors, `room` limits its size."""

    def __init__(self, root: Mapping[str, Any], where: str, room: Room) -> None:
        self._root, self._where, self._room = root, where, room
        # Schemas that were put into others keep their own definitions, to which their references still point.
        self._nested: dict[str, Any] = {}

    def plain(self, call: bool = False) -> dict[str, Any]:
        """Return it without references. With `call` its properties are the parameters of a call, and errors name them.

        Raises UserError for something that is not a schema, for a reference without a target, to another document or in
        a circle, and for more parts than `room` allows.
        """
        if call:
            self._check_root()
        plain = self._read(self._root, (), 0, call)
        assert isinstance(plain, dict)
        return plain

    def _read(self, source: Any, inside: tuple[str, ...], depth: int, call: bool = False) -> dict[str, Any] | bool:
        """Read a part; `inside` are the references on the way to it."""
        self._room.take(self._where, parts=1)
        if isinstance(source, bool):
            return source
        if not isinstance(source, Mapping):
            raise UserError(f"{self._where}: its schema is {repr(source)[:80]}.", "Write a JSON schema object.")
        if depth > MAX_DEPTH:
            raise UserError(f"{self._where}: its schema is nested too deeply.", "Describe a flatter value.")
        self._check(source)
        if depth:
            for key in DEFINITIONS:
                self._nested |= source.get(key) or {}
        schema: dict[str, Any] = {}
        for key, value in source.items():
            # Some languages write null for what is not there.
            if key not in GONE and (value is not None or key in ("const", "default")):
                schema[key] = self._value(key, value, inside, depth + 1, call)
        whole = self._with_target(schema, inside, depth, call)
        if not isinstance(whole, dict):
            return whole
        return NOTHING if whole.get("not") == {} else _modern(whole)

    def _value(self, key: str, value: Any, inside: tuple[str, ...], depth: int, call: bool) -> Any:
        if key in ONE | {"additionalItems"} and not isinstance(value, list | tuple):
            part = self._read(value, inside, depth, call and key in ("not", "if", "then", "else"))
            return self._excluded(part) if key == "not" else part
        if key in (*LISTED, "items"):
            return [self._read(part, inside, depth, call and key != "items") for part in value]
        if key not in (*NAMED, "dependencies") or not isinstance(value, Mapping):
            return list(value) if isinstance(value, tuple) else value
        parts, outer = {}, self._where
        for name, part in value.items():
            if call and key == "properties":
                self._where = f"{outer}, parameter {name}"
            listed = key == "dependencies" and isinstance(part, list | tuple)
            parts[name] = list(part) if listed else self._read(part, inside, depth, call and key != "properties")
            self._where = outer
        return parts

    def _excluded(self, part: dict[str, Any] | bool) -> dict[str, Any] | bool:
        """Return the schema of a `not`. Raises UserError for one with annotations only, which would exclude every
        value."""
        if part is True or part is False or RULES & set(part):
            return {} if part is True else part
        if part:
            problem = f"{self._where}: its `not` has no rule ({', '.join(part)[:80]}), and so excludes every value."
            raise UserError(problem, "Write into it what is not allowed, or take it away.")
        return {}

    def _with_target(self, schema: dict[str, Any], inside: tuple[str, ...], depth: int, call: bool) -> Any:
        """Return the schema merged with the target of its reference: both apply."""
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
        """Return the target of a reference. Raises UserError where the document has none."""
        try:
            return self._resolver.lookup(name).contents
        except (referencing.exceptions.Unresolvable, LookupError, ValueError, TypeError, AttributeError):
            inner = DEFINITION.fullmatch(name)
            if inner is not None and inner[1] in self._nested:
                return self._nested[inner[1]]
            problem = f"{self._where}: {name[:200]} names no definition."
            raise UserError(problem, "Put it under `$defs`, or write it out.") from None

    @cached_property
    def _resolver(self) -> Any:
        draft = referencing.jsonschema.DRAFT202012
        try:
            resource = referencing.Resource.from_contents(self._root, default_specification=draft)
        except referencing.jsonschema.UnknownDialect:
            resource = draft.create_resource(self._root)
        return referencing.Registry().resolver_with_root(resource)

    def _check_root(self) -> None:
        """Raise UserError where unknown keys, and no known one, may declare the arguments."""
        named = {str(k): v for k, v in self._root.items() if v is not None and not str(k).startswith("x-")}
        if named.keys() & INSIDE:
            return
        keys = [key for key, value in named.items() if key not in KNOWN and isinstance(value, Mapping | list) and value]
        if named.keys() & {*DEFINITIONS} or not named.keys() & KNOWN:
            keys = [*named]
        if keys:
            listed = ", ".join(f"`{key[:40]}`" for key in keys[:4])
            raise UserError(f"{self._where}: its parameters say nothing of arguments ({listed}).", f"{SHAPE}.")

    def _check(self, source: Mapping[str, Any]) -> None:
        for key, value in source.items():
            if key in FOLLOWED:
                raise UserError(f"{self._where}: `{key}` is not read.", "Use `$ref` to a definition under `$defs`.")
            plain = isinstance(value, str) and (key in TEXTS or (key == "type" and value in TYPES))
            if value is None or plain:
                continue
            if key not in RULES_OF:
                if (keyword := _misspelt(str(key), value)) is not None:
                    problem = f"{self._where}: its key `{str(key)[:64]}` is not read: `{keyword}` is meant, it seems."
                    raise UserError(problem, f"Write `{keyword}`, or take the key away.")
            elif (error := next(_judge(key).iter_errors(value), None)) is not None:
                place = ".".join(map(str, (key, *error.absolute_path)))
                raise UserError(
                    f"{self._where}: {place} is {repr(error.instance)[:80]}.",
                    f"Write what JSON schema has there ({error.message[-120:]}).",
                )


def _misspelt(name: str, value: Any) -> str | None:
    """Return the keyword that an unknown name resembles, if it takes such a value: otherwise a rule would be lost."""
    plain = re.sub("[^a-z]", "", name.lower()) if len(name) < 32 and not name.startswith("x-") else ""
    short = len(plain) < SHORT
    spelled = [known for known in SPELLED if known[0] == plain[:1]]
    near = get_close_matches(plain, spelled, 1, LIKE_SHORT if short else LIKE)
    keyword = SPELLED[near[0]] if near else name
    if keyword == name or name in KNOWN or (short and isinstance(value, bool)):  # a flag of somebody's
        return None
    return keyword if _judge(keyword).is_valid(value) else None


def _modern(schema: dict[str, Any]) -> dict[str, Any]:
    """Write draft 4's exclusive bounds, draft 7's tuples and dependencies, OpenAPI's `nullable`, and counts such as 2.0
    as 2020-12 does."""
    schema |= {key: int(schema[key]) for key in COUNTS & schema.keys()}
    if isinstance(kinds := schema.get("type"), list):
        schema["type"] = list(dict.fromkeys(kinds))  # some generators write "null" once more for a default of null
    rest = schema.pop("additionalItems", True)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if rest is not True:
            schema["items"] = rest
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
