"""Meaningless sentences for training, and a controller's gate: the lowest confidence of the function head at which a
call acts, determined on sentences that were never trained on.

Nonsense sentences name no goal and are never instructions of the controller. Shuffled words of a real instruction are
not nonsense: clumsy sentences should be understood.

Measured on a paddle of 1.4 M parameters after 90,000 samples, 6 % of them nonsense: the confidence in canonical
instructions is never below 0.999; a gate at 0.98 holds 88 % of 232 held-out nonsense sentences, and 8 % of the held-out
sentences that people say; 0.995 holds 92 and 15 %.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from rtcontrol.agents.phrasing import Phrasings, nonsense, normalised, table_words, with_typing_noise
from rtcontrol.envs import registry
from rtcontrol.models.call import Decision
from rtcontrol.models.data.row import Row
from rtcontrol.models.train.policy import TreeDecider

HELD = 0.95  # share of nonsense that the gate holds, at least
SPARED = 0.02  # share of canonical instructions that the gate holds, at most
ROWS = 1024  # rows of nonsense, and of canonical instructions
WORLDS: dict[str, Phrasings[Any, Any]] = {name: world.phrasings() for name, world in registry.WORLDS.items()}
RUN = 4  # rows that share a sentence, as training groups them
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def function_confidence(decision: object) -> float:
    """Return the confidence that an instruction was understood; 0 for null or if there is no decision."""
    if not isinstance(decision, Decision) or decision.call is None:
        return 0.0
    return decision.confidence.get("function", 1.0)


def gate_between(nonsense: Sequence[float], understood: Sequence[float]) -> float:
    """Return a gate between the confidence that holds HELD of the nonsense and the one that would hold more than SPARED
    of the understood instructions; the gate never exceeds the latter."""
    enough = sorted(nonsense)[math.ceil(HELD * len(nonsense)) - 1]
    most = sorted(understood)[math.floor(SPARED * len(understood))]
    # Only what is below the gate is held, so `enough` itself would not do. Rounded up, it could hold more than SPARED.
    return most if enough >= most else (enough + most) / 2


def fit_gate(decide: TreeDecider, rows: Sequence[Row], nonsense: Sequence[str], seed: int) -> float:
    """Return a model's gate from rows with canonical instructions and the same rows with held-out nonsense."""
    rng = random.Random(f"gate {seed}")
    changed = [replace(row, instruction=rng.choice(nonsense)) for row in rows]
    held, known = ([function_confidence(d) for d in decide.decisions(some)] for some in (changed, rows))
    return gate_between(held, known)


@dataclass(frozen=True)
class Nonsense:
    """A source of sentences that are meaningless to an agent. `recognise` returns the goal of a sentence, if any.
    `agent` is a bundled agent's name or ""; then no sentence with one of `its_words` is nonsense."""

    agent: str
    recognise: Callable[[str], Any]
    its_words: frozenset[str] = frozenset()

    def __call__(self, rng: random.Random) -> str:
        """Return a training sentence: handwritten, of another world, or of random words or letters, in casual form."""
        while True:
            text = self._random(rng)
            if self._means(text):
                continue
            typed = with_typing_noise(rng, text, table_words(self.agent) if self.agent else self.its_words)
            # The casual form may have added a word that belongs to a goal.
            if normalised(typed) not in self._kept and self.its_words.isdisjoint(normalised(typed).split()):
                return typed

    @cached_property
    def held_out(self) -> tuple[str, ...]:
        """Sentences that are never trained on: handwritten ones, and held-out sentences of other worlds."""
        kinds = [(world, kind) for world in self._others() for kind in world.kinds]
        sentences = [text for world, kind in kinds for text, _ in world.held_out_words(kind)[:12]]
        return tuple(text for text in (*nonsense(held_out=True), *sentences) if not self._means(text))

    @cached_property
    def _kept(self) -> frozenset[str]:
        return frozenset(map(normalised, self.held_out))

    def _others(self) -> list[Phrasings[Any, Any]]:
        return [world for name, world in WORLDS.items() if name != self.agent]

    def _means(self, text: str) -> bool:
        words = normalised(text)
        known = bool(self.agent) and words in _meant(self.agent)
        return known or not self.its_words.isdisjoint(words.split()) or self.recognise(text) is not None

    def _random(self, rng: random.Random) -> str:
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(nonsense(held_out=False))
        if kind < 0.7:
            world = rng.choice(self._others())
            return world.spoken_sentence(rng, world.sample_goal(rng))
        if kind < 0.85:
            return " ".join(rng.choice(_words()) for _ in range(rng.randint(1, 6)))
        return " ".join("".join(rng.choices(_LETTERS, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 4)))


def with_nonsense(
    rows: Sequence[Row], sample: Callable[[random.Random], str], share: float, rng: random.Random
) -> list[Row]:
    """Return the rows, a share of them with a meaningless instruction and no call."""
    mixed = list(rows)
    picked = rng.sample(range(len(mixed)), int(share * len(mixed)))
    for start in range(0, len(picked), RUN):
        instruction = sample(rng)
        for index in picked[start : start + RUN]:
            mixed[index] = replace(mixed[index], instruction=instruction, call=None, quotes=(), meant="")
    return mixed


@cache
def _words() -> tuple[str, ...]:
    return tuple(word for line in nonsense(held_out=False) for word in line.split())


@cache
def _meant(agent: str) -> frozenset[str]:
    """Return all spoken sentences for an agent's goals, normalised for comparison."""
    world, rng = registry.WORLDS[agent].phrasings(), random.Random(0)
    goals = {world.sample_goal(rng) for _ in range(2000)}
    return frozenset(normalised(pattern) for goal in goals for pattern in world.spoken_patterns(goal))
