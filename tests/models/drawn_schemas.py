"""Random schemas of all types and keywords, by seed, with some values that `jsonschema` accepts for each."""

from __future__ import annotations

import random
import re
from typing import Any

import jsonschema

WORDS = ["a", "b", "red", "green", "x y", "é", "1", "A-1", 'q"t', "no\\w", "/cmd", ""]
PATTERNS = {
    "^/": ["/", "/cmd_vel", "/a b"], r"\S": ["x", " y ", "é"], "^[a-z]+$": ["a", "red"], r"^\d{2,4}$": ["12", "2026"],
    ".*[xyz]{3}$": ["xyz", "a zzz"], "(foo|bar)baz": ["foobaz", "-barbaz-"], r"^[A-Z]{2}-[0-9]+$": ["AB-1"],
    "a$|^b": ["xa", "bx"],
}  # fmt: skip
NAMES = ["p", "q", "long_name", "é", "with space"]
JUDGE = jsonschema.Draft202012Validator


class Drawer:
    """A generator of random schemas and values from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def schema(self, depth: int = 2) -> dict[str, Any]:
        draw = self.random
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "untyped", "string", "integer"]
        if depth:
            kinds += ["array", "object", "array", "object", "anyOf", "oneOf", "allOf", "not", "if", "types"]
        kind = draw.choice(kinds)
        schema = getattr(self, f"_{kind.lower()}", lambda _: {"type": kind})(depth)
        if self.chance(0.1):
            schema |= draw.choice(
                [{"title": "T"}, {"description": "d"}, {"x-own": 1}, {"examples": [1]}, {"$comment": "c"}]
            )
        return schema

    def _string(self, _: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        if self.chance(0.4):
            schema["pattern"] = self.random.choice(list(PATTERNS))
        if self.chance(0.3):
            schema["minLength"] = self.random.randint(0, 5)
        if self.chance(0.3):
            schema["maxLength"] = schema.get("minLength", 0) + self.random.randint(0, 9)
        if self.chance(0.1):
            schema["format"] = self.random.choice(["entity_id", "int64", "password"])
        if self.chance(0.05):
            schema["contentEncoding"] = "base64"
        return schema

    def _integer(self, _: int) -> dict[str, Any]:
        return self._bounded("integer", lambda: self.random.choice([0, 1, -5, 7, 100, 2**53 + 1, 2**63 - 1, -(2**63)]))

    def _number(self, _: int) -> dict[str, Any]:
        return self._bounded("number", lambda: self.random.choice([0, 0.5, -1.25, 3, 1e-9, 1e-300, 1e300, 99.9]))

    def _bounded(self, kind: str, bound: Any) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": kind}
        if self.chance(0.4):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = bound()
        if self.chance(0.4):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = bound()
        if self.chance(0.2):
            schema["multipleOf"] = self.random.choice([2, 5, 7] if kind == "integer" else [0.5, 0.25, 3])
        return schema

    def _enum(self, depth: int) -> dict[str, Any]:
        listed = [*WORDS, 1, 2, 2.5, True, None, [1], {"a": 1}]
        return {"enum": self.random.sample(listed, self.random.randint(1, 4))}

    def _untyped(self, depth: int) -> dict[str, Any]:
        return self.random.choice([{}, {"minimum": 3}, {"maxLength": 3}, {"maxItems": 1}])

    def _types(self, depth: int) -> dict[str, Any]:
        kinds = self.random.sample(["string", "integer", "null", "boolean", "array"], 2)
        return {"type": kinds, **({"maxItems": 2} if "array" in kinds else {})}

    def _array(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if self.chance(0.8):
            schema["items"] = self.schema(depth - 1)
        if self.chance(0.3):
            schema["prefixItems"] = [self.schema(0) for _ in range(self.random.randint(1, 2))]
        if self.chance(0.3):
            schema["minItems"] = self.random.randint(0, 3)
        if self.chance(0.4):
            schema["maxItems"] = schema.get("minItems", 0) + self.random.randint(0, 3)
        if self.chance(0.2):
            schema["uniqueItems"] = self.chance(0.7)
        if self.chance(0.1):
            schema["contains"] = self.schema(0)
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        draw, schema = self.random, dict[str, Any]({"type": "object"})
        names = draw.sample(NAMES, draw.randint(0, 3))
        if names:
            schema["properties"] = {name: self.schema(depth - 1) for name in names}
            schema["required"] = [name for name in names if self.chance(0.4)]
        if self.chance(0.4):
            schema["additionalProperties"] = draw.choice([False, True, self.schema(0)])
        if self.chance(0.1):
            schema["patternProperties"] = {"^k": self.schema(0)}
        if self.chance(0.15):
            schema["propertyNames"] = draw.choice([{"type": "string"}, {"pattern": "^[a-z_é ]+$"}, {"maxLength": 12}])
        if self.chance(0.15):
            schema["minProperties"] = 1
        if self.chance(0.1):
            schema["maxProperties"] = 2
        if len(names) > 1 and self.chance(0.2):
            schema["dependentRequired"] = {names[0]: [names[1]]}
        return schema

    def _anyof(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self.schema(depth - 1) for _ in range(2)]}

    def _oneof(self, depth: int) -> dict[str, Any]:
        return {"oneOf": [self.schema(depth - 1) for _ in range(2)]}

    def _allof(self, depth: int) -> dict[str, Any]:
        kind = self.random.choice([self._string, self._integer, self._object])
        return {"allOf": [kind(depth - 1), kind(depth - 1)]}

    def _not(self, depth: int) -> dict[str, Any]:
        return {**self.schema(depth - 1), "not": {"enum": [1, "a", None]}}

    def _if(self, depth: int) -> dict[str, Any]:
        return {"type": "integer", "if": {"minimum": 5}, "then": {"multipleOf": 5}, "else": {"maximum": 3}}

    def values(self, schema: dict[str, Any], count: int = 3) -> list[Any]:
        """Return up to `count` values that `jsonschema` accepts, generated without knowledge of the schema."""
        validator = JUDGE(closed(schema))
        drawn = (self._value(2) for _ in range(150))
        return [value for value in drawn if _plain(value) and validator.is_valid(value)][:count]

    def _value(self, depth: int) -> Any:
        draw, kind = self.random, self.random.random() if depth else 0
        if kind > 0.8:
            return [self._value(depth - 1) for _ in range(draw.randint(0, 3))]
        if kind > 0.5:
            return {name: self._value(depth - 1) for name in draw.sample([*NAMES, "k"], draw.randint(0, 3))}
        texts = [*WORDS, *(text for matching in PATTERNS.values() for text in matching)]
        numbers = [0, 1, -7, 10, 2**40, draw.randint(-99, 99), draw.choice([0.5, -1.25, 3.0, 99.75])]
        return draw.choice([draw.choice(texts), draw.choice(texts), *numbers, True, False, None])


def closed(schema: Any) -> Any:
    """Apply the product's convention: an object with declared properties has no others, unless the schema says so."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {k: v if k in ("enum", "examples") else closed(v) for k, v in schema.items()}
    return {"additionalProperties": False, **plain} if isinstance(schema.get("properties"), dict) else plain


def _plain(value: Any) -> bool:
    """Return whether all numbers are within 64 bits and have no more digits than a value may have."""
    if isinstance(value, list | dict):
        return all(map(_plain, value.values() if isinstance(value, dict) else value))
    if isinstance(value, float):
        return value == 0 or (1e-20 < abs(value) < 1e18 and re.search("e", repr(value)) is None)
    return not isinstance(value, int) or -(2**63) <= value < 2**63
