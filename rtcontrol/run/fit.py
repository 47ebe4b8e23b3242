"""Whether an agent and an environment belong together, told before the run instead of by a miss every tick."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.models.errors import UserError
from rtcontrol.run.users import reason

_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}


def fit(agent: Agent, env: Environment, sample: Observation | None) -> None:
    """Raises UserError for a tool that nothing executes, one that its executor does not take, or a `sample` that the
    agent cannot read."""
    bindings = env.bindings
    has = f"It has: {', '.join(bindings) or 'none'}"
    if bindings and not any(t.name in bindings for t in agent.tools):
        names = ", ".join(t.name for t in agent.tools)
        raise UserError(
            f"None of the tools of the agent {agent.name} ({names}) acts in the environment {env.name}.",
            f"{has}. Name the tools so, or give another --agent.",
        )
    for t in agent.tools:
        where = f"Agent {agent.name}, tool {t.name}, environment {env.name}"
        executor = bindings.get(t.name)
        if executor is None:
            if t.elsewhere or _does_nothing(t.function):
                own = "tool has no function" if t.elsewhere else "tool's own function does nothing"
                raise UserError(
                    f"{where}: the environment has no binding of this name, and the {own}.",
                    f"{has}. Rename the tool, bind it, or write its body.",
                )
            continue
        parameters = t.schema.parameters
        needed = [p.name for p in parameters if p.required]
        for given in (needed, [p.name for p in parameters]):
            if refused := _refusal(executor, given):
                raise UserError(
                    f"{where}: the environment's function does not take ({', '.join(given)}): {refused}.",
                    "Give tool and binding the same parameters; those that are optional need defaults in both.",
                )
    if sample is not None:
        _read(agent, env, sample)


def _read(agent: Agent, env: Environment, sample: Observation) -> None:
    where = f"Agent {agent.name} cannot read the observation of the environment {env.name}"
    keys = ", ".join(map(str, sample.data)) if hasattr(sample.data, "keys") else type(sample.data).__name__
    try:
        text = agent.observe(sample.data)
    except Exception as error:
        raise UserError(f"{where} ({reason(error)}).", f"It holds: {keys}. Correct the agent's observe.") from error
    if not isinstance(text, str):
        raise UserError(f"{where}: its observe gave {type(text).__name__}, not text.", "Return a str.")


def _refusal(function: Callable[..., Any], names: list[str]) -> str | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # a function in C that does not tell
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return None


def _does_nothing(function: Callable[..., Any]) -> bool:
    """A function whose body is empty but for its docstring."""
    code = getattr(function, "__code__", None)
    return code is not None and {i.opname for i in dis.get_instructions(code)} <= _NOTHING
