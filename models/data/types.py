"""Convert types and expected values of public sets to those of JSON Schema.

Some sets use Python's names (dict, float, tuple, any), Mobile Actions capital letters, xLAM annotations such as
`List[int]` or `str, optional`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.errors import strict_json

NAMES = {
    **dict.fromkeys(("string", "str", "any", "datetime", "date", "time", "char"), "string"),
    **dict.fromkeys(("integer", "int", "long"), "integer"),
    **dict.fromkeys(("number", "float", "double", "decimal", "complex"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "set", "sequence", "iterable", "frozenset"), "array"),
    **dict.fromkeys(("object", "dict", "mapping", "hashmap"), "object"),
    **dict.fromkeys(("null", "none", "nonetype"), "null"),
}
UNKNOWN = "a parameter of a type that is not known"
OPTIONAL = re.compile(r",\s*optional\b|,\s*default\b.*$|\boptional\b(?!\s*\[)", re.IGNORECASE)
BY_NAME = ("properties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
WORDS = {"true": True, "false": False, "null": None, "none": None}
NO_CALL = "an expected call that cannot be read"
NOT_PYTHON = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)


def typed(schema: Any) -> dict[str, Any]:
    """Return a schema with JSON Schema's types, at all depths. Raises Unusable for an unknown type."""
    if not isinstance(schema, Mapping):
        raise Unusable("a parameter without a schema", repr(schema)[:80])
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type":
            result |= _types(value)
        elif key in BY_NAME and isinstance(value, Mapping):
            result[key] = {name: typed(part) for name, part in value.items()}
        elif key in LISTS and isinstance(value, list):
            result[key] = [typed(part) for part in value]
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            result[key] = typed(value)
        else:
            result[key] = value
    if "properties" in result:
        result.setdefault("type", "object")
    return result


def tool(name: str, description: Any, parameters: Any) -> dict[str, Any]:
    """Return a function's OpenAI-style definition, with JSON Schema's types; `parameters` None: it takes none.

    Raises Unusable for an unknown type.
    """
    schema = typed(parameters or {"type": "object", "properties": {}})
    schema.setdefault("properties", {})
    body = {"name": name, "description": str(description or ""), "parameters": schema}
    return {"type": "function", "function": body}


def annotation(text: str) -> tuple[dict[str, Any], bool]:
    """Return the schema of a Python annotation (`List[int]`, `Optional[str]`, `int, optional`), and whether the
    parameter may be left out. Raises Unusable."""
    plain = OPTIONAL.sub("", text).strip().rstrip(",")
    optional = plain != text.strip()
    try:
        node: ast.expr = ast.parse(plain, mode="eval").body
    except NOT_PYTHON:
        raise Unusable(UNKNOWN, text) from None
    if isinstance(node, ast.Subscript) and _name(node.value) == "optional":
        node, optional = node.slice, True
    return _annotated(node, text), optional


def _types(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"type": [_types(name)["type"] for name in value]}
    if not isinstance(value, str):
        raise Unusable(UNKNOWN, repr(value)[:80])
    known = NAMES.get(value.strip().lower())
    return {"type": known} if known else annotation(value)[0]


def _name(node: ast.expr) -> str:
    return (node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else "").lower()


def _annotated(node: ast.expr, text: str) -> dict[str, Any]:
    if isinstance(node, ast.Constant) and node.value is None:
        return {"type": "null"}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _either([_annotated(side, text) for side in (node.left, node.right)])
    if not isinstance(node, ast.Subscript):
        if known := NAMES.get(_name(node)):
            return {"type": known}
        raise Unusable(UNKNOWN, text)
    outer = _name(node.value)
    parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if outer in ("union", "optional"):
        return _either([_annotated(part, text) for part in parts])
    if outer == "literal":
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        return {"enum": values} if all(isinstance(v, str) for v in values) and values else {"type": "string"}
    kind = NAMES.get(outer)
    if kind == "object":
        return {"type": "object", "additionalProperties": _annotated(parts[-1], text)}
    if kind != "array":
        raise Unusable(UNKNOWN, text)
    items = [_annotated(p, text) for p in parts if not (isinstance(p, ast.Constant) and p.value is Ellipsis)]
    return {"type": "array", "items": _either(items)}


def _either(arms: list[dict[str, Any]]) -> dict[str, Any]:
    kept = [arm for i, arm in enumerate(arms) if arm not in arms[:i] and arm != {"type": "null"}]
    return kept[0] if len(kept) == 1 else {"anyOf": kept} if kept else {"type": "null"}


def call_of(text: str) -> Call:
    """Return the call of Python source such as `f.g(a=1, b=[2], c=true)`, with keywords only. A bare name is a string
    unless it is true, false or null. Raises Unusable."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except NOT_PYTHON:
        raise Unusable(NO_CALL, text[:120]) from None
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        raise Unusable(NO_CALL, text[:120])
    return Call(ast.unparse(node.func), {str(k.arg): _value(k.value, text) for k in node.keywords})


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name | ast.Attribute):
        word = ast.unparse(node)
        return WORDS.get(word.lower(), word)
    try:
        return json.loads(json.dumps(ast.literal_eval(node), allow_nan=False))
    except NOT_PYTHON:
        raise Unusable(NO_CALL, text[:120]) from None


def coerced(value: Any, schema: Mapping[str, Any]) -> Any:
    """Convert a value that a set wrote as a string, or a single value for a list, to the parameter's type; a value that
    does not fit stays as it is."""
    kind = schema.get("type")
    if kind == "array":
        read = _literal(value) if isinstance(value, str) else value
        return [coerced(item, schema.get("items", {})) for item in (read if isinstance(read, list) else [value])]
    if kind == "object" and isinstance(value, str) and isinstance(read := _literal(value), dict):
        return read
    if kind in ("integer", "number") and isinstance(value, str):
        return _number(value, kind)
    if kind == "boolean" and isinstance(value, str):
        return WORDS.get(value.strip().lower(), value)
    return value


def _number(text: str, kind: str) -> Any:
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


def list_of(value: Any, name: str) -> list[Any]:
    """Return a list, or parse its JSON. Raises Unusable."""
    read = _plain(value, name)
    if not isinstance(read, list):
        raise Unusable(f"{name} that are not a list", repr(value)[:120])
    return read


def arguments_of(value: Any) -> dict[str, Any]:
    """Return an object of arguments, or parse its JSON (chat APIs write no arguments as an empty text or null). Raises
    Unusable."""
    read = None if isinstance(value, str) and not value.strip() else _plain(value, "arguments")
    if read is not None and not isinstance(read, Mapping):
        raise Unusable("arguments that are not an object", repr(value)[:120])
    return dict(read or {})


def _plain(value: Any, name: str) -> Any:
    try:
        return strict_json(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        raise Unusable(f"{name} that are not JSON", str(value)[:120]) from None
