"""What a paddle model is scored by: its seven goals, four of them told as their opposite too, phrasings of each."""

from __future__ import annotations

from rtcontrol.agents.paddle.goals import KINDS, PaddleGoal
from rtcontrol.agents.paddle.phrasings import seen_words, unseen_words
from rtcontrol.envs.paddle.skill import SKILL
from rtcontrol.recipes.score import Trial

_PAIRS = (("return", "miss"), ("up", "down"), ("top", "bottom"))
TRIAL = Trial(
    SKILL,
    goals=tuple(PaddleGoal(kind) for kind in KINDS),
    opposite={PaddleGoal(a): PaddleGoal(b) for one, other in _PAIRS for a, b in ((one, other), (other, one))},  # type: ignore[arg-type]
    mixed={},
    kinds=KINDS,
    seen_words=seen_words,
    unseen_words=unseen_words,
)
