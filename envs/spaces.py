"""Gymnasium's spaces as tools and text: the values and names of an action's numbers, and of what is seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsFloat

import numpy as np
from gymnasium import spaces

from rtcontrol.models.errors import UserError

MOST_NUMBERS = 512  # of an observation, or of an action: at some 16 tokens each they fill a context of 8192
MOST_VALUES = 10_000  # of one number of an action
FILE = "Write it as a world of your own, a FILE.py that makes and steps it (docs/your-own-game.md)"
DIGITS = 6  # of a level that is no bound, from the first digit of its range on


class UnlikeSpace(Exception):
    """What was seen is not what the space declares; the message goes on after `gave an observation that`."""


def levels_of(name: str, space: Any, count: int) -> list[list[Any]]:
    """Of each number of an action, what it can be, each value once; a Box has `count` of each, from its lower to its
    upper bound in its own dtype. Those of a Dict or Tuple follow each other. UserError for a space that is no tool."""
    found: list[list[Any]] = []
    for path, part in _parts(space):
        where = f"its action {path.removesuffix('_')} is" if path else "its actions are"
        if not isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise UserError(f"{name}: {where} a {type(part).__name__}, no tool.", f"{FILE}, with tools of its own.")
        if len(found) + math.prod(part.shape) > MOST_NUMBERS:
            raise UserError(
                f"{name}: its actions ({space}) have more than {MOST_NUMBERS} numbers, too many for one call.",
                f"{FILE}, with tools that set several of them at once.",
            )
        found += _levels(name, part, count, len(found), where)
    if not found:
        raise UserError(f"{name}: its actions have no numbers ({space}).", f"{FILE}, with tools of its own.")
    for i in range(max(map(len, found))):
        if not space.contains(action := action_of(space, [each[min(i, len(each) - 1)] for each in found])):
            raise UserError(
                f"{name}: its action space {space} does not take {action!r}, which lies within its bounds.",
                f"{FILE}, with tools of its own.",
            )
    return found


def _levels(name: str, space: Any, count: int, before: int, where: str) -> list[list[Any]]:
    """Of a space that holds no others, `before` numbers of which came before."""
    if isinstance(space, spaces.Box):
        lows, highs = space.low.ravel(), space.high.ravel()
        for i, (low, high) in enumerate(zip(lows, highs, strict=True), before + 1):
            if not (np.isfinite(low) and np.isfinite(high)):
                raise UserError(
                    f"{name}: number {i} of its actions goes from {low} to {high}: they have no bounds, so no levels.",
                    f"{FILE}, and bounds what it does.",
                )
        return [_between(low, high, count) for low, high in zip(lows, highs, strict=True)]
    if isinstance(space, spaces.MultiBinary):
        return [[0, 1] for _ in range(math.prod(space.shape))]
    counts = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    if counts.max(initial=0) > MOST_VALUES:
        raise UserError(
            f"{name}: {where} one of {counts.max()} values, and a controller chooses among {MOST_VALUES} at most.",
            f"{FILE}, with tools whose arguments have fewer.",
        )
    starts = np.broadcast_to(space.start, counts.shape)
    return [[int(s) + i for i in range(int(n))] for s, n in zip(starts.ravel(), counts.ravel(), strict=True)]


def action_names(space: Any) -> list[str]:
    """A name for each number of an action, in order, each once: those of a Dict by its keys."""
    if isinstance(space, spaces.Discrete):
        return ["action"]
    names = _once(_names("", space, ""))
    if isinstance(space, spaces.Dict):
        return names
    return [f"a{name.removeprefix('o')}" for name in names]


def action_of(space: Any, picked: Sequence[Any]) -> Any:
    """The action of these numbers."""
    return _action(space, iter(picked))


def _action(space: Any, left: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _action(part, left) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_action(part, left) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return next(left)
    return np.array([*itertools.islice(left, math.prod(space.shape))], space.dtype).reshape(space.shape)


def _between(low: Any, high: Any, count: int) -> list[Any]:
    """Evenly from `low` to `high`, both of one dtype, in numbers that are these values of that dtype."""
    kind = low.dtype.type
    if low.dtype.kind in "iub":
        first, span = int(low), int(high) - int(low)
        gaps = min(count - 1, span)
        return [first + (2 * span * i + gaps) // (2 * gaps) for i in range(gaps + 1)] if gaps else [first]
    if not low < high:
        return [_short(low)]
    half = float(high) / 2 - float(low) / 2
    decimals = max(DIGITS, DIGITS - math.floor(math.log10(half))) if half > 0 else 0
    found = [_short(low)]
    for i in range(1, count - 1):
        share = i / (count - 1)
        exact = float(low) * (1 - share) + float(high) * share
        value = round(exact, decimals) + 0.0
        found.append(value if low < kind(value) < high else _short(np.clip(kind(exact), low, high)))
    return list(dict.fromkeys([*found, _short(high)]))


def _short(value: Any) -> float:
    """The shortest number that is this value of its dtype."""
    return float(str(value)) + 0.0


def names_of(name: str, space: Any) -> list[str]:
    """A name for each number and text of an observation, in order, each once. UserError for a space that is no text."""
    found = list(itertools.islice(_names(name, space, ""), MOST_NUMBERS + 1))
    if len(found) > MOST_NUMBERS:
        raise UserError(
            f"{name}: an observation ({space}) has more than {MOST_NUMBERS} numbers, too many for text.",
            f"{FILE}, and shows what matters.",
        )
    return _once(found)


def are_whole(space: Any) -> Iterator[bool]:
    """Whether each of `names_of` is a whole number by its space: the number of a state, a count, a byte."""
    for _, part in _parts(space):
        kind = not _is_text(part) and part.dtype.kind in "biu"
        yield from itertools.repeat(kind, 1 if _is_text(part) else math.prod(part.shape))


def _once(names: Iterable[str]) -> list[str]:
    found, taken = [*names], set[str]()
    for i, plain in enumerate(found):
        more = itertools.count(2)
        while found[i] in taken:  # {"arm": two numbers, "arm_1": one}
            found[i] = f"{plain}_{next(more)}"
        taken.add(found[i])
    return found


def _parts(space: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What a Dict or Tuple holds, each with its keys; of another space itself."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield path, space
        return
    for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces, 1):
        yield from _parts(part, f"{path}{'_'.join(str(key).split())}_")


def _is_text(space: Any) -> bool:
    """Gymnasium's own, and others of that dtype (MiniGrid's missions)."""
    return isinstance(space, spaces.Text) or getattr(space.dtype, "kind", "") == "U"


def _names(name: str, space: Any, start: str) -> Iterator[str]:
    for path, part in _parts(space, start):
        if isinstance(part, spaces.Discrete) or _is_text(part):
            yield f"{path}o".removesuffix("_o")
        elif not isinstance(part, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
            raise UserError(
                f"{name}: an observation holds a {type(part).__name__}, which is neither numbers nor text.",
                f"{FILE}, and words it.",
            )
        elif (count := math.prod(part.shape)) > MOST_NUMBERS and len(part.shape) > 2:
            raise UserError(
                f"{name}: an observation is an image ({part}), and a controller reads text.",
                "Choose a world that gives its state (those of ALE do with ?obs_type=ram), or: "
                f"{FILE[0].lower()}{FILE[1:]}, and words what is seen.",
            )
        else:
            yield from (f"{path}{i + 1}" if path else f"o{i + 1}" for i in range(count))


def flat(space: Any, seen: Any, path: str = "") -> Iterator[float | str]:
    """Its numbers and texts, in the order of `names_of`. Raises UnlikeSpace."""
    if _is_text(space):
        if not isinstance(seen, str):
            raise UnlikeSpace(f"holds {seen!r:.60}{_at(path)}, where its space has text")
        yield str(seen)
        return
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        if isinstance(space, spaces.Tuple) and isinstance(seen, Sequence) and len(seen) != len(space.spaces):
            raise UnlikeSpace(f"has {len(seen)} parts{_at(path)}, where its space has {len(space.spaces)}")
        for key, part in parts:
            try:
                one = seen[key]
            except (IndexError, KeyError, TypeError):
                raise UnlikeSpace(f"has no {path}{key}, which its space has") from None
            yield from flat(part, one, f"{path}{key}.")
        return
    if (found := numbers_of(seen)) is None:
        raise UnlikeSpace(f"holds {seen!r:.60}{_at(path)}, where its space has numbers")
    if found.size != math.prod(space.shape or (1,)):
        raise UnlikeSpace(f"has the shape {found.shape}{_at(path)}, where its space has {space.shape}")
    yield from map(float, found.ravel())


def numbers_of(given: Any) -> np.ndarray[Any, Any] | None:
    """What a world gave, as an array of numbers: numpy's, torch's (also on a device, or with a gradient), lists, and
    whatever is a number by its `__float__`. None for what is none: text, lists of different lengths, a masked value."""
    try:
        found = np.asanyarray(given.tolist() if hasattr(given, "detach") else given)
        if found.dtype.kind == "O" and all(isinstance(part, SupportsFloat) for part in found.flat):
            found = np.asanyarray([float(part) for part in found.flat]).reshape(found.shape)
    except Exception:  # whatever their libraries raise
        return None
    return np.asarray(found) if found.dtype.kind in "biuf" and not np.ma.is_masked(found) else None


def _at(path: str) -> str:
    return f" in {path.removesuffix('.')}" if path else ""
