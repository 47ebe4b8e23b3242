"""Check that a user's functions accept the arguments that rtcontrol passes. Errors name the file and the line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError

NO_ARGUMENTS = "no arguments"


def location_of(function: Callable[..., Any]) -> str:
    """Return the file and line of a function, such as `file.py:12`, or its repr if it has no Python code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return str(function) if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def check_signatures(functions: Mapping[str, tuple[Callable[..., Any], Sequence[str]]]) -> None:
    """Raise UserError if a function does not accept its arguments, or if calling it does not run its body.

    `functions` maps a name to a function and the names of its positional arguments. The body of an `async def` function
    or a generator does not run when it is called. The error message has the function's line and signature.
    """
    errors = [e for name, (function, parameters) in functions.items() if (e := _check_call(name, function, parameters))]
    if errors:
        raise UserError(" ".join(problem for problem, _ in errors), " ".join(hint for _, hint in errors))


def reason_without_effect(function: Callable[..., Any]) -> str | None:
    """Return the reason if calling the function does not run its body (async, generator), else None."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is async, but is never awaited"
    return "is a generator, but is never iterated over" if inspect.isgeneratorfunction(function) else None


def run_to_completion(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a user's function and return its result.

    Raises UserError if the result is unfinished work (an awaitable, a future, a Ray ObjectRef, a generator, a `map`
    object), or a list or tuple that contains unfinished work.
    """
    value = function(*args, **kwargs)
    if value is None:
        return value
    parts = value if isinstance(value, list | tuple) else (value,)
    unfinished = [part for part in parts if is_unfinished(part)]
    if not unfinished:
        return value
    for part in filter(inspect.iscoroutine, unfinished):
        part.close()  # prevents Python's warning about a coroutine that was never awaited
    name, kind = getattr(function, "__name__", "the function"), type(unfinished[0]).__name__
    raise UserError(
        f"{location_of(function)}: {name}() returned a {kind}, so its work has not finished.",
        f"Wait for the result inside {name}(), for example with asyncio.run(...), future.result() or ray.get(...).",
    )


def is_unfinished(value: Any) -> bool:
    """Return whether a value is an awaitable, a generator, a future or another handle of unfinished work."""
    kind = type(value)
    return (
        inspect.isawaitable(value)
        or inspect.isgenerator(value)
        or inspect.isasyncgen(value)
        or isinstance(value, map | filter | zip)  # lazy: not evaluated until iterated
        or all(callable(getattr(kind, name, None)) for name in ("completed", "__next__"))  # Ray's ObjectRefGenerator
        or callable(getattr(kind, "add_done_callback", None))
        or all(callable(getattr(kind, name, None)) for name in ("get", "wait", "ready"))  # AsyncResult
    )


def _check_call(name: str, function: Callable[..., Any], parameters: Sequence[str]) -> tuple[str, str] | None:
    """Return a problem and a hint if the function does not accept these arguments, else None."""
    body = function.__init__ if inspect.isclass(function) else function
    bound = ["self"] if inspect.ismethod(function) or inspect.isclass(function) else []
    hint = f"Write `def {name}({', '.join([*bound, *parameters])}): ...`."
    where = f"{location_of(body)}: {getattr(body, '__qualname__', name).rpartition('<locals>.')[2]}()"
    if why := reason_without_effect(function):
        return f"{where} {why}.", hint
    try:
        signature = inspect.signature(function)
        signature.bind(*parameters)
    except ValueError:
        if not inspect.ismethod(function) or inspect.signature(function.__func__).parameters:
            return None  # a C function without a signature
        return f"{where} takes {NO_ARGUMENTS}, but gets {_in_parentheses([*bound, *parameters])}.", hint
    except TypeError:
        accepted = (
            signature.replace(return_annotation=inspect.Signature.empty) if signature.parameters else NO_ARGUMENTS
        )
        return f"{where} takes {accepted}, but gets {_in_parentheses(parameters)}.", hint
    return None


def _in_parentheses(names: Sequence[str]) -> str:
    return f"({', '.join(names)})" if names else NO_ARGUMENTS
