"""Many ways to tell the lander what to do: drawn for training, listed for evaluation.

Training draws sentences from the training templates. Evaluation list 1 (`seen_words`) holds sentences that training
never produces, made of its words; list 2 (`unseen_words`) uses words that those templates never show. What people say
who were never shown a template is `spoken_patterns`; list 3 (`held_out_words`) is the tenth of it that is kept back.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from functools import cache

from rtcontrol.agents.lander.goals import LanderGoal, LanderKind, recognise
from rtcontrol.agents.phrasing import Grammar, casual, sentences
from rtcontrol.agents.spoken import bare, hundredths_in_words, spoken, words_of, written_in

KINDS: tuple[LanderKind, ...] = ("land", "left", "right", "hover")
DEFAULT_WEIGHTS: Mapping[LanderKind, float] = {"land": 0.25, "left": 0.15, "right": 0.15, "hover": 0.45}
X_HUNDREDTHS = range(-50, 51)
Y_HUNDREDTHS = range(40, 111)
PER_GOAL = 120
CANONICAL_SHARE = 0.15
HOVER_PLACES = ((0, 70), (-20, 70), (30, 80), (0, 90), (-35, 60), (15, 100), (0, 55), (40, 75))
_SENTENCES = sentences("lander")
_GRAMMAR = Grammar(_SENTENCES["slots"])


def sample_goal(rng: random.Random, weights: Mapping[LanderKind, float] = DEFAULT_WEIGHTS) -> LanderGoal:
    """A random goal; a hover's place lies in x -0.5..0.5 and y 0.4..1.1, in hundredths, x often 0, tenths often."""
    kind = rng.choices(tuple(weights), tuple(weights.values()))[0]
    if kind != "hover":
        return LanderGoal(kind)
    x = 0 if rng.random() < 0.4 else _place(rng, X_HUNDREDTHS)
    return LanderGoal("hover", x / 100, _place(rng, Y_HUNDREDTHS) / 100)


def training_instruction(rng: random.Random, goal: LanderGoal) -> str:
    """A random training sentence that asks for `goal`, at times capitalised or with a full stop."""
    if rng.random() < CANONICAL_SHARE:
        return goal.text()
    if goal.kind == "hover":
        with_x = round(goal.x * 100) != 0 or rng.random() < 0.2
        template = rng.choice(_SENTENCES["train"]["place" if with_x else "height"])
        pattern = _GRAMMAR.fill(rng, template).format(X=_write(rng, goal.x), Y=_write(rng, goal.y))
    else:
        pattern = _GRAMMAR.fill(rng, rng.choice(_templates("train", goal.kind)))
    if rng.random() < 0.1:
        pattern = pattern[0].upper() + pattern[1:]
    return pattern + "." if rng.random() < 0.1 else pattern


def sample_training_instruction(rng: random.Random) -> tuple[str, LanderGoal]:
    """A random goal and a random training sentence for it."""
    goal = sample_goal(rng)
    return training_instruction(rng, goal), goal


def training_patterns(kind: LanderKind) -> Iterator[str]:
    """Every sentence that training can draw for a goal, a hover's numbers left as `{X}` and `{Y}`; with repeats."""
    for template in _templates("train", kind):
        yield from _GRAMMAR.expand(template)


def evaluation_patterns(kind: LanderKind) -> Iterator[str]:
    """Every sentence that the templates of evaluation list 1 can make, likewise."""
    for template in _templates("eval", kind):
        yield from _GRAMMAR.expand(template)


@cache
def seen_words(kind: LanderKind) -> tuple[tuple[str, LanderGoal], ...]:
    """Evaluation list 1: PER_GOAL sentences with their goals, spread evenly over the templates, always the same."""
    rng = random.Random(f"lander {kind}")
    trained = frozenset(training_patterns(kind))
    patterns = _GRAMMAR.held_out(rng, _templates("eval", kind), trained, PER_GOAL)
    return tuple(_with_goal(rng, pattern, kind, i) for i, pattern in enumerate(patterns))


@cache
def unseen_words(kind: LanderKind) -> tuple[tuple[str, LanderGoal], ...]:
    """Evaluation list 2: sentences with words that training never shows."""
    rng = random.Random(0)
    patterns = _SENTENCES["unseen"][kind]
    return tuple(_with_goal(rng, pattern, kind, i) for i in range(2 if kind == "hover" else 1) for pattern in patterns)


def spoken_patterns(goal: LanderGoal, kept: bool | None = None) -> tuple[str, ...]:
    """What people say who want `goal`, a hover's numbers left as marks; `kept` as in `spoken`."""
    if goal.kind == "land":
        return spoken("lander", "land", kept=kept)
    if goal.kind == "hover":
        return spoken("lander", *(("place", "aside") if goal.x else ("height",)), kept=kept)
    return spoken("lander", "side", goal.kind, partner=goal.kind == "right", kept=kept)


