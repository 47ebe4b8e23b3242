"""Convert a schema to draft 2020-12 without references, and check its keywords.

The keywords of each subschema are checked by jsonschema's meta-schemas, one subschema at a time.
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
from rtcontrol.models.schema.definition import SHAPE_HINT
from rtcontrol.models.schema.limits import SchemaBudget
from rtcontrol.models.schema.validator import ANNOTATIONS, NO_VALUE

DEFINITIONS = ("$defs", "definitions")
TEXTS = ("format", "title", "description", "$ref", "$comment")
TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}
BOUNDS = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
COUNTS = {f"{end}{of}" for end in ("min", "max") for of in ("Length", "Items", "Properties", "Contains")}
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "patternProperties", "dependentSchemas")
DROPPED_KEYWORDS = {*DEFINITIONS, "$schema", "$id", "$anchor"}  # only references need these keywords
UNSUPPORTED = {"$dynamicRef", "$recursiveRef"}
DEFINITION = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
MAX_DEPTH = 100  # maximum depth of nested subschemas


def _shallow(rule: Any) -> Any:
    """Return a meta-schema's rule for a keyword, without rules for subschemas."""
    if isinstance(rule, list):
        return [_shallow(part) for part in rule]
    if not isinstance(rule, Mapping):
        return rule
    if "$dynamicRef" in rule:
        return True
    return {key: _shallow(part) for key, part in rule.items() if key != "uniqueItems"}  # some tools list "null" twice


def _rules() -> dict[str, Any]:
    rules: dict[str, Any] = {}
    for name in ("applicator", "unevaluated", "validation"):
        vocabulary = REGISTRY.contents(f"https://json-schema.org/draft/2020-12/meta/{name}")
        shared = _shallow(vocabulary.get("$defs", {}))
        for keyword, rule in vocabulary["properties"].items():
            of_one = isinstance(rule, Mapping) and "$dynamicRef" in rule
            rules[keyword] = {"type": ["object", "boolean"]} if of_one else {"allOf": [_shallow(rule)], "$defs": shared}
    schemas = rules["prefixItems"]["allOf"]
    rules["items"] = {"anyOf": [rules["items"], *schemas], "$defs": rules["prefixItems"]["$defs"]}  # lists: draft 7
    for bound in BOUNDS.values():
        rules[bound] = {"type": ["number", "boolean"]}  # draft 4 has booleans here
    return rules


KEYWORD_SCHEMAS = _rules()
SINGLE = {keyword for keyword, rule in KEYWORD_SCHEMAS.items() if rule == {"type": ["object", "boolean"]}} | {"items"}
# Keywords that can make a value invalid.
RULE_KEYWORDS = {*KEYWORD_SCHEMAS} - {"then", "else"}
KEYWORD_SCHEMAS |= {key: {"type": "string"} for key in TEXTS} | {key: {"type": "object"} for key in DEFINITIONS}
OTHER = {"default", "examples", "example", "$schema", "$id", "id", "$anchor", "nullable", "discriminator"}
IGNORED = {"contentSchema", "xml", "externalDocs", "metadata", "_meta", "dependencies", "additionalItems"}
KNOWN = {*KEYWORD_SCHEMAS, *OTHER, *UNSUPPORTED, *IGNORED}
# SPELLINGS maps the lower-case letters of a keyword to its spelling. An unknown keyword that is similar is an error.
COMMON = {"title", "description", "$comment", "format", "const", *DEFINITIONS}  # similar names may be intended
SPELLINGS = {keyword.lower().strip("$"): keyword for keyword in {*KEYWORD_SCHEMAS} - COMMON}
SHORT, LIKE, LIKE_SHORT = 6, 0.84, 0.75  # names below SHORT characters need the similarity LIKE_SHORT, others LIKE
# Keywords that say what an object contains.
CONTENTS = {*LISTS, *MAPS, "$ref", "if", "not", "enum", "const", "propertyNames", "dependentRequired", "dependencies"}
_BASE = jsonschema.Draft202012Validator
_SHAPE = jsonschema.validators.extend(
    _BASE, type_checker=_BASE.TYPE_CHECKER.redefine("array", lambda _, value: isinstance(value, list | tuple))
)


@cache
def _keyword_validator(keyword: str) -> Any:
    return _SHAPE(KEYWORD_SCHEMAS[keyword])


