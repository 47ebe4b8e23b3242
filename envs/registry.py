"""The environments by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rtcontrol.envs.base import Environment
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.models.errors import UserError


@dataclass(frozen=True, slots=True)
class Entry:
    """A known environment: one sentence, the agent that flies it by default, and how it is made."""

    description: str
    agent: str
    make: Callable[..., Environment]


def _lander(goal: str | None = None) -> Environment:
    try:
        from rtcontrol.envs.lander import Lander
    except ImportError as error:
        raise UserError(
            f"The lander needs Gymnasium with Box2D, which cannot be imported ({error}).",
            'Install it with `pip install "gymnasium[box2d]"`.',
        ) from error
    return PacedEnvironment("lander", Lander(goal))


def _paddle(goal: str | None = None) -> Environment:
    from rtcontrol.envs.paddle_game import PaddleGame

    return PacedEnvironment("paddle", PaddleGame(goal))


ENTRIES: dict[str, Entry] = {
    "lander": Entry(
        "Gymnasium's continuous LunarLander, 50 physics steps a second; land, or hover, where you are told.",
        "lander",
        _lander,
    ),
    "paddle": Entry(
        "A paddle game, 60 physics steps a second, against a scripted person; return, miss, aim, stay or mirror.",
        "paddle",
        _paddle,
    ),
}


def known() -> dict[str, Entry]:
    """All environments by name, in order."""
    return dict(sorted(ENTRIES.items()))


def make(name: str, **options: Any) -> Environment:
    """The environment called `name`, not yet started. UserError for an unknown name or option."""
    entry = ENTRIES.get(name)
    if entry is None:
        raise UserError(f"There is no environment called {name!r}.", f"Known ones: {', '.join(known())}.")
    accepted = tuple(inspect.signature(entry.make).parameters)
    for option in options:
        if option not in accepted:
            raise UserError(
                f"The environment {name} has no option {option!r}.",
                f"It takes: {', '.join(accepted) or 'no options'}.",
            )
    return entry.make(**options)
