"""Many ways to tell the paddle what to do: drawn for training, listed for evaluation.

Training draws sentences from the training templates. Evaluation list 1 (`seen_words`) holds sentences that training
never produces, made of its words; list 2 (`unseen_words`) uses words that those templates never show. What people say
who were never shown a template is `spoken_patterns`; list 3 (`held_out_words`) is the tenth of it that is kept back.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from functools import cache

from rtcontrol.agents.paddle.goals import KINDS, PaddleGoal, PaddleKind, recognise
from rtcontrol.agents.phrasing import Grammar, as_typed, casual, sentences
from rtcontrol.agents.spoken import bare, spoken, words_of

PER_GOAL = 60
CANONICAL_SHARE = 0.2
WEIGHTS: dict[PaddleKind, float] = {
    "return": 0.15,
    "miss": 0.3,
    "up": 0.17,
    "down": 0.17,
    "top": 0.05,
    "bottom": 0.05,
    "mirror": 0.11,
}
_DIRECTION = re.compile(r"<\w+>")
_FAMILY: dict[PaddleKind, str] = {"up": "aim", "down": "aim", "top": "place", "bottom": "place"}
_SENTENCES = sentences("paddle")
_GRAMMAR = Grammar({name.strip("<>"): values for name, values in _SENTENCES["slots"].items()})


def sample_goal(rng: random.Random) -> PaddleGoal:
    """A random goal; those that hang on the ball, which are harder, come up more often."""
    return PaddleGoal(rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0])


def training_instruction(rng: random.Random, goal: PaddleGoal) -> str:
    """A random training sentence that asks for `goal`, at times capitalised, with `I`, a full stop or a `!`."""
    if rng.random() < CANONICAL_SHARE:
        return goal.text()
    return as_typed(rng, _GRAMMAR.fill(rng, rng.choice(_templates("train", goal.kind))))


def training_patterns(kind: PaddleKind) -> Iterator[str]:
    """Every sentence that training can draw for a goal, in small letters and without a mark; with repeats."""
    for template in _templates("train", kind):
        yield from _GRAMMAR.expand(template)


def evaluation_patterns(kind: PaddleKind) -> Iterator[str]:
    """Every sentence that the templates of evaluation list 1 can make, likewise."""
    for template in _templates("eval", kind):
        yield from _GRAMMAR.expand(template)


@cache
def seen_words(kind: PaddleKind) -> tuple[tuple[str, PaddleGoal], ...]:
    """Evaluation list 1: PER_GOAL sentences with their goal, spread evenly over the templates, always the same."""
    trained = frozenset(training_patterns(kind))
    rng = random.Random(f"paddle {kind}")
    sentences = _GRAMMAR.held_out(rng, _templates("eval", kind), trained, PER_GOAL)
    return tuple((text, PaddleGoal(kind)) for text in sentences)


def unseen_words(kind: PaddleKind) -> tuple[tuple[str, PaddleGoal], ...]:
    """Evaluation list 2: sentences with words that training never shows."""
    return tuple((text, PaddleGoal(kind)) for text in _SENTENCES["unseen"][kind])


def spoken_patterns(goal: PaddleGoal, kept: bool | None = None) -> tuple[str, ...]:
    """What people say who want `goal`; `kept` as in `spoken`."""
    if family := _FAMILY.get(goal.kind):
        return spoken("paddle", family, goal.kind, partner=goal.kind in ("down", "bottom"), kept=kept)
    return spoken("paddle", goal.kind, kept=kept)


def meant(text: str) -> PaddleGoal | None:
    """The goal that an instruction asks for: what people say by its table, all else by the plain rule; None: none that
    either reads. For the judge, never a way to control."""
    return _meanings().get(bare(text)) or recognise(text)


@cache
def _meanings() -> Mapping[str, PaddleGoal]:
    goals = map(PaddleGoal, KINDS)
    return {bare(pattern): goal for goal in goals for pattern in spoken_patterns(goal) if "{" not in pattern}


def spoken_sentence(rng: random.Random, goal: PaddleGoal) -> str:
    """What somebody says who wants `goal`; of the kept tenth never."""
    return rng.choice(spoken_patterns(goal, kept=False))


def spoken_instruction(rng: random.Random, goal: PaddleGoal) -> str:
    """The same as it is typed; never a sentence of an evaluation list."""
    while True:
        typed = casual(rng, spoken_sentence(rng, goal), words_of("paddle"))
        if bare(typed) not in _listed():
            return typed


@cache
def held_out_words(kind: PaddleKind) -> tuple[tuple[str, PaddleGoal], ...]:
    """Evaluation list 3: what people say, kept from training, PER_GOAL sentences at most, spread over the tables."""
    patterns = [text for text in spoken_patterns(PaddleGoal(kind), kept=True) if bare(text) not in _trained()]
    return tuple((text, PaddleGoal(kind)) for text in patterns[:: max(1, len(patterns) // PER_GOAL)][:PER_GOAL])


@cache
def _trained() -> frozenset[str]:
    """All that templates and canonical words say in training."""
    told = (PaddleGoal(kind).text() for kind in KINDS)
    return frozenset(map(bare, itertools.chain(told, *map(training_patterns, KINDS))))


@cache
def _listed() -> frozenset[str]:
    lists = (seen_words, unseen_words, held_out_words)
    return frozenset(bare(text) for kind in KINDS for listed in lists for text, _ in listed(kind))


@cache
def vocabulary() -> frozenset[str]:
    """Every word and mark of the training sentences and of evaluation list 1."""
    words = {".", "!", "I"}
    for kind in KINDS:
        words |= _GRAMMAR.words(_templates("train", kind) + _templates("eval", kind))
    return frozenset(words | {word.capitalize() for word in words})


@cache
def _templates(split: str, kind: PaddleKind) -> tuple[str, ...]:
    templates = _SENTENCES[split][_FAMILY.get(kind, kind)]
    return tuple(_directed(template, mirrored=kind in ("down", "bottom")) for template in templates)


def _directed(template: str, mirrored: bool) -> str:
    """`<up>` becomes the slot `{up}`, `<top>` the word top; the other way round for the other direction."""
    swap = {a: b for pair in _SENTENCES["pairs"] for a, b in (pair, pair[::-1])} if mirrored else {}

    def word(match: re.Match[str]) -> str:
        name = swap.get(match[0], match[0])
        return str(_SENTENCES["words"].get(name, "{" + name.strip("<>") + "}"))

    return _DIRECTION.sub(word, template)
