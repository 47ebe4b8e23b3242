"""What a driver model is scored by: its seven goals with several values, some told as their opposite, phrasings."""

from __future__ import annotations

from rtcontrol.agents.road.goals import KINDS, Goal
from rtcontrol.agents.road.phrasings import seen_words, unseen_words
from rtcontrol.envs.road.skill import SKILL
from rtcontrol.recipes.score import Trial

_LEFT, _RIGHT = Goal("lane", "left"), Goal("lane", "right")
_TURN_LEFT, _TURN_RIGHT = Goal("turn", "left"), Goal("turn", "right")
TRIAL = Trial(
    SKILL,
    goals=(
        Goal("drive"),
        Goal("speed", 30),
        Goal("speed", 60),
        _LEFT,
        Goal("lane", "middle"),
        _RIGHT,
        Goal("follow", 10),
        Goal("follow", 30),
        _TURN_LEFT,
        _TURN_RIGHT,
        Goal("turn", "straight"),
        Goal("overtake"),
        Goal("stop"),
    ),
    opposite={_LEFT: _RIGHT, _RIGHT: _LEFT, _TURN_LEFT: _TURN_RIGHT, _TURN_RIGHT: _TURN_LEFT},
    mixed={},
    kinds=KINDS,
    seen_words=seen_words,
    unseen_words=unseen_words,
)
