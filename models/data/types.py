"""Convert the types and values of public data sets to those of JSON Schema.

Some data sets use Python's type names (dict, float, tuple, any), Mobile Actions uses capital letters, and xLAM uses
annotations such as `List[int]` or `str, optional`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import UnusableSample
from rtcontrol.models.errors import strict_json

TYPE_NAMES = {
    **dict.fromkeys(("string", "str", "any", "datetime", "date", "time", "char"), "string"),
    **dict.fromkeys(("integer", "int", "long"), "integer"),
    **dict.fromkeys(("number", "float", "double", "decimal", "complex"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "set", "sequence", "iterable", "frozenset"), "array"),
    **dict.fromkeys(("object", "dict", "mapping", "hashmap"), "object"),
    **dict.fromkeys(("null", "none", "nonetype"), "null"),
}
UNKNOWN_TYPE = "a parameter of an unknown type"
OPTIONAL = re.compile(r",\s*optional\b|,\s*default\b.*$|\boptional\b(?!\s*\[)", re.IGNORECASE)
BY_NAME = ("properties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
WORDS = {"true": True, "false": False, "null": None, "none": None}
NO_CALL = "an expected call that cannot be read"
NOT_PYTHON = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)


def convert_types(schema: Any) -> dict[str, Any]:
    """Return a schema with all types converted to JSON Schema's names. Raises UnusableSample for an unknown type."""
    if not isinstance(schema, Mapping):
        raise UnusableSample("a parameter without a schema", repr(schema)[:80])
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type":
            result |= _convert_type(value)
        elif key in BY_NAME and isinstance(value, Mapping):
            result[key] = {name: convert_types(part) for name, part in value.items()}
        elif key in LISTS and isinstance(value, list):
            result[key] = [convert_types(part) for part in value]
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            result[key] = convert_types(value)
        else:
            result[key] = value
    if "properties" in result:
        result.setdefault("type", "object")
    return result


def tool_definition(name: str, description: Any, parameters: Any) -> dict[str, Any]:
    """Return an OpenAI-style tool definition, with types converted to JSON Schema's names.

    Raises UnusableSample for an unknown type.
    """
    schema = convert_types(parameters or {"type": "object", "properties": {}})
    schema.setdefault("properties", {})
    body = {"name": name, "description": str(description or ""), "parameters": schema}
    return {"type": "function", "function": body}


def parse_annotation(text: str) -> tuple[dict[str, Any], bool]:
    """Return the schema of a Python annotation (`List[int]`, `Optional[str]`, `int, optional`), and whether the
    parameter is optional. Raises UnusableSample."""
    plain = OPTIONAL.sub("", text).strip().rstrip(",")
    optional = plain != text.strip()
    try:
        node: ast.expr = ast.parse(plain, mode="eval").body
    except NOT_PYTHON:
        raise UnusableSample(UNKNOWN_TYPE, text) from None
    if isinstance(node, ast.Subscript) and _type_name(node.value) == "optional":
        node, optional = node.slice, True
    return _annotation_schema(node, text), optional


def _convert_type(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"type": [_convert_type(name)["type"] for name in value]}
    if not isinstance(value, str):
        raise UnusableSample(UNKNOWN_TYPE, repr(value)[:80])
    known = TYPE_NAMES.get(value.strip().lower())
    return {"type": known} if known else parse_annotation(value)[0]


def _type_name(node: ast.expr) -> str:
    return (node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else "").lower()


def _annotation_schema(node: ast.expr, text: str) -> dict[str, Any]:
    if isinstance(node, ast.Constant) and node.value is None:
        return {"type": "null"}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([_annotation_schema(side, text) for side in (node.left, node.right)])
    if not isinstance(node, ast.Subscript):
        if known := TYPE_NAMES.get(_type_name(node)):
            return {"type": known}
        raise UnusableSample(UNKNOWN_TYPE, text)
    outer = _type_name(node.value)
    parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if outer in ("union", "optional"):
        return _union([_annotation_schema(part, text) for part in parts])
    if outer == "literal":
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        return {"enum": values} if all(isinstance(v, str) for v in values) and values else {"type": "string"}
    kind = TYPE_NAMES.get(outer)
    if kind == "object":
        return {"type": "object", "additionalProperties": _annotation_schema(parts[-1], text)}
    if kind != "array":
        raise UnusableSample(UNKNOWN_TYPE, text)
    items = [_annotation_schema(p, text) for p in parts if not (isinstance(p, ast.Constant) and p.value is Ellipsis)]
    return {"type": "array", "items": _union(items)}


def _union(arms: list[dict[str, Any]]) -> dict[str, Any]:
    kept = [arm for i, arm in enumerate(arms) if arm not in arms[:i] and arm != {"type": "null"}]
    return kept[0] if len(kept) == 1 else {"anyOf": kept} if kept else {"type": "null"}


def parse_call(text: str) -> Call:
    """Parse a call in Python source with keyword arguments only, such as `f.g(a=1, b=[2], c=true)`. A name as a value
    becomes a string, except true, false, null and none. Raises UnusableSample."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except NOT_PYTHON:
        raise UnusableSample(NO_CALL, text[:120]) from None
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        raise UnusableSample(NO_CALL, text[:120])
    return Call(ast.unparse(node.func), {str(k.arg): _literal_value(k.value, text) for k in node.keywords})


def _literal_value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name | ast.Attribute):
        word = ast.unparse(node)
        return WORDS.get(word.lower(), word)
    try:
        return json.loads(json.dumps(ast.literal_eval(node), allow_nan=False))
    except NOT_PYTHON:
        raise UnusableSample(NO_CALL, text[:120]) from None


def convert_value(value: Any, schema: Mapping[str, Any]) -> Any:
    """Convert a value to its parameter's type: parse a string, or wrap a single value in a list. A value that cannot be
    converted is returned unchanged."""
    kind = schema.get("type")
    if kind == "array":
        read = _literal(value) if isinstance(value, str) else value
        return [convert_value(item, schema.get("items", {})) for item in (read if isinstance(read, list) else [value])]
    if kind == "object" and isinstance(value, str) and isinstance(read := _literal(value), dict):
        return read
    if kind in ("integer", "number") and isinstance(value, str):
        return _parse_number(value, kind)
    if kind == "boolean" and isinstance(value, str):
        return WORDS.get(value.strip().lower(), value)
    return value


def _parse_number(text: str, kind: str) -> Any:
    try:
        number = float(text.strip().replace(",", "").removesuffix("%"))
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    if kind == "number":
        return number
    return int(number) if number.is_integer() else text


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except NOT_PYTHON:
        return None


def parse_list(value: Any, name: str) -> list[Any]:
    """Return a list from a list or from JSON text. Raises UnusableSample, whose reason starts with `name`."""
    read = _parse_json(value, name)
    if not isinstance(read, list):
        raise UnusableSample(f"{name} that are not a list", repr(value)[:120])
    return read


def parse_arguments(value: Any) -> dict[str, Any]:
    """Return arguments from a mapping or from JSON text (an empty text or null means no arguments). Raises
    UnusableSample."""
    read = None if isinstance(value, str) and not value.strip() else _parse_json(value, "arguments")
    if read is not None and not isinstance(read, Mapping):
        raise UnusableSample("arguments that are not an object", repr(value)[:120])
    return dict(read or {})


def _parse_json(value: Any, name: str) -> Any:
    try:
        return strict_json(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        raise UnusableSample(f"{name} that are not JSON", str(value)[:120]) from None
