"""Find the named thing among those shown, and call a tool with what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.train.tasks import names, schemas
from rtcontrol.models.train.tasks.task import Directive, SyntheticTask

# What stands around a thing and its values; in the second half the values come first.
LAYOUTS = (
    ("{name} {values}", " "),
    ("{name} {values}", "; "),
    ("{name}: {values}", ", "),
    ("{name} is {values}", "; "),
    ("the {name} {values}", ". "),
    ("{values} {name}", "; "),
    ("{values}: {name}", ", "),
)
SENTENCES = (
    "{verb} to the {name}",
    "{verb} to {name}",
    "{verb} {name}",
    "{verb} the {name}",
    "please {verb} the {name}",
    "{verb} the {name} now",
    "the {name}: {verb} it",
)


@dataclass(frozen=True)
class Variety:
    """How much differs from task to task: the mix of names, so many of the first sentences and layouts, how often there
    are several tools (two, or at most `most_tools`), a digit beside each direction, an argument for the name, and
    something said of each thing that nobody asks for."""

    names: names.Mix = names.MIX
    sentences: int = len(SENTENCES)
    layouts: int = len(LAYOUTS)
    several_tools: float = 0.3
    most_tools: int = 4
    digit: float = 0.3
    name: float = 0.45
    unasked: float = 0.3


SITUATIONS = 2  # of one set of tools: its text is most of a row, and computed once for all of these
FULL = Variety()
TOLD = 3  # instructions a situation


def shown(layout: tuple[str, str], things: Sequence[tuple[str, Sequence[Any]]]) -> str:
    """An observation of (name, values), in this order."""
    form, between = layout
    return between.join(form.format(name=name, values=" ".join(map(str, values))) for name, values in things)


def look_up(rng: Random, things: int, unseen: bool = False, variety: Variety = FULL) -> Iterator[SyntheticTask]:
    """Situations of one set of tools. One of `things` is named; its direction, and at times a digit and its own name,
    are the arguments."""
    ways = rng.choice([w for w in schemas.WAYS if len(w) > 2 or things < 4])
    extra = rng.random() < variety.digit
    parameters: dict[str, Any] = {"way": schemas.words(rng, ways)}
    if extra:
        parameters["count"] = schemas.digits()
    if rng.random() < variety.name:
        parameters["name"] = {"type": "string"}
    verbs = schemas.verbs(rng, rng.randint(2, variety.most_tools) if rng.random() < variety.several_tools else 1)
    tools, named = zip(*(schemas.a_tool(rng, verb, parameters) for verb in verbs), strict=True)
    tools = schemas.arranged(rng, tools)
    sentence, layout = rng.choice(SENTENCES[: variety.sentences]), rng.choice(LAYOUTS[: variety.layouts])
    states = rng.choice(schemas.STATES) if rng.random() < variety.unasked else None
    place = rng.randint(0, 1 + extra)
    for _ in range(SITUATIONS):
        found = names.draw(rng, things, unseen, variety.names)
        facts: dict[str, dict[str, Any]] = {
            name: {"way": rng.choice(ways), "count": rng.choice(schemas.DIGITS), "name": name} for name in found
        }
        said = {n: [facts[n]["way"], *[facts[n]["count"]] * extra] for n in found}
        if states is not None:
            for values in said.values():
                values.insert(place, rng.choice(states))
        seen = shown(layout, [(n, said[n]) for n in rng.sample(found, things)])
        told = []
        for name in found[:TOLD]:
            by = rng.randrange(len(verbs))
            arguments = {written: facts[name][meaning] for meaning, written in named[by].items()}
            told.append(Directive(sentence.format(verb=verbs[by], name=name), Call(verbs[by], arguments)))
        yield SyntheticTask(tools, seen, tuple(told))
