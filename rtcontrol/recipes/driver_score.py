"""What a driver model is scored by: its seven goals with several values, some told as their opposite, phrasings."""

from __future__ import annotations

from rtcontrol.agents.road.goals import KINDS, RoadGoal
from rtcontrol.agents.road.phrasings import seen_words, unseen_words
from rtcontrol.envs.road.skill import SKILL
from rtcontrol.recipes.score import Trial

_LEFT, _RIGHT = RoadGoal("lane", "left"), RoadGoal("lane", "right")
_TURN_LEFT, _TURN_RIGHT = RoadGoal("turn", "left"), RoadGoal("turn", "right")
TRIAL = Trial(
    SKILL,
    goals=(
        RoadGoal("drive"),
        RoadGoal("speed", 30),
        RoadGoal("speed", 60),
        _LEFT,
        RoadGoal("lane", "middle"),
        _RIGHT,
        RoadGoal("follow", 10),
        RoadGoal("follow", 30),
        _TURN_LEFT,
        _TURN_RIGHT,
        RoadGoal("turn", "straight"),
        RoadGoal("overtake"),
        RoadGoal("stop"),
    ),
    opposite={_LEFT: _RIGHT, _RIGHT: _LEFT, _TURN_LEFT: _TURN_RIGHT, _TURN_RIGHT: _TURN_LEFT},
    mixed={},
    kinds=KINDS,
    seen_words=seen_words,
    unseen_words=unseen_words,
)
