"""Check that a user's functions accept the arguments that they will get, with file and line in error messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError


def defined(function: Callable[..., Any]) -> str:
    """Return the file and line of a user's function, as `file.py:12`, or the function's name if they are unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return str(function) if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def check_called(functions: Mapping[str, tuple[Callable[..., Any], Sequence[str]]]) -> None:
    """Raise UserError if a function cannot be called with its arguments, or does nothing when called.

    `functions` has, by name, a function and its positional arguments. An `async def` function or a generator does
    nothing when called. The message has the function's line and signature.
    """
    faults = [wrong for name, (function, given) in functions.items() if (wrong := _unlike(name, function, given))]
    if faults:
        raise UserError(" ".join(what for what, _ in faults), " ".join(hint for _, hint in faults))


def idle(function: Callable[..., Any]) -> str | None:
    """Return the reason why a function does nothing when it is called, or None if it does something."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is async, and nobody awaits it"
    return "has a yield, and nobody goes through it" if inspect.isgeneratorfunction(function) else None


def carry_out(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a user's function and return its result.

    Raises UserError if the result represents unfinished work: an awaitable, a future, a Ray ObjectRef or a generator.
    """
    value = function(*given, **named)
    if value is None or not unfinished(value):
        return value
    if inspect.iscoroutine(value):
        value.close()  # avoids Python's warning about a coroutine that was never awaited
    name, kind = getattr(function, "__name__", "the function"), type(value).__name__
    raise UserError(
        f"{defined(function)}: {name}() returned a {kind}: the work is not done, and may never be.",
        f"Wait for it in {name}(): asyncio.run(...), future.result(), ray.get(...). Then return.",
    )


def unfinished(value: Any) -> bool:
    """Return whether a value represents unfinished work."""
    kind = type(value)
    return (
        inspect.isawaitable(value)
        or inspect.isgenerator(value)
        or inspect.isasyncgen(value)
        or callable(getattr(kind, "add_done_callback", None))
        or all(callable(getattr(kind, name, None)) for name in ("get", "wait", "ready"))  # AsyncResult
    )


def _unlike(name: str, function: Callable[..., Any], given: Sequence[str]) -> tuple[str, str] | None:
    """Return the error and the hint for a function that does not accept these arguments, or None if it does."""
    body = function.__init__ if inspect.isclass(function) else function
    bound = ["self"] if inspect.ismethod(function) or inspect.isclass(function) else []
    hint = f"Write `def {name}({', '.join([*bound, *given])}): ...`."
    where = f"{defined(body)}: {getattr(body, '__qualname__', name).rpartition('<locals>.')[2]}()"
    if why := idle(function):
        return f"{where} {why}.", hint
    try:
        signature = inspect.signature(function)
        signature.bind(*given)
    except ValueError:
        if not inspect.ismethod(function) or inspect.signature(function.__func__).parameters:
            return None  # a C function without a signature
        return f"{where} takes nothing, but gets {_listed([*bound, *given])}.", hint
    except TypeError:
        takes = str(signature.replace(return_annotation=inspect.Signature.empty)) if signature.parameters else "nothing"
        return f"{where} takes {takes}, but gets {_listed(given)}.", hint
    return None


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(names)})" if names else "nothing"
