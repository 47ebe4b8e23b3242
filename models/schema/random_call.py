"""Generate random legal calls, to try out an environment, and as decisions without a model."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain, FreeDomain
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

MAX_TRIES = 1024  # after this number of samples that the rules do not allow, sampling a number or a call fails


def random_call(tools: Sequence[ToolSchema], rng: random.Random) -> Call:
    """Return a random legal call of a random tool. Optional arguments that cannot be sampled are left out. Raises
    UserError if a required argument cannot be sampled (see `check_random`)."""
    tool = rng.choice(tools)
    if tool.rules is None:
        return Call(tool.name, _sample_arguments(tool.parameters, tool, rng))
    for _ in range(MAX_TRIES):
        # Omit each optional argument in half of the attempts, because rules may exclude it.
        arguments = _sample_arguments([p for p in tool.parameters if p.required or rng.random() < 0.5], tool, rng)
        if tool.rules.violation(arguments) is None:
            return Call(tool.name, arguments)
    for p in tool.parameters:
        if isinstance(p.domain, FreeDomain) and p.domain.grid is None and not p.nullable:
            raise _sampling_error(tool, p)
    problem = f"Tool {tool.name}: {MAX_TRIES} random calls violated {tool.rules.keywords} of its parameters."
    raise UserError(problem, "Relax these rules, or give the parameters enums.")


def check_random(tools: Sequence[ToolSchema]) -> None:
    """Raise UserError if a tool cannot be sampled, because a required value is neither listed nor on a grid."""
    for tool in tools:
        random_call((tool,), random.Random(0))


def _sample_arguments(parameters: Iterable[Parameter], tool: ToolSchema, rng: random.Random) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for p in parameters:
        values: Iterable[Any] = ()
        if isinstance(p.domain, ClosedDomain):
            values = [rng.choice(p.domain.values)]
        elif (grid := p.domain.grid) is not None:
            numbers = (grid.number_at(rng.randrange(grid.count)) for _ in range(MAX_TRIES))
            values = filter(p.domain.validator.accepts, numbers)
        for value in values:
            arguments[p.name] = value
            break
        if p.name not in arguments and p.required:
            if not p.nullable:
                raise _sampling_error(tool, p)
            arguments[p.name] = None
    return arguments


def _sampling_error(tool: ToolSchema, p: Parameter) -> UserError:
    problem = f"Tool {tool.name}, parameter {p.name}: its values cannot be sampled at random."
    return UserError(problem, "Give it an enum or bounds, or make it optional.")
