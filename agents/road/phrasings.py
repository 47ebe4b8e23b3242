"""Many ways to tell the driver what to do: drawn for training, listed for evaluation.

Training draws sentences from the training templates. Evaluation list 1 (`seen_words`) holds sentences that training
never produces, made of its words; list 2 (`unseen_words`) uses words that those templates never show. A pattern is a
sentence with the marks of its goal's value left in; `written` fills them. What people say who were never shown a
template is `spoken_patterns`; list 3 (`held_out_words`) is the tenth of it that is kept back.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache

from rtcontrol.agents.phrasing import Grammar, as_typed, casual, sentences, split_words
from rtcontrol.agents.road.goals import DEFAULT_GAP, KINDS, VALUES, RoadGoal, RoadKind, recognise
from rtcontrol.agents.spoken import bare, integer_in_words, spoken, words_of, written_in

PER_GOAL = 60
CANONICAL_SHARE = 0.2
WEIGHTS: dict[RoadKind, float] = {
    "drive": 0.14,
    "speed": 0.16,
    "lane": 0.2,
    "follow": 0.14,
    "turn": 0.16,
    "overtake": 0.1,
    "stop": 0.1,
}
USUAL_GAP = RoadGoal("follow", DEFAULT_GAP)
_GOALS = {kind: tuple(RoadGoal(kind, value) for value in VALUES.get(kind, (None,))) for kind in KINDS}
_SENTENCES = sentences("road")
_GRAMMAR = Grammar(_SENTENCES["slots"])
_UNSEEN_GRAMMAR = Grammar(_SENTENCES["unseen_slots"])


def sample_goal(rng: random.Random) -> RoadGoal:
    """A random goal, its value uniform over those of its kind."""
    kind = rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
    return rng.choice(_GOALS[kind])


def training_instruction(rng: random.Random, goal: RoadGoal) -> str:
    """A random training sentence that asks for `goal`, at times capitalised, with `I`, a full stop or a `!`."""
    if rng.random() < CANONICAL_SHARE:
        return goal.text()
    usual = _SENTENCES["train_usual_gap"] if goal == USUAL_GAP else ()
    template = rng.choice(_SENTENCES["train"][goal.kind] + usual)
    return as_typed(rng, _value_words(goal).fill(rng, _GRAMMAR.fill(rng, template)))


def training_patterns(kind: RoadKind) -> Iterator[str]:
    """Every pattern that training can draw for a kind, in small letters and without a mark; with repeats.

    A `follow` pattern without a mark for its value is drawn for USUAL_GAP only.
    """
    for template in _SENTENCES["train"][kind] + (_SENTENCES["train_usual_gap"] if kind == "follow" else ()):
        yield from _GRAMMAR.expand(template)


def evaluation_patterns(kind: RoadKind) -> Iterator[str]:
    """Every pattern that the templates of evaluation list 1 can make, likewise."""
    for template in _SENTENCES["eval"][kind]:
        yield from _GRAMMAR.expand(template)


def goals_of(pattern: str, kind: RoadKind) -> tuple[RoadGoal, ...]:
    """The goals that a pattern of a kind can ask for: all values of it, or the one that it means unsaid."""
    if kind == "follow" and "{" not in pattern:
        return (USUAL_GAP,)
    return _GOALS[kind]


def written(pattern: str, goal: RoadGoal) -> Iterator[str]:
    """Every sentence that a pattern becomes for a goal; with repeats."""
    yield from _value_words(goal).expand(pattern)


@cache
def training_sentences(kind: RoadKind) -> Mapping[str, RoadGoal]:
    """Every sentence that training can draw for a kind, with its goal; as training_patterns writes them."""
    patterns = set(training_patterns(kind))
    return {text: goal for pattern in patterns for goal in goals_of(pattern, kind) for text in written(pattern, goal)}


@cache
def seen_words(kind: RoadKind) -> tuple[tuple[str, RoadGoal], ...]:
    """Evaluation list 1: PER_GOAL sentences with their goal, spread evenly over templates and values, always the
    same."""
    return _draw(f"driver {kind}", _GRAMMAR, _SENTENCES["eval"][kind], kind, training_sentences(kind))


@cache
def unseen_words(kind: RoadKind) -> tuple[tuple[str, RoadGoal], ...]:
    """Evaluation list 2: as many sentences with words that training never shows, likewise."""
    return _draw(f"driver unseen {kind}", _UNSEEN_GRAMMAR, _SENTENCES["unseen"][kind], kind, ())


def spoken_patterns(goal: RoadGoal, kept: bool | None = None) -> tuple[str, ...]:
    """What people say who want `goal`, its number or lane left as marks; `kept` as in `spoken`."""
    partner = goal.value == "right"
    if goal.kind == "turn":
        table = "turn_straight" if goal.value == "straight" else "turn_side"
        return spoken("road", table, partner=partner, kept=kept)
    if goal.kind == "lane":
        side = () if goal.value == "middle" else ("lane_side",)
        return spoken("road", "lane", *side, f"lane_{goal.value}", partner=partner, kept=kept)
    return spoken("road", goal.kind, *(("follow_usual",) if goal == USUAL_GAP else ()), kept=kept)


def meant(text: str) -> RoadGoal | None:
    """The goal that an instruction asks for: what people say by its table, all else by the plain rule; None: none that
    either reads. For the judge, never a way to control."""
    return _meanings().get(bare(text)) or recognise(text)


@cache
def _meanings() -> Mapping[str, RoadGoal]:
    goals = itertools.chain(*_GOALS.values())
    return {bare(pattern): goal for goal in goals for pattern in spoken_patterns(goal) if "{" not in pattern}


def spoken_sentence(rng: random.Random, goal: RoadGoal) -> str:
    """What somebody says who wants `goal`; of the kept tenth never."""
    return spoken_as(rng, rng.choice(spoken_patterns(goal, kept=False)), goal)


def spoken_instruction(rng: random.Random, goal: RoadGoal) -> str:
    """The same as it is typed; never a sentence of an evaluation list."""
    while True:
        typed = casual(rng, spoken_sentence(rng, goal), words_of("road"))
        if bare(typed) not in _listed():
            return typed


@cache
def held_out_words(kind: RoadKind) -> tuple[tuple[str, RoadGoal], ...]:
    """Evaluation list 3: what people say, kept from training, PER_GOAL sentences at most, spread over the values."""
    rng, found = random.Random(f"driver held out {kind}"), {}
    for index in range(PER_GOAL):
        goal = _GOALS[kind][index % len(_GOALS[kind])]
        patterns = spoken_patterns(goal, kept=True)
        found[spoken_as(rng, patterns[index % len(patterns)], goal)] = goal
    return tuple((text, goal) for text, goal in found.items() if bare(text) not in _trained())


@cache
def _trained() -> frozenset[str]:
    """All that templates and canonical words say in training."""
    told = (goal.text() for goal in itertools.chain(*_GOALS.values()))
    return frozenset(map(bare, itertools.chain(told, *map(training_sentences, KINDS))))


@cache
def _listed() -> frozenset[str]:
    lists = (seen_words, unseen_words, held_out_words)
    return frozenset(bare(text) for kind in KINDS for listed in lists for text, _ in listed(kind))


def spoken_as(rng: random.Random, pattern: str, goal: RoadGoal) -> str:
    """A spoken pattern with the goal's number, in figures or in words as its mark says, or with its lane."""
    if goal.kind == "lane":
        return _value_words(goal).fill(rng, pattern)
    value = goal.value
    marks = {"V": str(value), "Vw": integer_in_words(rng, value)} if isinstance(value, int) else {}
    return written_in(pattern, marks)


