"""A random call that its tools allow: what a world is tried with, and what decides where no model does."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain, Free
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

TRIES = 1024  # draws of a number that rules forbid some values of


def random_call(tools: Sequence[ToolSchema], rng: random.Random) -> Call:
    """Any legal call; each tool as often as the others. Values that are neither listed nor counted are left out.

    Raises UserError for a tool that cannot be called without one (see `check_random`)."""
    tool = rng.choice(tools)
    if tool.rules is None:
        return Call(tool.name, _drawn(tool.parameters, tool, rng))
    for _ in range(TRIES):
        # Each optional argument is left out now and then: rules may exclude it.
        arguments = _drawn([p for p in tool.parameters if p.required or rng.random() < 0.5], tool, rng)
        if tool.rules.fault(arguments) is None:
            return Call(tool.name, arguments)
    unknown = (p for p in tool.parameters if isinstance(p.domain, Free) and p.domain.grid is None and not p.nullable)
    if (missing := next(unknown, None)) is not None:
        raise _refused(tool, missing)
    what = f"Tool {tool.name}: {TRIES} random calls broke {tool.rules.keywords} of its arguments."
    raise UserError(what, "Loosen these rules, or give its arguments enums.")


def check_random(tools: Sequence[ToolSchema]) -> None:
    """UserError where a call of these cannot be drawn: a value that it must have is neither listed nor counted."""
    for tool in tools:
        random_call((tool,), random.Random(0))


def _drawn(parameters: Iterable[Parameter], tool: ToolSchema, rng: random.Random) -> dict[str, Any]:
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
