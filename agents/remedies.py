"""What a tool's values cost in forward passes, in words, and which bound would make them cost none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import MAX_CLOSED, ClosedDomain, Free, domain_of
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema

TOKENS = "so each of its tokens costs a forward pass"


def of(tool: ToolSchema) -> list[str]:
    """What works but costs extra forward passes, and the remedy, a sentence for each parameter or group of them."""
    found: list[str] = []
    slots = tool.slots()
    for p in tool.parameters:
        default = p.schema.get("default")
        if default is not None and isinstance(p.domain, ClosedDomain) and not p.domain.holds(default):
            told = f"its default {json.dumps(default)[:40]} is none of its values, and is not read"
            found.append(f"parameter {p.name}: {told}. Remedy: correct it.")
        if isinstance(p.domain, Free):
            remedy = _remedy(p.domain, p.name)
            found.append(f"parameter {p.name}: its values are not listed, {TOKENS}. Remedy: {remedy}.")
    for slot in slots:
        if isinstance(slot.domain, Free) and all(isinstance(p.domain, ClosedDomain) for p in slot.parameters):
            if "anyOf" in slot.domain.schema:
                what = f"parameters {', '.join(p.name for p in slot.parameters)}: tied together by rules they have more"
                found.append(f"{what} than {MAX_CLOSED} values, {TOKENS}. Remedy: fewer values of each.")
                continue
            found.append(
                f"parameters {', '.join(p.name for p in slot.parameters)}: together in one head they have more than "
                f"{MAX_CLOSED} values, {TOKENS}. Remedy: {_coarser(slot.domain.schema, '')}, or fewer parameters in "
                "the group."
            )
    tied = tool.rules.names if tool.rules else ()
    units = {"" if p.name in tied else p.group or p.name for p in tool.parameters}
    if len(units) > MAX_HEADS:
        listed = isinstance(slots[-1].domain, ClosedDomain)
        cost = "which makes a large trie" if listed else "which costs a forward pass for each of its tokens"
        found.append(
            f"has {len(units)} parameters for {MAX_HEADS} heads: those from the sixth on share head 6 as one JSON "
            f"object, {cost} (extra forward passes where the budget of nodes is exceeded). Remedy: fewer parameters, "
            "or x-group (Group) for those that belong together."
        )
    return found


def _remedy(domain: Free, name: str) -> str:
    """What would list the values of a free domain; where a limit was hit, by how much."""
    schema = domain.schema
    kind = schema.get("type")
    if kind in ("integer", "number"):
        if domain.grid is not None:
            whole = kind == "integer" and "multipleOf" not in schema
            step = "a multipleOf (Range's step)" if whole else "a larger multipleOf (Range's step)"
            return f"{step}, or nearer bounds: it has {domain.grid.count} values, and {MAX_CLOSED} are listed"
        return f"minimum, maximum and multipleOf (Range) with at most {MAX_CLOSED} values"
    if kind == "string":
        return "an enum (OneOf)"
    if kind == "array":
        return f"listed items and maxItems, at most {MAX_CLOSED} combinations"
    if kind == "object":
        return _coarser(schema, name)
    return "bounds and a step (Range), or an enum (OneOf), in each alternative"


def _coarser(schema: Mapping[str, Any], name: str) -> str:
    """What would list the values of an object, by the counts of its properties'."""
    counts = _counts(schema, name)
    if schema.get("additionalProperties", not counts) is not False or "patternProperties" in schema:
        return f"listed properties and no others (additionalProperties: false), at most {MAX_CLOSED} combinations"
    if unlisted := [at for at, count in counts.items() if count is None]:
        return f"an enum, or bounds and a step, of {', '.join(unlisted)}, at most {MAX_CLOSED} combinations in all"
    known = {at: count for at, count in counts.items() if count is not None}
    if (total := math.prod(known.values())) <= MAX_CLOSED:
        return f"no rules but those of its properties ({total} combinations)"
    told = ", ".join(f"{at} has {count}" for at, count in known.items())
    told += f": {total} combinations, {MAX_CLOSED} are listed"
    largest = max(known, key=lambda at: known[at])
    if (room := MAX_CLOSED * known[largest] // total) > 1:
        return f"at most {room} values of {largest}, by a multipleOf or an enum ({told})"
    return f"at most {math.floor(MAX_CLOSED ** (1 / len(known)))} values of each, by a multipleOf or an enum ({told})"


def _counts(schema: Mapping[str, Any], name: str) -> dict[str, int | None]:
    """How many values each property of an object has, being left out among them; None where they cannot be listed."""
    found: dict[str, int | None] = {}
    for key, part in schema.get("properties", {}).items():
        at, left_out = f"{name}.{key}".lstrip("."), key not in schema.get("required", ())
        try:
            domain = domain_of(part, at)
        except UserError:  # anything may stand there
            found[at] = None
            continue
        if isinstance(domain, ClosedDomain):
            found[at] = len(domain.values) + left_out
        elif part.get("properties") and part.get("additionalProperties", False) is False:
            found |= _counts(part, at)
        else:
            found[at] = None if domain.grid is None else domain.grid.count + left_out
    return found
