"""A random call that its tools allow: what a world is tried with, and what decides where no model does."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

TRIES = 64  # draws of a number that rules forbid some values of


def random_call(tools: Sequence[ToolSchema], rng: random.Random) -> Call:
    """Any legal call; each tool as often as the others. Values that are neither listed nor counted are left out.

    Raises UserError for a tool that cannot be called without one (see `check_random`)."""
    tool = rng.choice(tools)
    arguments: dict[str, Any] = {}
    tied = tool.tied
    names = tool.rules.names if tool.rules is not None else frozenset[str]()
    if tied is not None and isinstance(tied.domain, ClosedDomain):
        arguments |= tied.arguments(rng.choice(tied.domain.values))
    elif tied is not None:
        arguments |= _drawn(tool, rng.choice(_callable(tool)), rng)
    return Call(tool.name, arguments | _drawn(tool, (p for p in tool.parameters if p.name not in names), rng))


def check_random(tools: Sequence[ToolSchema]) -> None:
    """UserError where a call of these cannot be drawn: a value that it must have is neither listed nor counted."""
    for tool in tools:
        random_call((tool,), random.Random(0))


def _callable(tool: ToolSchema) -> list[tuple[Parameter, ...]]:
    """The alternatives of a tool whose required values can be made up."""
    assert tool.rules is not None, "its arguments are tied"
    missing = [next((p for p in own if p.required and not _known(p)), None) for own in tool.rules.alternatives]
    found = [own for own, lacks in zip(tool.rules.alternatives, missing, strict=True) if lacks is None]
    if not found:
        raise _refused(tool, next(p for p in missing if p is not None))
    return found


def _known(p: Parameter) -> bool:
    """Whether a value of it can be made up."""
    return isinstance(p.domain, ClosedDomain) or p.domain.grid is not None or p.nullable


def _drawn(tool: ToolSchema, parameters: Iterable[Parameter], rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for p in parameters:
        if isinstance(p.domain, ClosedDomain):
            found[p.name] = rng.choice(p.domain.values)
        elif (grid := p.domain.grid) is not None:
            drawn = (grid.at(rng.randrange(grid.count)) for _ in range(TRIES))
            value = next((v for v in drawn if p.domain.judge.takes(v)), None)
            if value is not None:
                found[p.name] = value
        if p.name not in found and p.required:
            if not p.nullable:
                raise _refused(tool, p)
            found[p.name] = None
    return found


def _refused(tool: ToolSchema, p: Parameter) -> UserError:
    what = f"Tool {tool.name}, parameter {p.name}: no value of it can be made up at random."
    return UserError(what, "Give it an enum or bounds, or do not require it.")
