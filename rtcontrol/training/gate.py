"""What a controller is taught not to understand, and its gate: how sure the function head must be that it was told
something, found on what it never learnt.

Sentences name none of its goals, its own instructions never. Shuffled words of a real instruction are no nonsense:
people are understood who say it clumsily.

Measured on a paddle of 1.4 M parameters after 90,000 samples, 6 % of them nonsense: of canonical instructions it is
never less than 0.999 sure; a gate at 0.98 holds 88 % of 232 sentences of held-out nonsense, and 8 % of what people say
that was held out too; 0.995 holds 92 and 15 %.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from rtcontrol.agents.phrasing import Phrasings, bare, casual, nonsense, words_of
from rtcontrol.envs import registry
from rtcontrol.models.call import Decision
from rtcontrol.models.data.row import Row
from rtcontrol.models.train.policy import TreeDecider

HELD = 0.95  # of nonsense, at least
SPARED = 0.02  # of canonical instructions, at most
ROWS = 1024  # of each


def sureness(decision: object) -> float:
    """How sure a decision's function head is that it was told something; 0 for null, and where none was made."""
    if not isinstance(decision, Decision) or decision.call is None:
        return 0.0
    return decision.confidence.get("function", 1.0)


def gate_between(nonsense: Sequence[float], understood: Sequence[float]) -> float:
    """The gate that holds HELD of the nonsense, by how sure a model is of each: half way to what would hold more than
    SPARED of what it understands, which it never does."""
    enough = sorted(nonsense)[math.ceil(HELD * len(nonsense)) - 1]
    most = sorted(understood)[math.floor(SPARED * len(understood))]
    # What is held is below the gate: at `enough` itself that one is not. Nor is it rounded: up, it would hold what is
    # understood.
    return most if enough >= most else (enough + most) / 2


def heard(
    decide: TreeDecider, rows: Sequence[Row], nonsense: Sequence[str], rng: random.Random
) -> tuple[list[float], list[float]]:
    """How sure a model that sees what these rows saw is of `nonsense` that it was not taught with, and of the rows."""
    asked = decide.decisions([replace(row, instruction=rng.choice(nonsense)) for row in rows])
    return [sureness(d) for d in asked], [sureness(d) for d in decide.decisions(rows)]


def fit_gate(decide: TreeDecider, rows: Sequence[Row], nonsense: Sequence[str], seed: int) -> float:
    """The gate of a model, by rows that are told canonical words, and by nonsense in their place."""
    return gate_between(*heard(decide, rows, nonsense, random.Random(f"gate {seed}")))


WORLDS: dict[str, Phrasings[Any, Any]] = {name: world.phrasings() for name, world in registry.WORLDS.items()}
RUN = 4  # rows that share a sentence, as training groups them
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Nonsense:
    """Sentences that ask an agent for nothing; `recognise` reads a goal off a sentence where it can. `agent` is a
    bundled one, or ""; then nothing that holds one of `its_words` is nonsense."""

    agent: str
    recognise: Callable[[str], Any]
    its_words: frozenset[str] = frozenset()

    def __call__(self, rng: random.Random) -> str:
        """One for training: written by hand, of another world, of random words or letters, as it is typed."""
        while True:
            text = _drawn(rng, self._others())
            if self._means(text) or (said := bare(typed := casual(rng, text, self._words))) in self._kept:
                continue
            if self.its_words.isdisjoint(said.split()):  # what is added to a sentence may be a word of a goal
                return typed

    @cached_property
    def held_out(self) -> tuple[str, ...]:
        """What training never shows: written by hand, and other worlds' sentences that are kept back."""
        kinds = [(world, kind) for world in self._others() for kind in world.kinds]
        told = [text for world, kind in kinds for text, _ in world.held_out_words(kind)[:12]]
        return tuple(text for text in (*nonsense(kept=True), *told) if not self._means(text))

    @cached_property
    def _kept(self) -> frozenset[str]:
        return frozenset(map(bare, self.held_out))

    @cached_property
    def _words(self) -> frozenset[str]:
        return words_of(self.agent) if self.agent else self.its_words

    def _others(self) -> list[Phrasings[Any, Any]]:
        return [world for name, world in WORLDS.items() if name != self.agent]

    def _means(self, text: str) -> bool:
        said = bare(text)
        known = self.agent and said in _meant(self.agent)
        return bool(known) or not self.its_words.isdisjoint(said.split()) or self.recognise(text) is not None


def with_nonsense(
    rows: Sequence[Row], draw: Callable[[random.Random], str], share: float, rng: random.Random
) -> list[Row]:
    """The rows, a share of them told something that asks for nothing: the function head shall answer null."""
    mixed = list(rows)
    picked = rng.sample(range(len(mixed)), int(share * len(mixed)))
    for start in range(0, len(picked), RUN):
        said = draw(rng)
        for index in picked[start : start + RUN]:
            mixed[index] = replace(mixed[index], instruction=said, call=None, quotes=(), meant="")
    return mixed


def _drawn(rng: random.Random, others: Sequence[Phrasings[Any, Any]]) -> str:
    what = rng.random()
    if what < 0.4:
        return rng.choice(nonsense(kept=False))
    if what < 0.7:
        world = rng.choice(others)
        return world.spoken_sentence(rng, world.sample_goal(rng))
    if what < 0.85:
        return " ".join(rng.choice(_words()) for _ in range(rng.randint(1, 6)))
    return " ".join("".join(rng.choices(_LETTERS, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 4)))


@cache
def _words() -> tuple[str, ...]:
    return tuple(word for line in nonsense(kept=False) for word in line.split())


@cache
def _meant(agent: str) -> frozenset[str]:
    """All that people say who want one of an agent's goals, as it is compared."""
    world, rng = registry.WORLDS[agent].phrasings(), random.Random(0)
    goals = {world.sample_goal(rng) for _ in range(2000)}
    return frozenset(bare(pattern) for goal in goals for pattern in world.spoken_patterns(goal))
