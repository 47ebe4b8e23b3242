"""Tasks on top of looking up: compare, count, nearest and farthest, towards and away, if-then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from rtcontrol.models.call import Call
from rtcontrol.models.train.tasks import names, schemas
from rtcontrol.models.train.tasks.look_up import LAYOUTS, SITUATIONS, TOLD, shown
from rtcontrol.models.train.tasks.task import Directive, SyntheticTask

NUMBERS = range(1, 100)
SIDES = (("left", "right"), ("down", "up"), ("west", "east"), ("back", "forward"))


def compare(rng: Random, things: int = 3, unseen: bool = False) -> Iterator[SyntheticTask]:
    """Things shown with numbers: is this one more, or less, than another, or than a number told?"""
    words = rng.choice((("yes", "no"), ("true", "false")))
    asked = rng.choice((("more", "less"), ("above", "below"), ("higher", "lower")))
    plain = _plain(unseen)

    def told(rng: Random, facts: dict[str, int]) -> Iterator[tuple[str, str]]:
        for _ in range(TOLD):
            (a, mine), (b, other) = rng.sample(list(facts.items()), 2)
            if rng.random() < 0.4:
                other = rng.choice([n for n in NUMBERS if n != mine])
                b = str(other)
            more = rng.random() < plain
            answer = mine > other if more else mine < other
            yield f"is {a} {asked[not more]} than {b}", words[not answer]

    yield from _numbered(rng, max(2, things), unseen, "answer", words, told)


def nearest(rng: Random, things: int = 3, unseen: bool = False) -> Iterator[SyntheticTask]:
    """Things at a distance and on a side: where is the nearest one, where the farthest?"""
    ways = rng.choice([w for w in schemas.WAYS if len(w) > 2])
    asked = rng.choice((("nearest", "farthest"), ("closest", "furthest")))
    verb = rng.choice(schemas.VERBS["move"])
    tool, named = schemas.a_tool(rng, verb, {"way": schemas.words(rng, ways)})
    layout = rng.choice(LAYOUTS)
    for _ in range(SITUATIONS):
        far = rng.sample(NUMBERS, max(2, things))
        where = [rng.choice(ways) for _ in far]
        found = names.draw(rng, len(far), unseen)
        seen = shown(layout, [*zip(found, zip(far, where, strict=True), strict=True)])
        near, away = where[far.index(min(far))], where[far.index(max(far))]
        told = [
            Directive(f"{verb} to the {word}", Call(verb, {named["way"]: way}))
            for word, way in zip(asked, (near, away), strict=True)
        ]
        yield SyntheticTask((tool,), seen, tuple(told))


def count(rng: Random, things: int = 4, unseen: bool = False) -> Iterator[SyntheticTask]:
    """Things on sides: how many are on this one?"""
    ways = rng.choice([w for w in schemas.WAYS if len(w) > 2])
    verb = rng.choice(schemas.VERBS["tell"])
    tool, named = schemas.a_tool(rng, verb, {"count": schemas.digits()})
    layout = rng.choice(LAYOUTS)
    for _ in range(SITUATIONS):
        where = [rng.choice(ways) for _ in range(things)]
        seen = shown(layout, [*zip(names.draw(rng, things, unseen), ([w] for w in where), strict=True)])
        asked = rng.sample(ways, TOLD)
        told = [Directive(f"how many are {way}", Call(verb, {named["count"]: where.count(way)})) for way in asked]
        yield SyntheticTask((tool,), seen, tuple(told))


def towards(rng: Random, things: int = 3, unseen: bool = False) -> Iterator[SyntheticTask]:
    """Things at signed places: go towards the named one, or away from it."""
    words = rng.choice(SIDES)
    plain = _plain(unseen)
    verb = rng.choice(schemas.VERBS["move"])

    def told(rng: Random, facts: dict[str, int]) -> Iterator[tuple[str, str]]:
        for name in list(facts)[:TOLD]:
            to = rng.random() < plain
            yield f"{verb} {'towards' if to else 'away from'} the {name}", words[(facts[name] > 0) == to]

    yield from _numbered(rng, things, unseen, "way", words, told, signed=True, verb=verb)


def if_then(rng: Random, things: int = 2, unseen: bool = False) -> Iterator[SyntheticTask]:
    """If the named thing is on that side, one way, else another."""
    ways, goes = rng.choice([w for w in schemas.WAYS if len(w) > 2]), rng.choice(SIDES)
    plain = _plain(unseen)
    verb = rng.choice(schemas.VERBS["move"])
    tool, named = schemas.a_tool(rng, verb, {"way": schemas.words(rng, goes)})
    layout = rng.choice(LAYOUTS)
    for _ in range(SITUATIONS):
        found = names.draw(rng, things, unseen)
        facts = {name: rng.choice(ways) for name in found}
        told = []
        for name in found[:TOLD]:
            way = facts[name] if rng.random() < plain else rng.choice(ways)
            then, other = rng.sample(goes, 2)
            sentence = f"if {name} is {way} {verb} {then} else {verb} {other}"
            told.append(Directive(sentence, Call(verb, {named["way"]: then if facts[name] == way else other})))
        yield SyntheticTask((tool,), shown(layout, [(n, [w]) for n, w in facts.items()]), tuple(told))


def _plain(unseen: bool) -> float:
    """How often a question is asked the plain way: in training mostly. Where *more* and *less* are even, neither the
    numbers alone nor the word alone tell anything of the answer, and nothing is learnt (docs/base.md has the trial)."""
    return 0.5 if unseen else 0.8


def _numbered(
    rng: Random,
    things: int,
    unseen: bool,
    meaning: str,
    words: Sequence[str],
    ask: Callable[[Random, dict[str, int]], Iterator[tuple[str, str]]],
    signed: bool = False,
    verb: str | None = None,
) -> Iterator[SyntheticTask]:
    verb = verb or rng.choice(schemas.VERBS["tell"])
    tool, named = schemas.a_tool(rng, verb, {meaning: schemas.words(rng, words)})
    layout = rng.choice(LAYOUTS)
    for _ in range(SITUATIONS):
        numbers = rng.sample(NUMBERS, things)
        found = names.draw(rng, things, unseen)
        facts: dict[str, int] = {
            n: v * rng.choice((-1, 1)) if signed else v for n, v in zip(found, numbers, strict=True)
        }
        told = [Directive(sentence, Call(verb, {named[meaning]: word})) for sentence, word in ask(rng, facts)]
        yield SyntheticTask((tool,), shown(layout, [(n, [v]) for n, v in facts.items()]), tuple(told))
