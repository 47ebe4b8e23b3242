"""What a tool's values cost in forward passes, in words, and which bound would make them cost none."""

from __future__ import annotations

import json

from rtcontrol.models.schema.domain import MAX_CLOSED, ClosedDomain, Free
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema

TOKENS = "so each of its tokens costs a forward pass"
LISTED = {
    "integer": f"minimum, maximum and multipleOf (Range) with at most {MAX_CLOSED} values",
    "number": f"minimum, maximum and multipleOf (Range) with at most {MAX_CLOSED} values",
    "string": "an enum (OneOf)",
    "array": f"listed items and maxItems, at most {MAX_CLOSED} combinations",
    "object": f"listed properties of few values and no others, at most {MAX_CLOSED} combinations",
}
OTHER = "bounds and a step (Range), or an enum (OneOf), in each alternative"


def of(tool: ToolSchema) -> list[str]:
    """Return what works but costs extra forward passes, and the remedy, a sentence for each parameter or group."""
    found: list[str] = []
    slots = tool.slots()
    for p in tool.parameters:
        default = p.schema.get("default")
        if default is not None and isinstance(p.domain, ClosedDomain) and not p.domain.holds(default):
            told = f"its default {json.dumps(default)[:40]} is none of its values, and is not read"
            found.append(f"parameter {p.name}: {told}. Remedy: correct it.")
        if isinstance(p.domain, Free):
            found.append(f"parameter {p.name}: its values are not listed, {TOKENS}. Remedy: {_remedy(p.domain)}.")
    for slot in slots:
        if isinstance(slot.domain, Free) and all(isinstance(p.domain, ClosedDomain) for p in slot.parameters):
            names = ", ".join(p.name for p in slot.parameters)
            found.append(
                f"parameters {names}: together, in one head or by rules, they have over {MAX_CLOSED} values, {TOKENS}. "
                "Remedy: fewer values of each, or fewer parameters in the group."
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


def _remedy(domain: Free) -> str:
    """Return what would list the values of a free domain; where a limit was hit, by how much."""
    kind = domain.schema.get("type")
    if domain.grid is not None and kind in ("integer", "number"):
        return (
            f"a larger multipleOf (Range's step), or nearer bounds: it has {domain.grid.count} of {MAX_CLOSED} values"
        )
    return LISTED.get(kind, OTHER) if isinstance(kind, str) else OTHER
