"""Random legal calls, for trying a world and for deciding without a model."""

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
    """Return a random legal call, each tool as often as another. Optional values that cannot be sampled are left out.

    Raises UserError for a tool that cannot be called without one (see `check_random`).
    """
    tool = rng.choice(tools)
    if tool.rules is None:
        return Call(tool.name, _sampled(tool.parameters, tool, rng))
    for _ in range(TRIES):
        # Each optional argument is left out now and then: rules may exclude it.
        arguments = _sampled([p for p in tool.parameters if p.required or rng.random() < 0.5], tool, rng)
        if tool.rules.fault(arguments) is None:
            return Call(tool.name, arguments)
    for p in tool.parameters:
        if isinstance(p.domain, Free) and p.domain.grid is None and not p.nullable:
            raise _refused(tool, p)
    problem = f"Tool {tool.name}: {TRIES} random calls broke {tool.rules.keywords} of its arguments."
    raise UserError(problem, "Loosen these rules, or give its arguments enums.")


def check_random(tools: Sequence[ToolSchema]) -> None:
    """Raise UserError where a required value is neither listed nor on a grid, so that no call can be sampled."""
    for tool in tools:
        random_call((tool,), random.Random(0))


def _sampled(parameters: Iterable[Parameter], tool: ToolSchema, rng: random.Random) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for p in parameters:
        values: Iterable[Any] = ()
        if isinstance(p.domain, ClosedDomain):
            values = [rng.choice(p.domain.values)]
        elif (grid := p.domain.grid) is not None:
            numbers = (grid.at(rng.randrange(grid.count)) for _ in range(TRIES))
            values = filter(p.domain.judge.takes, numbers)
        for value in values:
            arguments[p.name] = value
            break
        if p.name not in arguments and p.required:
            if not p.nullable:
                raise _refused(tool, p)
            arguments[p.name] = None
    return arguments


def _refused(tool: ToolSchema, p: Parameter) -> UserError:
    problem = f"Tool {tool.name}, parameter {p.name}: no value of it can be made up at random."
    return UserError(problem, "Give it an enum or bounds, or do not require it.")
