"""Create meaningless sentences (nonsense) for training, and fit a controller's confidence gate to held-out nonsense.

The gate is the minimum confidence of the function head at which a call is executed. Nonsense sentences name no goal.
Shuffled words of a real instruction are not nonsense, because a controller should understand clumsy sentences.

Measured on a paddle of 1.4 M parameters after 90,000 samples, 6 % of them nonsense: the confidence in canonical
instructions is never below 0.999; a gate at 0.98 holds 88 % of 232 held-out nonsense sentences, and 8 % of the held-out
sentences that people say; 0.995 holds 92 and 15 %.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from rtcontrol.agents.phrasing import Phrasings, nonsense, normalised, table_words, with_typing_noise
from rtcontrol.envs import registry
from rtcontrol.models.call import Decision
from rtcontrol.models.checkpoint.training_metadata import words
from rtcontrol.models.data.row import Row
from rtcontrol.models.train.policy import TreeDecider

HELD = 0.95  # the gate must withhold at least this share of nonsense
SPARED = 0.02  # the gate may withhold at most this share of canonical instructions
FAMILIAR, MIN_GATE = 0.5, 0.01  # gate of a model without nonsense (unless it withholds too much), and its minimum
ROWS = 1024  # number of rows with nonsense, and of rows with canonical instructions
WORLDS: dict[str, Phrasings[Any, Any]] = {name: world.phrasings() for name, world in registry.WORLDS.items()}
RUN = 4  # rows per nonsense sentence, because training groups rows by instruction
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def function_confidence(decision: object) -> float:
    """Return the confidence in the called function, or 0 if the decision is null or failed."""
    if not isinstance(decision, Decision) or decision.call is None:
        return 0.0
    return decision.confidence.get("function", 1.0)


def gate_from_confidences(nonsense: Sequence[float], understood: Sequence[float]) -> float:
    """Return a minimum confidence that withholds at least the share HELD of the nonsense, but at most the share SPARED
    of the understood instructions. The arguments are confidences."""
    lowest_gate = sorted(nonsense)[math.ceil(HELD * len(nonsense)) - 1]
    highest_gate = sorted(understood)[math.floor(SPARED * len(understood))]
    # The gate withholds only confidences below it, so it must be above `lowest_gate`.
    return middle if (middle := (lowest_gate + highest_gate) / 2) > lowest_gate else highest_gate


def fit_gate(decide: TreeDecider, rows: Sequence[Row], nonsense: Sequence[str], seed: int) -> float:
    """Return a model's gate, fitted to rows with canonical instructions and the same rows with held-out nonsense."""
    rng = random.Random(f"gate {seed}")
    nonsense_rows = [replace(row, instruction=rng.choice(nonsense)) for row in rows]
    confidences = ([function_confidence(d) for d in decide.decisions(changed)] for changed in (nonsense_rows, rows))
    return gate_from_confidences(*confidences)


def fit_familiar_gate(decide: TreeDecider, rows: Sequence[Row]) -> float:
    """Return the gate of a model that was trained without nonsense. It withholds calls whose confidence is lowered by
    unknown words or an unfamiliar observation, and at most the share SPARED of held-out rows."""
    answers = (decision for decision in decide.decisions(rows) if isinstance(decision, Decision))
    confidences = sorted(decision.confidence.get("function", 1.0) for decision in answers)
    lowest = confidences[math.floor(SPARED * len(confidences))] if confidences else 1.0
    return round(max(MIN_GATE, min(FAMILIAR, lowest)), 4)


def spare_words(rows: Sequence[Row]) -> int:
    """Return how many unknown words an instruction may have: the maximum over all rows except for the share SPARED. A
    word of a row counts as unknown if no other row has it."""
    instructions = [frozenset(words(row.instruction)) for row in rows]
    counts = Counter(word for each in instructions for word in each)
    unknown = sorted((sum(counts[word] == 1 for word in each) for each in instructions), reverse=True)
    return unknown[math.floor(SPARED * len(unknown))] if unknown else 0


@dataclass(frozen=True)
class Nonsense:
    """A generator of sentences that are meaningless to an agent. `recognise` returns a sentence's goal or None. `agent`
    is a bundled agent's name, or "" for a user's agent. No sentence has a word of `goal_words`."""

    agent: str
    recognise: Callable[[str], Any]
    goal_words: frozenset[str] = frozenset()

    def __call__(self, rng: random.Random) -> str:
        """Return a random nonsense sentence for training, with typing noise."""
        while True:
            text = self._random_text(rng)
            if self._has_meaning(text):
                continue
            typed = with_typing_noise(rng, text, table_words(self.agent) if self.agent else self.goal_words)
            # Skip the text if the typing errors have produced a word of a goal.
            if normalised(typed) not in self._held_out_texts and self.goal_words.isdisjoint(normalised(typed).split()):
                return typed

    @cached_property
    def held_out(self) -> tuple[str, ...]:
        """Return nonsense that is not used in training: handwritten sentences, held-out sentences of other worlds."""
        kinds = [(world, kind) for world in self._other_worlds() for kind in world.kinds]
        sentences = [text for world, kind in kinds for text, _ in world.held_out_words(kind)[:12]]
        return tuple(text for text in (*nonsense(held_out=True), *sentences) if not self._has_meaning(text))

    @cached_property
    def _held_out_texts(self) -> frozenset[str]:
        return frozenset(map(normalised, self.held_out))

    def _other_worlds(self) -> list[Phrasings[Any, Any]]:
        return [world for name, world in WORLDS.items() if name != self.agent]

    def _has_meaning(self, text: str) -> bool:
        words = normalised(text)
        is_goal = bool(self.agent) and words in _goal_sentences(self.agent)
        return is_goal or not self.goal_words.isdisjoint(words.split()) or self.recognise(text) is not None

    def _random_text(self, rng: random.Random) -> str:
        source = rng.random()
        if source < 0.4:
            return rng.choice(nonsense(held_out=False))
        if source < 0.7:
            world = rng.choice(self._other_worlds())
            return world.spoken_sentence(rng, world.sample_goal(rng))
        if source < 0.85:
            return " ".join(rng.choice(_nonsense_words()) for _ in range(rng.randint(1, 6)))
        return " ".join("".join(rng.choices(_LETTERS, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 4)))


def with_nonsense(
    rows: Sequence[Row], sample: Callable[[random.Random], str], share: float, rng: random.Random
) -> list[Row]:
    """Return a copy of the rows in which a random `share` has nonsense from `sample` as instruction, and no call."""
    mixed = list(rows)
    picked = rng.sample(range(len(mixed)), int(share * len(mixed)))
    for start in range(0, len(picked), RUN):
        instruction = sample(rng)
        for index in picked[start : start + RUN]:
            mixed[index] = replace(mixed[index], instruction=instruction, call=None, quotes=(), meant="")
    return mixed


@cache
def _nonsense_words() -> tuple[str, ...]:
    return tuple(word for line in nonsense(held_out=False) for word in line.split())


@cache
def _goal_sentences(agent: str) -> frozenset[str]:
    """Return all sentences that mean a goal of a bundled agent, normalised for comparison."""
    world, rng = registry.WORLDS[agent].phrasings(), random.Random(0)
    goals = {world.sample_goal(rng) for _ in range(2000)}
    return frozenset(normalised(pattern) for goal in goals for pattern in world.spoken_patterns(goal))
