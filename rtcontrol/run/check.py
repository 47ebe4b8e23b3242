"""Whether an agent and an environment belong together, told before the run instead of by a miss every tick."""

from __future__ import annotations

import dis
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rtcontrol.agents import Agent
from rtcontrol.agents.signatures import defined, idle
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.models.errors import UserError
from rtcontrol.run.user_code import reason

KEPT = (bool, int, float, str, bytes, bytearray)  # bytes are pictures, as large arrays are: what they are is kept
DEEPEST = 64
FINITE = "Give a finite number there, or a word for what is not known; or let the agent's observe take it."
_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}


def fit(agent: Agent, env: Environment, sample: Observation | None) -> None:
    """Raises UserError for a tool that nothing executes, one that its executor does not take, or a `sample` that the
    agent cannot read, or that a record cannot give back."""
    for wrong in misfits(agent, env, sample):
        raise wrong


def misfits(agent: Agent, env: Environment, sample: Observation | None) -> Iterator[UserError]:
    """All that is wrong with the two."""
    bindings = env.bindings
    has = f"It has: {', '.join(bindings) or 'none'}"
    if bindings and not any(t.name in bindings for t in agent.tools):
        names = ", ".join(t.name for t in agent.tools)
        yield UserError(
            f"None of the tools of the agent {agent.name} ({names}) acts in the environment {env.name}.",
            f"{has}. Name the tools so, or give another --agent.",
        )
        return
    for t in agent.tools:
        where = f"Agent {agent.name}, tool {t.name}, environment {env.name}"
        executor = bindings.get(t.name)
        if executor is None:
            if t.elsewhere or _does_nothing(t.function):
                own = "tool has no function" if t.elsewhere else "tool's own function does nothing"
                yield UserError(
                    f"{where}: the environment has no binding of this name, and the {own}.",
                    f"{has}. Rename the tool, bind it, or write its body.",
                )
            continue
        if why := idle(executor):
            yield UserError(f"{where}: {defined(executor)}: the environment's function {why}.", "Write a plain `def`.")
        parameters = t.schema.parameters
        needed = [p.name for p in parameters if p.required]
        for given in (needed, [p.name for p in parameters]):
            if refused := _refusal(executor, given):
                yield UserError(
                    f"{where}: the environment's function does not take ({', '.join(given)}): {refused}.",
                    "Give tool and binding the same parameters; those that are optional need defaults in both.",
                )
                break
    if sample is not None:
        yield from unfit(agent, env.name, sample)


def unfit(agent: Agent, env: str, sample: Observation) -> Iterator[UserError]:
    """What is wrong with an observation."""
    yield from _unreadable(agent, env, sample)
    yield from unkept(env, sample.data)


def _unreadable(agent: Agent, env: str, sample: Observation) -> Iterator[UserError]:
    where = f"Agent {agent.name} cannot read the observation of the environment {env}"
    keys = ", ".join(map(str, sample.data)) if hasattr(sample.data, "keys") else type(sample.data).__name__
    try:
        text = agent.observe(sample.data)
    except UserError as error:  # a Gymnasium world's NaN: that says what to do
        yield error
        return
    except Exception as error:
        odd = next(infinite(sample.data), None) if isinstance(error, ValueError | ArithmeticError) else None
        if odd is not None:
            why = f"{odd}, and the agent {agent.name} cannot read it ({reason(error)})"
            yield UserError(f"The environment {env}: what observe() gave holds {why}.", FINITE)
            return
        yield UserError(f"{where} ({reason(error)}).", f"It holds: {keys}. Correct the agent's observe.")
        return
    if not isinstance(text, str):
        yield UserError(f"{where}: its observe gave {type(text).__name__}, not text.", "Return a str.")


def unkept(name: str, data: Any) -> Iterator[UserError]:
    """What of an observation would be something else once a record gives it back, each by its place: whoever decides
    there again (`rtcontrol replay`, an expert) would see another world."""
    for place, what in _changed(data, "", 0):
        yield UserError(
            f"The environment {name}: what observe() gave cannot be recorded: {place.lstrip('.') or 'it'} {what}.",
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


def infinite(data: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """What of an observation is no finite number, each with its place: `nan as depth[3]`."""
    if depth > DEEPEST:
        return
    if isinstance(data, Mapping):
        for key, one in data.items():
            yield from infinite(one, f"{path}.{key}", depth + 1)
    elif isinstance(data, list | tuple):
        for i, one in enumerate(data):
            yield from infinite(one, f"{path}[{i}]", depth + 1)
    elif isinstance(data, float):  # numpy's, too
        if not math.isfinite(data):
            yield f"{float(data)} as {path.lstrip('.')}"
    elif _is_array(data) and getattr(data.dtype, "kind", "") == "f" and not np.isfinite(data).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(data))[0])
        yield f"{float(data[index])} as {path.lstrip('.')}{list(index) if index else ''}"


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


def _is_array(value: Any) -> bool:
    """An array of numbers, or one of its numbers."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")  # torch's have none
    return hasattr(value, "shape") and hasattr(value, "tolist") and kind in "biuf"


# A world of longer or shorter steps is hardly one that somebody controls.
LONGEST_S, SHORTEST_S = 1.0, 1e-4
