"""Gold values as the sets write them, as the values that their parameters take."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.strict_json import strict_json

WORDS = {"true": True, "false": False, "null": None, "none": None}
SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LARGEST = 2**63  # of a sum: what a gold call means, and what no digit is lost of
NO_CALL = "a gold call that cannot be read"


def call_of(text: str) -> Call:
    """The call of Python source such as `f.g(a=1, b=1/6, c=true)`, keywords alone. A sum of numbers is worked out, a
    bare name is a string unless it is true, false or null. Raises Unusable."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unusable(NO_CALL, text[:120]) from None
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        raise Unusable(NO_CALL, text[:120])
    return Call(ast.unparse(node.func), {str(k.arg): _value(k.value, text) for k in node.keywords})


def coerced(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value that a set wrote as a string, or alone where a list is meant, by the parameter's type; what does not fit
    stays as it is."""
    kind = schema.get("type")
    if kind == "array" and not isinstance(value, list):
        items = schema.get("items", {})
        read = _literal(value) if isinstance(value, str) else value
        return [coerced(one, items) for one in (read if isinstance(read, list) else [value])]
    if kind == "array":
        return [coerced(one, schema.get("items", {})) for one in value]
    if kind == "object" and isinstance(value, str) and isinstance(read := _literal(value), dict):
        return read
    if kind in ("integer", "number") and isinstance(value, str):
        return _number(value, kind)
    if kind == "boolean" and isinstance(value, str):
        return WORDS.get(value.strip().lower(), value)
    return value


def listed(given: Any, what: str) -> list[Any]:
    """A list, or its JSON. Raises Unusable."""
    read = value_of(given, what)
    if not isinstance(read, list):
        raise Unusable(f"{what} that are no list", repr(given)[:120])
    return read


def arguments_of(given: Any) -> dict[str, Any]:
    """Arguments as an object, or as its JSON (as chat APIs have them; none may be an empty text, or null). Raises
    Unusable."""
    read = {} if given is None or (isinstance(given, str) and not given.strip()) else value_of(given, "arguments")
    if read is None:
        return {}
    if not isinstance(read, Mapping):
        raise Unusable("arguments that are no object", repr(given)[:120])
    return dict(read)


def value_of(given: Any, what: str) -> Any:
    """It, or what its JSON says. Raises Unusable."""
    try:
        return strict_json(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        raise Unusable(f"{what} that are no JSON", str(given)[:120]) from None


def _number(text: str, kind: str) -> Any:
    try:
        read = float(text.strip().replace(",", "").removesuffix("%"))
    except ValueError:
        return text
    if not math.isfinite(read):
        return text
    if kind == "number":
        return read
    return int(read) if read.is_integer() else text


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | int | float)):
        if node.value in (math.inf, -math.inf):
            raise Unusable(NO_CALL, text[:120])
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one, text) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key, text) for key in node.keys]
        if all(isinstance(key, str) for key in keys):
            return {key: _value(one, text) for key, one in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.Name | ast.Attribute):
        word = ast.unparse(node)
        return WORDS.get(word.lower(), word)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is_number(v := _value(node.operand, text)):
        return -v
    if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
        left, right = _value(node.left, text), _value(node.right, text)
        if _is_number(left) and _is_number(right) and (right or not isinstance(node.op, ast.Div)):
            found = SUMS[type(node.op)](left, right)
            if abs(found) <= LARGEST:
                return found
    raise Unusable(NO_CALL, text[:120])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
