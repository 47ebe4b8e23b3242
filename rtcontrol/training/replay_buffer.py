"""What an episode asks for once in a while, asked for more often: the moments of each decision, drawn alike.

A passenger is let out once in a ride: of 96,000 ticks of such a world 31 asked for that call, and without this a model
that was right in 399 of 400 held-out rows let nobody out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.agents import Goal
from rtcontrol.models.train.rows import Row

EACH, CALLS, TOOLS = 32, 64, 1_024


@dataclass(frozen=True, slots=True)
class Moment:
    """One tick of an episode: the row, the goal that its instruction means, the data of what is seen."""

    row: Row
    goal: Goal
    data: Mapping[str, Any]


class Rehearsal:
    """The newest `each` moments of every decision: a call, for a kind of goal. Of the calls of a tool the `calls` that
    were met last are kept, so that one of many numbers leaves room for the others."""

    def __init__(self, each: int = EACH, calls: int = CALLS) -> None:
        self._each, self._calls = each, calls
        self._kept: dict[Hashable, dict[str, deque[Moment]]] = {}

    def add(self, moment: Moment, *more: Hashable) -> None:
        """Keep it under its kind of goal and its call, and what else makes it another decision."""
        call = moment.row.call
        name, text = ("", "") if call is None else (call.name, call.text())
        calls = _newest(self._kept, (moment.goal.kind, name, *more), {}, TOOLS)
        _newest(calls, text, deque(maxlen=self._each), self._calls).append(moment)

    def draw(self, rng: random.Random) -> Moment:
        """One of them: any kind of goal and tool as likely as another, then any call, then any moment."""
        calls = rng.choice(list(self._kept.values()))
        return rng.choice(rng.choice(list(calls.values())))

    def spread(self, rng: random.Random, count: int) -> list[Moment]:
        """At most so many different ones, of each decision as many as of another where it has so many."""
        sides = [rng.sample(kept, len(kept)) for calls in self._kept.values() for kept in calls.values()]
        rng.shuffle(sides)  # where they are more than `count`
        found: dict[tuple[str, str], Moment] = {}
        for turn in range(max(map(len, sides), default=0)):
            for side in sides:
                if turn < len(side):
                    found.setdefault((side[turn].row.instruction, side[turn].row.observation), side[turn])
        return list(found.values())[:count]


def _newest(kept: dict[Any, Any], key: Hashable, new: Any, most: int) -> Any:
    """What is kept under the key, made the newest; what is oldest goes where there are more than so many."""
    kept[key] = kept.pop(key, new)
    if len(kept) > most:
        del kept[next(iter(kept))]
    return kept[key]
