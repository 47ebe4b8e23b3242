"""Compare sets of tools whatever the order of their keys, and name the first difference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rtcontrol.models.schema.tool_schema import ToolSchema

SHOWN = 60  # characters of a value
Definition = Mapping[str, Any]


def comparable(tool: Definition) -> str:
    """Return one line of JSON, the same for two definitions that differ in the order of keys or of `required` alone."""
    return json.dumps(_plain(tool), ensure_ascii=False, sort_keys=True)


def in_order_of(tools: Sequence[ToolSchema], like: Sequence[Definition]) -> tuple[ToolSchema, ...]:
    """Return the same tools with their keys in the order of other definitions, which `comparable` finds equal."""
    pairs = zip(tools, like, strict=True)
    return tuple(ToolSchema.from_openai(_ordered(tool.exact(), other)) for tool, other in pairs)


def first_difference(tools: Sequence[ToolSchema], sets: Sequence[Sequence[Definition]]) -> str | None:
    """Return where tools differ first from the most similar of some sets, in words; None if there is no set."""
    given = [tool.to_openai()["function"] for tool in tools]
    names = [one["name"] for one in given]
    known = [[_function(tool) for tool in one] for one in sets]
    if not known:
        return None
    nearest = max(known, key=lambda one: len({tool["name"] for tool in one} & set(names)))
    others = [tool["name"] for tool in nearest]
    if missing := [name for name in others if name not in names]:
        return f"the tool {missing[0]} is missing here"
    if more := [name for name in names if name not in others]:
        return f"the tool {more[0][:SHOWN]} is not among its tools"
    if names != others:
        return f"its tools are in the order {', '.join(others)}"
    for mine, other in zip(given, nearest, strict=True):
        for place, what in _differences(_plain(mine), _plain(other), mine["name"]):
            return f"{place} {what}"
    return None


def _function(tool: Definition) -> Definition:
    function: Definition = tool.get("function", tool)
    return function


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one, name) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        listed = [_plain(one) for one in value]
        names = key == "required" and all(isinstance(one, str) for one in listed)
        return sorted(listed) if names else listed
    return value


def _ordered(value: Any, like: Any) -> Any:
    """The value with the keys of its objects, and the names in `required`, in the order of another."""
    if isinstance(value, Mapping) and isinstance(like, Mapping):
        names = [*(name for name in like if name in value), *(name for name in value if name not in like)]
        found = {name: _ordered(value[name], like.get(name)) for name in names}
        wanted = like.get("required")
        if isinstance(wanted, list) and isinstance(found.get("required"), list):
            found["required"] = list(wanted)
        return found
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [_ordered(one, other) for one, other in zip(value, like, strict=True)]
    return value


def _differences(mine: Any, other: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(mine, dict) and isinstance(other, dict):
        for name in [*other, *(name for name in mine if name not in other)]:
            if name not in mine:
                yield f"{place}.{name}", "is missing here"
            elif name not in other:
                yield f"{place}.{name}", "is not in its tools"
            else:
                yield from _differences(mine[name], other[name], f"{place}.{name}")
    elif isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        for i, (one, two) in enumerate(zip(mine, other, strict=True)):
            yield from _differences(one, two, f"{place}[{i}]")
    elif type(mine) is not type(other) or mine != other:
        yield place, f"is {_shown(mine)} here, and {_shown(other)} in its tools"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
