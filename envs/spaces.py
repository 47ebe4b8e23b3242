"""Turn Gymnasium's spaces into tools and text: names and values of actions and observations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rtcontrol.models.errors import UserError

MOST_NUMBERS = 512  # numbers of an observation or an action: with about 16 tokens each they fill a context of 8192
MOST_VALUES = 10_000  # values of one number of an action
DIGITS = 6  # digits of a level that is not a bound, from the first digit of its range on
FILE = "Write it as a world of your own, a FILE.py that makes and steps it (docs/your-own-game.md)."
# Spaces of numbers in an array: a Box, and two kinds of choices.
NUMBERS = spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete


def levels_of(name: str, space: Any, count: int) -> list[list[Any]]:
    """Return the values of each number of an action; a Box has `count` of each, from its lower to its upper bound in
    its dtype. The numbers of a Dict or Tuple are concatenated. Raises UserError for an unsupported space."""
    values: list[list[Any]] = []
    for _, part in _parts(space):
        if not isinstance(part, NUMBERS | spaces.Discrete):
            raise UserError(f"{name}: its actions hold a {type(part).__name__}, which is not a tool.", FILE)
        if len(values) + math.prod(part.shape) > MOST_NUMBERS:
            raise UserError(f"{name}: its actions ({space}) have more than {MOST_NUMBERS} numbers.", FILE)
        values += _levels(name, part, count)
    if not values:
        raise UserError(f"{name}: its actions have no numbers ({space}).", FILE)
    return values


def _levels(name: str, space: Any, count: int) -> list[list[Any]]:
    """Return the values of a space without inner spaces."""
    if isinstance(space, spaces.Box):
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise UserError(f"{name}: numbers of its actions ({space}) have no bounds, so no levels.", FILE)
        return [_between(*ends, count) for ends in zip(space.low.ravel(), space.high.ravel(), strict=True)]
    if isinstance(space, spaces.MultiBinary):
        return [[0, 1] for _ in range(math.prod(space.shape))]
    counts = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    if counts.max(initial=0) > MOST_VALUES:
        raise UserError(f"{name}: one of its actions has {counts.max()} values, more than {MOST_VALUES}.", FILE)
    starts = np.broadcast_to(space.start, counts.shape)
    return [[int(s) + i for i in range(int(n))] for s, n in zip(starts.ravel(), counts.ravel(), strict=True)]


def _between(low: Any, high: Any, count: int) -> list[Any]:
    """Return evenly spaced numbers from `low` to `high`, both of one dtype."""
    if low.dtype.kind in "iub":
        first, span = int(low), int(high) - int(low)
        gaps = min(count - 1, span)
        return [first + (2 * span * i + gaps) // (2 * gaps) for i in range(gaps + 1)] if gaps else [first]
    half = float(high) / 2 - float(low) / 2
    decimals = max(DIGITS, DIGITS - math.floor(math.log10(half))) if half > 0 else 0
    inner = [round(float(value), decimals) + 0.0 for value in np.linspace(float(low), float(high), count)[1:-1]]
    return list(dict.fromkeys([_short(low), *inner, _short(high)]))


def _short(value: Any) -> float:
    """Return the shortest number with this value in its dtype."""
    return float(str(value)) + 0.0


def action_names(space: Any) -> list[str]:
    """Return a unique name for each number of an action, in order. A Dict gives names by its keys."""
    if isinstance(space, spaces.Discrete):
        return ["action"]
    names = names_of("", space)
    return names if isinstance(space, spaces.Dict) else [f"a{name.removeprefix('o')}" for name in names]


def action_of(space: Any, picked: Sequence[Any]) -> Any:
    """Return the action that has these numbers."""
    return _action(space, iter(picked))


def _action(space: Any, left: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _action(part, left) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_action(part, left) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return next(left)
    return np.array([*itertools.islice(left, math.prod(space.shape))], space.dtype).reshape(space.shape)


def names_of(name: str, space: Any) -> list[str]:
    """Return a unique name for each number and text of an observation, in order. Raises UserError for an unsupported
    space."""
    names: list[str] = []
    for path, part in _parts(space):
        if isinstance(part, spaces.Discrete) or _is_text(part):
            names.append(f"{path}o".removesuffix("_o"))
        elif not isinstance(part, NUMBERS):
            raise UserError(
                f"{name}: an observation holds a {type(part).__name__}, which is neither numbers nor text.", FILE
            )
        elif (count := math.prod(part.shape)) > MOST_NUMBERS and len(part.shape) > 2:
            raise UserError(f"{name}: an observation is an image ({part}), and a controller reads text.", FILE)
        else:
            names += [f"{path}{i + 1}" if path else f"o{i + 1}" for i in range(count)]
    if len(names) > MOST_NUMBERS:
        raise UserError(f"{name}: an observation ({space}) has more than {MOST_NUMBERS} numbers.", FILE)
    taken = set[str]()
    for i, plain in enumerate(names):
        more = itertools.count(2)
        while names[i] in taken:  # {"arm": two numbers, "arm_1": one}
            names[i] = f"{plain}_{next(more)}"
        taken.add(names[i])
    return names


def are_whole(space: Any) -> Iterator[bool]:
    """Yield for each of `names_of` whether its space has whole numbers only: states, counts or bytes."""
    for _, part in _parts(space):
        text = _is_text(part)
        yield from itertools.repeat(not text and part.dtype.kind in "biu", 1 if text else math.prod(part.shape))


def reaches(space: Any) -> Iterator[float]:
    """Yield the largest magnitude of each of `names_of`; infinity for texts and numbers without bounds."""
    for _, part in _parts(space):
        if isinstance(part, spaces.Box):
            yield from np.maximum(np.abs(part.low), np.abs(part.high)).astype(float).ravel()
        else:
            yield from itertools.repeat(math.inf, 1 if _is_text(part) else math.prod(part.shape))


def _parts(space: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the inner spaces of a Dict or Tuple with their keys, or the space itself if it is another kind."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield path, space
        return
    for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces, 1):
        yield from _parts(part, f"{path}{'_'.join(str(key).split())}_")


def _is_text(space: Any) -> bool:
    """Return whether a space is text: Gymnasium's, or another of that dtype (MiniGrid's missions)."""
    return isinstance(space, spaces.Text) or getattr(space.dtype, "kind", "") == "U"


def flat(space: Any, observation: Any) -> Iterator[int | float | str]:
    """Yield the numbers and texts of an observation, in the order of `names_of`. Raises LookupError, TypeError or
    ValueError if the observation does not fit the space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from flat(part, observation[key])
    elif _is_text(space):
        if not isinstance(observation, str):
            raise TypeError(f"{observation!r:.60} is not text")
        yield str(observation)
    else:
        numbers = np.asarray(observation)
        whole = numbers.dtype.kind in "biu"  # as int, since a float rounds numbers beyond 2^53
        numbers = numbers if whole else np.asarray(observation, float)
        if numbers.size != math.prod(space.shape or (1,)):
            raise ValueError(f"the shape is {numbers.shape}")
        yield from map(int if whole else float, numbers.ravel())
