"""The environments by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rtcontrol.envs.base import Environment
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.envs.skill import Skill
from rtcontrol.models.errors import UserError


@dataclass(frozen=True, slots=True)
class Entry:
    """A known environment: one sentence, the agent that flies it by default, how it is made, and its skill (goals and
    scripted expert) where it has one."""

    description: str
    agent: str
    make: Callable[..., Environment]
    skill: Callable[[], Skill] | None = None


def _lander(goal: str | None = None) -> Environment:
    try:
        from rtcontrol.envs.lander.world import Lander
    except ImportError as error:
        raise UserError(
            f"The lander needs Gymnasium with Box2D, which cannot be imported ({error}).",
            'Install it with `pip install "gymnasium[box2d]"`.',
        ) from error
    return PacedEnvironment.of("lander", lambda: Lander(goal))


def _lander_skill() -> Skill:
    from rtcontrol.envs.lander.skill import SKILL

    return SKILL


def _paddle(goal: str | None = None) -> Environment:
    from rtcontrol.envs.paddle.game import PaddleGame

    return PacedEnvironment.of("paddle", lambda: PaddleGame(goal))


def _paddle_skill() -> Skill:
    from rtcontrol.envs.paddle.skill import SKILL

    return SKILL


def _road(goal: str | None = None) -> Environment:
    from rtcontrol.envs.road.game import RoadGame

    return PacedEnvironment.of("road", lambda: RoadGame(goal))


def _road_skill() -> Skill:
    from rtcontrol.envs.road.skill import SKILL

    return SKILL


ENTRIES: dict[str, Entry] = {
    "lander": Entry(
        "Gymnasium's continuous LunarLander, 50 physics steps a second; land, or hover, where you are told.",
        "lander",
        _lander,
        _lander_skill,
    ),
    "paddle": Entry(
        "A paddle game, 60 physics steps a second, against a scripted person; return, miss, aim, stay or mirror.",
        "paddle",
        _paddle,
        _paddle_skill,
    ),
    "road": Entry(
        "A road with lanes, traffic and lights along one coordinate; drive, change lane, follow, turn, overtake, stop.",
        "driver",
        _road,
        _road_skill,
    ),
}


def known() -> dict[str, Entry]:
    """All environments by name, in order."""
    return dict(sorted(ENTRIES.items()))


def skill(name: str) -> Skill | None:
    """The skill of the environment called `name`; None for one that has none, or that is not bundled."""
    entry = ENTRIES.get(name)
    return None if entry is None or entry.skill is None else entry.skill()


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