@cache
def vocabulary() -> frozenset[str]:
    """Every word, number and mark of the training sentences and of evaluation list 1."""
    words = {".", "!", "I"}
    for kind in KINDS:
        words |= _GRAMMAR.words((*_SENTENCES["train"][kind], *_SENTENCES["eval"][kind]))
        for goal in _GOALS[kind]:
            ways = _value_words(goal).slots.values()
            words.update(word for way in itertools.chain(*ways) for word in split_words(way))
    words |= _GRAMMAR.words(_SENTENCES["train_usual_gap"])
    return frozenset(words | {word.capitalize() for word in words})


@cache
def _value_words(goal: RoadGoal) -> Grammar:
    if goal.value is None:
        return Grammar({})
    listed = _SENTENCES["values"].get(goal.kind)
    return Grammar({"V": (str(goal.value),)} if listed is None else listed[str(goal.value)])


def _draw(
    seed: str, grammar: Grammar, templates: Sequence[str], kind: RoadKind, known: Container[str]
) -> tuple[tuple[str, RoadGoal], ...]:
    rng = random.Random(seed)
    found: dict[str, RoadGoal] = {}
    for index, template in enumerate(itertools.cycle(templates)):
        pattern = grammar.fill(rng, template)
        goals = goals_of(pattern, kind)
        goal = goals[(index + index // len(templates)) % len(goals)]  # each template meets each value
        text = _value_words(goal).fill(rng, pattern)
        if text not in known:
            found.setdefault(text, goal)
        if len(found) == PER_GOAL:
            break
    return tuple(found.items())