class SchemaDocument:
    """A whole schema with references. `where` names the schema in errors; `room` limits its size."""

    def __init__(self, root: Mapping[str, Any], where: str, room: SchemaBudget) -> None:
        self._root, self._where, self._room = root, where, room
        # Definitions that are nested in subschemas. A schema that was copied into another schema still refers to these.
        self._nested_definitions: dict[str, Any] = {}

    def without_references(self, call: bool = False) -> dict[str, Any]:
        """Return the schema with references replaced by their targets. With `call`, errors name the properties.

        Raises UserError if it is not a schema, if a reference has no target, points to another document or is circular,
        and if there are more subschemas than `room` allows.
        """
        if call:
            self._check_root()
        plain = self._convert(self._root, (), 0, call)
        assert isinstance(plain, dict)
        return plain

    def _convert(self, source: Any, inside: tuple[str, ...], depth: int, call: bool = False) -> dict[str, Any] | bool:
        """Convert a subschema. `inside` has the references that were followed to reach it."""
        self._room.use(self._where, parts=1)
        if isinstance(source, bool):
            return source
        if not isinstance(source, Mapping):
            raise UserError(f"{self._where}: its schema is {repr(source)[:80]}.", "Write a JSON schema object.")
        if depth > MAX_DEPTH:
            raise UserError(f"{self._where}: its schema is nested too deeply.", "Use fewer levels.")
        self._check_keywords(source)
        if depth:
            for key in DEFINITIONS:
                self._nested_definitions |= source.get(key) or {}
        schema: dict[str, Any] = {}
        for key, value in source.items():
            # A null counts as a missing keyword, because some languages serialise missing fields as null.
            if key not in DROPPED_KEYWORDS and (value is not None or key in ("const", "default")):
                schema[key] = self._convert_value(key, value, inside, depth + 1, call)
        whole = self._merge_target(schema, inside, depth, call)
        if not isinstance(whole, dict):
            return whole
        return NO_VALUE if whole.get("not") == {} else _to_draft_2020(whole)

    def _convert_value(self, key: str, value: Any, inside: tuple[str, ...], depth: int, call: bool) -> Any:
        if key in SINGLE | {"additionalItems"} and not isinstance(value, list | tuple):
            part = self._convert(value, inside, depth, call and key in ("not", "if", "then", "else"))
            return self._convert_not(part) if key == "not" else part
        if key in (*LISTS, "items"):
            return [self._convert(part, inside, depth, call and key != "items") for part in value]
        if key not in (*MAPS, "dependencies") or not isinstance(value, Mapping):
            return list(value) if isinstance(value, tuple) else value
        parts, outer = {}, self._where
        for name, part in value.items():
            if call and key == "properties":
                self._where = f"{outer}, parameter {name}"
            listed = key == "dependencies" and isinstance(part, list | tuple)
            parts[name] = list(part) if listed else self._convert(part, inside, depth, call and key != "properties")
            self._where = outer
        return parts

    def _convert_not(self, part: dict[str, Any] | bool) -> dict[str, Any] | bool:
        """Return the schema of a `not`. Raises UserError if it has only annotations, which would exclude every
        value."""
        if part is True or part is False or RULE_KEYWORDS & set(part):
            return {} if part is True else part
        if part:
            problem = f"{self._where}: its `not` has no rule ({', '.join(part)[:80]}), so it excludes every value."
            raise UserError(problem, "Add a rule for what is not allowed, or remove the `not`.")
        return {}

    def _merge_target(self, schema: dict[str, Any], inside: tuple[str, ...], depth: int, call: bool) -> Any:
        """Return a schema merged with the target of its `$ref`, because values must satisfy both."""
        name = schema.pop("$ref", None)
        if name is None:
            return schema
        if name in inside:
            raise UserError(
                f"{self._where}: {name} refers to itself, so its values may be nested without limit.",
                "Write out as many levels as you need.",
            )
        target = self._convert(self._target_of(name), (*inside, name), depth + 1, call)
        if target is True or (target is False and not schema):
            return schema if target else False
        if isinstance(target, dict) and set(schema) <= {*ANNOTATIONS}:
            return {**target, **schema}
        return {**schema, "allOf": [target, *schema.get("allOf", ())]}

    def _target_of(self, name: str) -> Any:
        """Return the target of a reference. Raises UserError if the document has none."""
        try:
            return self._resolver.lookup(name).contents
        except (referencing.exceptions.Unresolvable, LookupError, ValueError, TypeError, AttributeError):
            inner = DEFINITION.fullmatch(name)
            if inner is not None and inner[1] in self._nested_definitions:
                return self._nested_definitions[inner[1]]
            problem = f"{self._where}: {name[:200]} is not a definition."
            raise UserError(problem, "Add it to `$defs`, or replace the reference by its target.") from None

    @cached_property
    def _resolver(self) -> Any:
        draft = referencing.jsonschema.DRAFT202012
        try:
            resource = referencing.Resource.from_contents(self._root, default_specification=draft)
        except referencing.jsonschema.UnknownDialect:
            resource = draft.create_resource(self._root)
        return referencing.Registry().resolver_with_root(resource)

    def _check_root(self) -> None:
        """Raise UserError if the root schema has no keyword that declares arguments, but has unknown keys."""
        named = {str(k): v for k, v in self._root.items() if v is not None and not str(k).startswith("x-")}
        if named.keys() & CONTENTS:
            return
        keys = [key for key, value in named.items() if key not in KNOWN and isinstance(value, Mapping | list) and value]
        if named.keys() & {*DEFINITIONS} or not named.keys() & KNOWN:
            keys = [*named]
        if keys:
            listed = ", ".join(f"`{key[:40]}`" for key in keys[:4])
            raise UserError(f"{self._where}: its parameters declare no arguments ({listed}).", f"{SHAPE_HINT}.")

    def _check_keywords(self, source: Mapping[str, Any]) -> None:
        for key, value in source.items():
            if key in UNSUPPORTED:
                raise UserError(f"{self._where}: `{key}` is not supported.", "Use `$ref` to a definition in `$defs`.")
            plain = isinstance(value, str) and (key in TEXTS or (key == "type" and value in TYPES))
            if value is None or plain:
                continue
            if key not in KEYWORD_SCHEMAS:
                if (keyword := _similar_keyword(str(key), value)) is not None:
                    problem = f"{self._where}: its key `{str(key)[:64]}` is unknown; `{keyword}` may be meant."
                    raise UserError(problem, f"Write `{keyword}`, or remove the key.")
            elif (error := next(_keyword_validator(key).iter_errors(value), None)) is not None:
                place = ".".join(map(str, (key, *error.absolute_path)))
                raise UserError(
                    f"{self._where}: {place} is {repr(error.instance)[:80]}.",
                    f"Correct it as JSON schema requires ({error.message[-120:]}).",
                )


