"""What is wrong with a field and what to write instead, in the protocol's own words."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from rtcontrol.bridges.wire.errors import Code, WireError
from rtcontrol.bridges.wire.messages import Message, whole

PLAIN = {"string": "a string", "boolean": "true or false", "array": "a list", "object": "a map"}


def explain(error: ValidationError, kind: str, seq: int | None = None, t_client_ns: int | None = None) -> WireError:
    """The refusal of a message of type `kind` that is none; names the first field that is wrong."""
    first = error.errors(include_url=False)[0]
    # Of the union of all messages the first step is the tag.
    steps = first["loc"][1:] if first["loc"][:1] == (kind,) else first["loc"]
    context = first.get("ctx", {})
    field = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")
    field = (str(context["field"]) if "field" in context else field)[:200]
    if "remedy" in context:
        what, remedy = first["msg"], str(context["remedy"])
    else:
        missing = first["type"] == "missing"
        what = f"{kind}.{field} {'is missing' if missing else 'is ' + _shown(first['input'])}"
        remedy = f"Give {wanted(_schema_at(kind, steps))}."
    hello = kind == "hello"
    stamp = t_client_ns if hello else None
    return WireError(Code.INVALID, f"{what}.", remedy, field=field, seq=seq, t_client_ns=stamp, fatal=hello)


def count_of(value: Any, limit: int = 1 << 53) -> int | None:
    """The count that a field not yet checked holds, if it does."""
    value = whole(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a list of {len(value)}" if isinstance(value, list) else "a map"
    long = isinstance(value, str) and len(value) > 40
    return f"a string of {len(value)} characters" if long else json.dumps(value, default=repr)[:60]


@cache
def _schema(kind: str) -> dict[str, Any]:
    model: type[BaseModel] = next(m for m in Message.__args__ if m.model_fields["type"].default == kind)
    return TypeAdapter(model).json_schema(by_alias=True)


def _schema_at(kind: str, steps: tuple[int | str, ...]) -> dict[str, Any]:
    root = _schema(kind)
    at = root
    for step in steps:
        at = at.get("items", {}) if isinstance(step, int) else at.get("properties", {}).get(step, {})
        at = next((arm for arm in at.get("anyOf", ()) if arm != {"type": "null"}), at)
        if "$ref" in at:
            at = root["$defs"][at["$ref"].rsplit("/", 1)[1]]
    return at


def wanted(schema: dict[str, Any]) -> str:
    """A JSON schema in words: `a number from 0.001 to 10000`."""
    if (values := schema.get("enum") or ([schema["const"]] if "const" in schema else None)) is not None:
        return ("one of " if len(values) > 1 else "") + ", ".join(f'"{v}"' for v in values)
    kind = schema.get("type", "")
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", schema.get("ge")), schema.get("maximum", schema.get("le"))
        high = schema["lt"] - 1 if "lt" in schema else high
        span = f" from {low:.16g}" if low is not None else ""
        span += f" to {high}" if isinstance(high, int) else f" to {high:g}" if high is not None else ""
        return ("a whole number" if kind == "integer" else "a number") + span
    low, high = (schema.get(f"{end}{'Items' if kind == 'array' else 'Length'}") for end in ("min", "max"))
    unit = "entries" if kind == "array" else "characters"
    size = (
        f" of {low or 0} to {high} {unit}" if high is not None and high != low else f" of {low} {unit}" if low else ""
    )
    inner = schema.get("items", {})
    each = f", each {wanted(inner)}" if kind == "array" and inner.get("type") in (*PLAIN, "integer", "number") else ""
    keys = f" with {', '.join(schema['required'])}" if "required" in schema else ""
    return PLAIN.get(kind, "a map") + keys + size + each
