"""What is wrong with a field and what to write instead, in the protocol's own words."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import ValidationError

from rtcontrol.bridges.wire.errors import Code, WireError
from rtcontrol.bridges.wire.messages import MODELS

PLAIN = {"string": "a string", "boolean": "true or false", "array": "a list", "object": "a map"}
NUMBERS = {"integer": "a whole number", "number": "a number"}
schema_of = cache(lambda kind: MODELS[kind].model_json_schema(by_alias=True))


def explain(error: ValidationError, kind: str) -> WireError:
    """The refusal of a message of type `kind` that is none; names the first field that is wrong."""
    first = error.errors(include_url=False)[0]
    # Of the union of all messages the first step is the tag.
    steps = first["loc"][1:] if first["loc"][:1] == (kind,) else first["loc"]
    field = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")[:200]
    is_what = "missing" if first["type"] == "missing" else _shown(first["input"])
    remedy = f"Give {wanted(_schema_at(kind, steps))}."
    return WireError(Code.INVALID, f"{kind}.{field} is {is_what}.", remedy, field=field, fatal=kind == "hello")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a list of {len(value)}" if isinstance(value, list) else "a map"
    long = isinstance(value, str) and len(value) > 40
    return f"a string of {len(value)} characters" if long else json.dumps(value, default=repr)[:60]


def _schema_at(kind: str, steps: tuple[int | str, ...]) -> dict[str, Any]:
    root = at = schema_of(kind)
    for step in steps:
        at = at.get("items", {}) if isinstance(step, int) else at.get("properties", {}).get(step, {})
        at = next((arm for arm in at.get("anyOf", ()) if arm != {"type": "null"}), at)
        if "$ref" in at:
            at = root["$defs"][at["$ref"].rsplit("/", 1)[1]]
    return at


def wanted(schema: dict[str, Any]) -> str:
    """A JSON schema in words: `a number from 0.001 to 10000`."""
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ("one of " if len(values) > 1 else "") + ", ".join(f'"{v}"' for v in values)
    kind = schema.get("type", "object")
    if kind in NUMBERS:
        low, high = schema.get("minimum", schema.get("ge")), schema.get("maximum", schema.get("le"))
        high = schema["lt"] - 1 if "lt" in schema else high
        span = f" from {low:.16g}" if low is not None else ""
        return f"{NUMBERS[kind]}{span}" + ("" if high is None else f" to {high if kind == 'integer' else f'{high:g}'}")
    low, high = (schema.get(f"{end}{'Items' if kind == 'array' else 'Length'}") for end in ("min", "max"))
    span = f" of {low or 0} to {high}" if high is not None and high != low else f" of {low}" if low else ""
    size = f"{span} {'entries' if kind == 'array' else 'characters'}" if span else ""
    inner = schema.get("items", {})
    each = f", each {wanted(inner)}" if inner.get("type") in (*PLAIN, *NUMBERS) else ""
    keys = f" with {', '.join(schema['required'])}" if "required" in schema else ""
    return PLAIN[kind] + keys + size + each
