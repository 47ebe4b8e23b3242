"""Many ways to tell the paddle what to do."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from rtcontrol.agents.goal_tools import GoalKind
from rtcontrol.agents.paddle.goals import CANONICAL, KINDS, PaddleGoal, PaddleKind, recognise
from rtcontrol.agents.phrasing import Phrasings
from rtcontrol.agents.spoken import bare, spoken

WEIGHTS: dict[PaddleKind, float] = {
    "return": 0.15,
    "miss": 0.3,
    "up": 0.17,
    "down": 0.17,
    "top": 0.05,
    "bottom": 0.05,
    "mirror": 0.11,
}
MIRRORED = ("down", "bottom")
TOOLS: dict[PaddleKind, str] = {
    "return": "return_balls",
    "miss": "miss_balls",
    "up": "aim_high",
    "down": "aim_low",
    "top": "stay_at_top",
    "bottom": "stay_at_bottom",
    "mirror": "mirror",
}
_DIRECTION = re.compile(r"<\w+>")
_FAMILY: dict[PaddleKind, str] = {"up": "aim", "down": "aim", "top": "place", "bottom": "place"}


class PaddlePhrasings(Phrasings[PaddleKind, PaddleGoal]):
    def __init__(self) -> None:
        super().__init__("paddle", KINDS, recognise)

    def sample_goal(self, rng: random.Random) -> PaddleGoal:
        """A random goal; those that hang on the ball, which are harder, come up more often."""
        return PaddleGoal(rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0])

    def goals_of(self, kind: PaddleKind) -> tuple[PaddleGoal, ...]:
        return (PaddleGoal(kind),)

    def goal_kinds(self) -> tuple[GoalKind, ...]:
        return tuple(GoalKind(kind, TOOLS[kind], CANONICAL[kind], partial(_goal, kind=kind)) for kind in KINDS)

    def spoken_patterns(self, goal: PaddleGoal, kept: bool | None = None) -> tuple[str, ...]:
        if family := _FAMILY.get(goal.kind):
            return spoken("paddle", family, goal.kind, partner=goal.kind in MIRRORED, kept=kept)
        return spoken("paddle", goal.kind, kept=kept)

    def _drawn(self, rng: random.Random, goal: PaddleGoal) -> str:
        return self.grammar.fill(rng, rng.choice(self.templates("train", goal.kind)))

    def _held_out(self, kind: PaddleKind) -> tuple[tuple[str, PaddleGoal], ...]:
        """Spread over the tables."""
        goal = PaddleGoal(kind)
        patterns = [text for text in self.spoken_patterns(goal, kept=True) if bare(text) not in self._trained]
        return tuple((text, goal) for text in patterns[:: max(1, len(patterns) // self.per_goal)][: self.per_goal])

    def _templates(self, split: str, kind: PaddleKind) -> tuple[str, ...]:
        templates = self.tables[split][_FAMILY.get(kind, kind)]
        return tuple(self._directed(template, kind in MIRRORED) for template in templates)

    def _directed(self, template: str, mirrored: bool) -> str:
        """`<up>` becomes the slot `{up}`, `<top>` the word top; the other way round for the other direction."""
        swap = {a: b for pair in self.tables["pairs"] for a, b in (pair, pair[::-1])} if mirrored else {}

        def word(match: re.Match[str]) -> str:
            name = swap.get(match[0], match[0])
            return str(self.tables["words"].get(name, "{" + name.strip("<>") + "}"))

        return _DIRECTION.sub(word, template)


def _goal(values: Mapping[str, Any], kind: PaddleKind) -> PaddleGoal:
    return PaddleGoal(kind)


PHRASINGS = PaddlePhrasings()