def _similar_keyword(name: str, value: Any) -> str | None:
    """Return the keyword that is similar to an unknown key, if that keyword may have this value; else None."""
    plain = re.sub("[^a-z]", "", name.lower()) if len(name) < 32 and not name.startswith("x-") else ""
    short = len(plain) < SHORT
    spelled = [known for known in SPELLINGS if known[0] == plain[:1]]
    similar = get_close_matches(plain, spelled, 1, LIKE_SHORT if short else LIKE)
    keyword = SPELLINGS[similar[0]] if similar else name
    if keyword == name or name in KNOWN or (short and isinstance(value, bool)):  # probably a flag, no misspelling
        return None
    return keyword if _keyword_validator(keyword).is_valid(value) else None


def _to_draft_2020(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert to draft 2020-12: draft 4's exclusive bounds, draft 7's tuples and dependencies, OpenAPI's `nullable`,
    and counts such as 2.0."""
    schema |= {key: int(schema[key]) for key in COUNTS & schema.keys()}
    kinds = schema.get("type", [])
    if schema.pop("nullable", False) is True and kinds:  # OpenAPI 3.0.3: adds null to the type, not to an enum
        kinds = [*([kinds] if isinstance(kinds, str) else kinds), "null"]
    if kinds and isinstance(kinds, list):
        schema["type"] = list(dict.fromkeys(kinds))  # some generators repeat "null" for a default of null
    rest = schema.pop("additionalItems", True)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if rest is not True:
            schema["items"] = rest
    for name, needs in (schema.pop("dependencies", None) or {}).items():
        key = "dependentRequired" if isinstance(needs, list) else "dependentSchemas"
        schema[key] = {**schema.get(key, {}), name: needs}
    for inclusive_key, exclusive_key in BOUNDS.items():
        if isinstance(exclusive := schema.get(exclusive_key), bool):
            del schema[exclusive_key]
            if exclusive and inclusive_key in schema:
                schema[exclusive_key] = schema.pop(inclusive_key)
    return schema
