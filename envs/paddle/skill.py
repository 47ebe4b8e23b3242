"""The paddle as a skill to train and to evaluate."""

from __future__ import annotations

import random

from rtcontrol.agents.paddle.goals import KINDS, PaddleGoal
from rtcontrol.agents.paddle.phrasings import held_out_words, meant, seen_words, unseen_words
from rtcontrol.agents.paddle.tools import observe, read_back
from rtcontrol.envs.paddle.expert import LEVELS, expert
from rtcontrol.envs.paddle.game import PaddleGame
from rtcontrol.envs.skill import Skill
from rtcontrol.models.call import Call


def random_call(rng: random.Random) -> Call:
    """Any velocity."""
    return Call("move", {"velocity": rng.choice(LEVELS)})


_PAIRS = (("return", "miss"), ("up", "down"), ("top", "bottom"))
SKILL = Skill(
    "paddle",
    PaddleGame,
    observe,
    read_back,
    meant,
    expert,
    Call("move", {"velocity": 0}),
    random_call,
    goals=tuple(PaddleGoal(kind) for kind in KINDS),
    opposite={PaddleGoal(a): PaddleGoal(b) for one, other in _PAIRS for a, b in ((one, other), (other, one))},  # type: ignore[arg-type]
    kinds=KINDS,
    phrasings={"seen": seen_words, "unseen": unseen_words, "held-out": held_out_words},
)
