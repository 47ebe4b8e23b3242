"""Whether an agent and an environment belong together, told before the run instead of by a miss every tick."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.agents.signatures import defined, idle
from rtcontrol.envs.base import Observation
from rtcontrol.models.errors import UserError
from rtcontrol.run.user_code import reason

KEPT = (bool, int, float, str, bytes, bytearray)  # bytes are pictures, as large arrays are: what they are is kept
DEEPEST = 64
_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}


def fit(agent: Agent, env: str, bindings: Mapping[str, Callable[..., Any]], sample: Observation | None) -> None:
    """Raises UserError for a tool that nothing executes, one that its executor does not take, or a `sample` that the
    agent cannot read, or that a record cannot give back."""
    has = f"It has: {', '.join(bindings) or 'none'}"
    if bindings and not any(t.name in bindings for t in agent.tools):
        names = ", ".join(t.name for t in agent.tools)
        raise UserError(
            f"None of the tools of the agent {agent.name} ({names}) acts in the environment {env}.",
            f"{has}. Name the tools so, or give another --agent.",
        )
    for t in agent.tools:
        where = f"Agent {agent.name}, tool {t.name}, environment {env}"
        executor = bindings.get(t.name)
        if executor is not None:
            _check_executor(where, executor, t.schema.parameters)
        elif t.elsewhere or _does_nothing(t.function):
            lacks = "tool has no function" if t.elsewhere else "tool's own function does nothing"
            raise UserError(
                f"{where}: the environment has no binding of this name, and the {lacks}.",
                f"{has}. Rename the tool, bind it, or write its body.",
            )
    if sample is not None:
        check_observation(agent, env, sample.data)


def _check_executor(where: str, executor: Callable[..., Any], parameters: Any) -> None:
    if why := idle(executor):
        raise UserError(f"{where}: {defined(executor)}: the environment's function {why}.", "Write a plain `def`.")
    try:
        signature = inspect.signature(executor)
    except (TypeError, ValueError):
        return  # a function in C that does not tell
    for given in ([p.name for p in parameters if p.required], [p.name for p in parameters]):
        try:
            signature.bind(**dict.fromkeys(given))
        except TypeError as error:
            raise UserError(
                f"{where}: the environment's function does not take ({', '.join(given)}): {error}.",
                "Give tool and binding the same parameters; those that are optional need defaults in both.",
            ) from None


def check_observation(agent: Agent, env: str, data: Mapping[str, Any]) -> None:
    """Raises UserError for an observation that the agent cannot read, or that would be something else once a record
    gives it back: what decides there again (`rtcontrol replay`, an expert) would see another world."""
    where = f"Agent {agent.name} cannot read the observation of the environment {env}"
    try:
        text = agent.observe(data)
    except UserError:  # a Gymnasium world's NaN: that says what to do
        raise
    except Exception as error:
        keys = ", ".join(map(str, data)) if hasattr(data, "keys") else type(data).__name__
        raise UserError(f"{where} ({reason(error)}).", f"It holds: {keys}. Correct the agent's observe.") from error
    if not isinstance(text, str):
        raise UserError(f"{where}: its observe gave {type(text).__name__}, not text.", "Return a str.")
    for place, what in _changed(data, "", 0):
        raise UserError(
            f"The environment {env}: what observe() gave cannot be recorded: {place.lstrip('.') or 'it'} {what}.",
            "Give texts as keys, and numbers, texts, True, False, None, lists, mappings and arrays as values.",
        )


def _changed(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > DEEPEST:
        yield path[:60] + "...", "has no end"
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if isinstance(key, str):
                yield from _changed(one, f"{path}.{key}", depth + 1)
            else:
                yield path, f"has the key {key!r:.60}, a {type(key).__name__}, for which a record has a text"
    elif isinstance(value, list) or (isinstance(value, tuple) and not hasattr(value, "_fields")):
        for i, one in enumerate(value):
            yield from _changed(one, f"{path}[{i}]", depth + 1)
    elif not (value is None or isinstance(value, KEPT) or _is_array(value)):
        yield path, f"is a {type(value).__name__} ({value!r:.60}), for which a record has a text or a list"


def _does_nothing(function: Callable[..., Any]) -> bool:
    """A function whose body is empty but for its docstring."""
    code = getattr(function, "__code__", None)
    return code is not None and {i.opname for i in dis.get_instructions(code)} <= _NOTHING


def _is_array(value: Any) -> bool:
    """An array of numbers, or one of its numbers."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")  # torch's have none
    return hasattr(value, "shape") and hasattr(value, "tolist") and kind in "biuf"