def meant(text: str) -> LanderGoal | None:
    """The goal that an instruction asks for: what people say by its table, all else by the plain rule; None: none that
    either reads. For the judge, never a way to control."""
    return _meanings().get(bare(text)) or recognise(text)


@cache
def _meanings() -> Mapping[str, LanderGoal]:
    goals = [LanderGoal(kind) for kind in KINDS if kind != "hover"]
    return {bare(pattern): goal for goal in goals for pattern in spoken_patterns(goal) if "{" not in pattern}


def spoken_sentence(rng: random.Random, goal: LanderGoal) -> str:
    """What somebody says who wants `goal`; of the kept tenth never."""
    return written(rng, rng.choice(spoken_patterns(goal, kept=False)), goal)


def spoken_instruction(rng: random.Random, goal: LanderGoal) -> str:
    """The same as it is typed; never a sentence of an evaluation list."""
    while True:
        typed = casual(rng, spoken_sentence(rng, goal), words_of("lander"))
        if bare(typed) not in _listed():
            return typed


@cache
def held_out_words(kind: LanderKind) -> tuple[tuple[str, LanderGoal], ...]:
    """Evaluation list 3: what people say, kept from training, PER_GOAL sentences at most, always the same."""
    rng, found = random.Random(f"lander held out {kind}"), {}
    for index in range(PER_GOAL):
        x, y = HOVER_PLACES[index % len(HOVER_PLACES)] if kind == "hover" else (0, 0)
        goal = LanderGoal(kind, x / 100, y / 100)
        patterns = spoken_patterns(goal, kept=True)
        pattern = patterns[index % len(patterns)]
        text = written(rng, pattern, goal)
        if bare(pattern) not in _trained():
            found[text] = goal
    return tuple(found.items())


@cache
def _trained() -> frozenset[str]:
    """All that templates and canonical words say in training, a hover's numbers left as marks."""
    told = (LanderGoal(kind).text() for kind in KINDS if kind != "hover")
    return frozenset(map(bare, itertools.chain(told, *map(training_patterns, KINDS))))


@cache
def _listed() -> frozenset[str]:
    lists = (seen_words, unseen_words, held_out_words)
    return frozenset(bare(text) for kind in KINDS for listed in lists for text, _ in listed(kind))


def written(rng: random.Random, pattern: str, goal: LanderGoal) -> str:
    """A spoken pattern with the goal's numbers, in figures or in words as its marks say."""
    x, y = round(goal.x * 100), round(goal.y * 100)
    marks = {"X": _write(rng, goal.x), "Y": _write(rng, goal.y), "A": _write(rng, abs(goal.x))}
    words = {"Xw": hundredths_in_words(rng, x), "Yw": hundredths_in_words(rng, y), "S": "left" if x < 0 else "right"}
    return written_in(pattern, marks | words)


@cache
def vocabulary() -> frozenset[str]:
    """Every word, number and mark of the training sentences and of evaluation list 1."""
    words = {"."}
    for kind in KINDS:
        words |= _GRAMMAR.words(_templates("train", kind) + _templates("eval", kind))
    words |= {word.capitalize() for word in words}
    for value in itertools.chain(X_HUNDREDTHS, Y_HUNDREDTHS):
        words.update(_written(value))
    return frozenset(words)


@cache
def _templates(split: str, kind: LanderKind) -> tuple[str, ...]:
    templates: dict[str, tuple[str, ...]] = _SENTENCES[split]
    if kind == "hover":
        return templates["height"] + templates["place"]
    if kind == "land":
        return templates["land"]
    other = "right" if kind == "left" else "left"
    return tuple(template.replace("{D}", kind).replace("{O}", other) for template in templates["side"])


def _with_goal(rng: random.Random, pattern: str, kind: LanderKind, index: int) -> tuple[str, LanderGoal]:
    if kind != "hover":
        return pattern, LanderGoal(kind)
    places = HOVER_PLACES if "{X}" in pattern else [place for place in HOVER_PLACES if place[0] == 0]
    x, y = (hundredths / 100 for hundredths in places[index % len(places)])
    return pattern.format(X=_write(rng, x), Y=_write(rng, y)), LanderGoal("hover", x, y)


def _place(rng: random.Random, hundredths: range) -> int:
    value = rng.choice(hundredths)
    return value // 10 * 10 if rng.random() < 0.4 else value


def _written(hundredths: int) -> tuple[str, ...]:
    """The ways to write a number with at most two decimals: 0.7 and 0.70; 1, 1.0 and 1.00."""
    two = f"{hundredths / 100:.2f}" if hundredths else "0.00"
    if hundredths % 10:
        return (two,)
    return (two[:-1], two) if hundredths % 100 else (two[:-1], two[:-3], two)


def _write(rng: random.Random, value: float) -> str:
    ways = _written(round(value * 100))
    return ways[0] if rng.random() < 0.7 else rng.choice(ways)
