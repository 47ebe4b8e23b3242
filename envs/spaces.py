"""Convert Gymnasium's spaces to names and allowed values of actions, and to names and values of observations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rtcontrol.models.errors import UserError

MAX_NUMBERS = 512  # maximum numbers per observation or action; at 16 tokens each, they fill a context of 8,192
MAX_VALUES = 10_000  # maximum number of values for one number of an action
DIGITS = 6  # significant digits of the values between the two bounds of a number
WRITE_A_FILE = "Wrap the world in a FILE.py that creates and steps it (docs/your-own-game.md)."
# The types of spaces whose values are arrays of numbers.
ARRAY_SPACES = spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete


def action_levels(name: str, space: Any, count: int) -> list[list[Any]]:
    """Return a list of allowed values for each number of an action. Each number of a Box gets `count` values from the
    lower to the upper bound. Numbers of a Dict or Tuple are concatenated. Raises UserError for unsupported spaces."""
    values: list[list[Any]] = []
    for _, part in _inner_spaces(space):
        if not isinstance(part, ARRAY_SPACES | spaces.Discrete):
            problem = f"{name}: its actions contain a {type(part).__name__}, which is not supported."
            raise UserError(problem, WRITE_A_FILE)
        if len(values) + math.prod(part.shape) > MAX_NUMBERS:
            raise UserError(f"{name}: its actions ({space}) have more than {MAX_NUMBERS} numbers.", WRITE_A_FILE)
        values += _levels(name, part, count)
    if not values:
        raise UserError(f"{name}: its actions have no numbers ({space}).", WRITE_A_FILE)
    return values


def _levels(name: str, space: Any, count: int) -> list[list[Any]]:
    """Return the allowed values for each number of a space that is not a Dict or Tuple."""
    if isinstance(space, spaces.Box):
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise UserError(f"{name}: its actions ({space}) have numbers without bounds.", WRITE_A_FILE)
        return [_evenly_spaced(*ends, count) for ends in zip(space.low.ravel(), space.high.ravel(), strict=True)]
    if isinstance(space, spaces.MultiBinary):
        return [[0, 1] for _ in range(math.prod(space.shape))]
    counts = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    if counts.max(initial=0) > MAX_VALUES:
        raise UserError(f"{name}: one of its actions has {counts.max()} values, more than {MAX_VALUES}.", WRITE_A_FILE)
    starts = np.broadcast_to(space.start, counts.shape)
    return [[int(s) + i for i in range(int(n))] for s, n in zip(starts.ravel(), counts.ravel(), strict=True)]


def _evenly_spaced(low: Any, high: Any, count: int) -> list[Any]:
    """Return `count` evenly spaced numbers from `low` to `high`, which have the same dtype; fewer for small ranges."""
    if low.dtype.kind in "iub":
        first, span = int(low), int(high) - int(low)
        gaps = min(count - 1, span)
        return [first + (2 * span * i + gaps) // (2 * gaps) for i in range(gaps + 1)] if gaps else [first]
    half = float(high) / 2 - float(low) / 2
    decimals = max(DIGITS, DIGITS - math.floor(math.log10(half))) if half > 0 else 0
    inner = [round(float(value), decimals) + 0.0 for value in np.linspace(float(low), float(high), count)[1:-1]]
    return list(dict.fromkeys([_shortest_decimal(low), *inner, _shortest_decimal(high)]))


def _shortest_decimal(value: Any) -> float:
    """Return the number with the fewest digits that has this value in the value's dtype: 0.1, not 0.10000000149."""
    return float(str(value)) + 0.0


def action_names(space: Any) -> list[str]:
    """Return a unique name for each number of an action, in order; names in a Dict come from its keys."""
    if isinstance(space, spaces.Discrete):
        return ["action"]
    names = observation_names("", space)
    return names if isinstance(space, spaces.Dict) else [f"a{name.removeprefix('o')}" for name in names]


def build_action(space: Any, numbers: Sequence[Any]) -> Any:
    """Return an action of `space` with these numbers, which are in the order of `action_names`."""
    return _next_action(space, iter(numbers))


def _next_action(space: Any, numbers: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _next_action(part, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_next_action(part, numbers) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return next(numbers)
    return np.array([*itertools.islice(numbers, math.prod(space.shape))], space.dtype).reshape(space.shape)


def observation_names(name: str, space: Any) -> list[str]:
    """Return a unique name for each number and text of an observation, in order. Raises UserError if the space is not
    supported."""
    names: list[str] = []
    for path, part in _inner_spaces(space):
        if isinstance(part, spaces.Discrete) or _is_text(part):
            names.append(f"{path}o".removesuffix("_o"))
        elif not isinstance(part, ARRAY_SPACES):
            problem = f"{name}: an observation contains a {type(part).__name__}, which is neither numbers nor text."
            raise UserError(problem, WRITE_A_FILE)
        elif (count := math.prod(part.shape)) > MAX_NUMBERS and len(part.shape) > 2:
            raise UserError(f"{name}: an observation is an image ({part}), but models read text.", WRITE_A_FILE)
        else:
            names += [f"{path}{i + 1}" if path else f"o{i + 1}" for i in range(count)]
    if len(names) > MAX_NUMBERS:
        raise UserError(f"{name}: an observation ({space}) has more than {MAX_NUMBERS} numbers.", WRITE_A_FILE)
    taken = set[str]()
    for i, plain in enumerate(names):
        more = itertools.count(2)
        while names[i] in taken:  # {"arm": 2 numbers, "arm_1": 1 number} gives arm_1 twice
            names[i] = f"{plain}_{next(more)}"
        taken.add(names[i])
    return names


def are_integers(space: Any) -> Iterator[bool]:
    """Yield for each name in `observation_names` whether its values are always integers."""
    for _, part in _inner_spaces(space):
        text = _is_text(part)
        yield from itertools.repeat(not text and part.dtype.kind in "biu", 1 if text else math.prod(part.shape))


def max_magnitudes(space: Any) -> Iterator[float]:
    """Yield the largest magnitude of each value in `observation_names`; infinity for texts and unbounded numbers."""
    for _, part in _inner_spaces(space):
        if isinstance(part, spaces.Box):
            yield from np.maximum(np.abs(part.low), np.abs(part.high)).astype(float).ravel()
        else:
            yield from itertools.repeat(math.inf, 1 if _is_text(part) else math.prod(part.shape))


def _inner_spaces(space: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, space) for each space inside a Dict or Tuple, at any depth, or for `space` itself."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield path, space
        return
    for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces, 1):
        yield from _inner_spaces(part, f"{path}{'_'.join(str(key).split())}_")


def _is_text(space: Any) -> bool:
    """Return whether a space contains text: Gymnasium's Text, or a space with a text dtype, as in MiniGrid."""
    return isinstance(space, spaces.Text) or getattr(space.dtype, "kind", "") == "U"


def flatten_observation(space: Any, observation: Any) -> Iterator[int | float | str]:
    """Yield the numbers and texts of an observation, in the order of `observation_names`. Raises LookupError, TypeError
    or ValueError if the observation does not fit the space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from flatten_observation(part, observation[key])
    elif _is_text(space):
        if not isinstance(observation, str):
            raise TypeError(f"{observation!r:.60} is not text")
        yield str(observation)
    else:
        numbers = np.asarray(observation)
        whole = numbers.dtype.kind in "biu"  # keep integers, because floats would round them beyond 2^53
        numbers = numbers if whole else np.asarray(observation, float)
        if numbers.size != math.prod(space.shape or (1,)):
            raise ValueError(f"the shape is {numbers.shape}")
        yield from map(int if whole else float, numbers.ravel())
