"""The RIHS01 hash of a type, by which ROS 2 nodes from Iron on tell that they mean the same (REP 2016)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Members = Sequence[tuple[str, str]]  # type and name of each field
_IDS = {"int8": 2, "uint8": 3, "char": 3, "int16": 4, "uint16": 5, "int32": 6, "uint32": 7, "int64": 8, "uint64": 9}
_IDS |= {"float32": 10, "float64": 11, "bool": 15, "byte": 16, "string": 17}
_NESTED, _BOUNDED_STRING = 1, 21
_ARRAY, _BOUNDED, _UNBOUNDED = 48, 96, 144


def type_hash(name: str, types: Mapping[str, Members]) -> str:
    """`RIHS01_...` of a type; `types` has the fields of it and of all that it holds."""
    held: set[str] = set()
    _hold(name, types, held)
    parts = [_described(one, types[one]) for one in (name, *sorted(held))]
    text = json.dumps({"type_description": parts[0], "referenced_type_descriptions": parts[1:]})
    return f"RIHS01_{hashlib.sha256(text.encode()).hexdigest()}"


def _hold(name: str, types: Mapping[str, Members], held: set[str]) -> None:
    for kind, _ in types[name]:
        inner = kind.partition("[")[0]
        if "/" in inner and inner not in held:
            held.add(inner)
            _hold(inner, types, held)


def _described(name: str, fields: Members) -> dict[str, Any]:
    return {"type_name": name, "fields": [{"name": label, "type": _type(kind)} for kind, label in fields]}


def _type(kind: str) -> dict[str, Any]:
    match = re.fullmatch(r"([\w/]+)(?:<=(\d+))?(\[(<=)?(\d*)\])?", kind)
    assert match is not None, kind
    inner, text, listed, bounded, count = match.groups()
    nested = "/" in inner
    number = _NESTED if nested else _BOUNDED_STRING if text else _IDS[inner]
    if listed:
        number += _BOUNDED if bounded else _ARRAY if count else _UNBOUNDED
    return {
        "type_id": number,
        "capacity": int(count or 0),
        "string_capacity": int(text or 0),
        "nested_type_name": inner if nested else "",
    }
