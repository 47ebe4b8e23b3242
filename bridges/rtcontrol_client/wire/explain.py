"""What pydantic found wrong, in the protocol's own words: what to write instead."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rtcontrol_client.wire.errors import Code, WireError

KINDS = {"string": "a string", "boolean": "true or false", "array": "a list", "object": "a map"}
NUMBERS = {"integer": "a whole number", "number": "a number"}


def refusal_of(first: Any, steps: Sequence[int | str], kind: str, schema: dict[str, Any], inside: int = 0) -> WireError:
    """Of the first error, at `steps` of a message of type `kind`; the field is named from step `inside` on."""
    field = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps[inside:]).lstrip(".")[:200]
    is_what = "missing" if first["type"] == "missing" else _shown(first["input"])
    what = f"{kind}.{field} is {is_what}." if field else f"The part is {is_what}."
    remedy = f"Give {_wanted(_schema_at(schema, steps))}."
    return WireError(Code.INVALID, what, remedy, field=field or None, fatal=kind == "hello")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a list of {len(value)}" if isinstance(value, list) else "a map"
    long = isinstance(value, str) and len(value) > 40
    return f"a string of {len(value)} characters" if long else json.dumps(value, default=repr)[:60]


def _schema_at(root: dict[str, Any], steps: Sequence[int | str]) -> dict[str, Any]:
    at = root
    for step in steps:
        at = at.get("items", {}) if isinstance(step, int) else at.get("properties", {}).get(step, {})
        at = next((arm for arm in at.get("anyOf", ()) if arm != {"type": "null"}), at)
        if "$ref" in at:
            at = root["$defs"][at["$ref"].rsplit("/", 1)[1]]
    return at


def _wanted(schema: dict[str, Any]) -> str:
    # A JSON schema in words: `a number from 0.001 to 10000`.
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
    each = f", each {_wanted(inner)}" if inner.get("type") in (*KINDS, *NUMBERS) else ""
    keys = f" with {', '.join(schema['required'])}" if "required" in schema else ""
    return KINDS[kind] + keys + size + each
