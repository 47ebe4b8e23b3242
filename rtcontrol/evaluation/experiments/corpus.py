"""The made-up corpus of the experiments: a robot's tools of none to six arguments, what it sees, and what it is told.

Values are told ("with 3 coats"), quoted ("the label \"amber falcon\""), or seen ("as wide as the dial shows"). Where
several places are told, any of them is right: so an expert who picks one has targets whose arguments belong together.
Rows are drawn for ever and never kept; orders of clauses whose checksum says so are kept for the rows that judge.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rtcontrol.models.call import Call

SIDE = 30  # places are 0..SIDE, so that all pairs can be listed
DIAL = "as the dial shows"  # in place of a number of ten steps
THINGS = ("crate", "lamp", "table", "barrel", "shelf", "cart", "pump", "valve", "chair", "drum", "rack", "bin")
COLOURS = ("red", "green", "blue", "black", "white", "amber", "violet", "grey")
SIZES = ("small", "medium", "large")
LABEL_WORDS = (
    *("amber", "anchor", "basil", "bridge", "canyon", "cedar", "copper", "delta", "ember", "falcon", "garden"),
    *("harbour", "island", "jasmine", "lantern", "maple", "meadow", "nickel", "orchid", "paper", "quartz", "raven"),
    *("river", "saffron", "silver", "summit", "thunder", "valley", "velvet", "willow", "winter", "zephyr"),
)
EVEN: Mapping[int, float] = {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}


def _number(low: int, high: int, step: int = 1) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high, **({"multipleOf": step} if step > 1 else {})}


def _words(values: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


X, Y = _number(0, SIDE), _number(0, SIDE)
TEXT = {"type": "string", "maxLength": 40}


@dataclass(frozen=True)
class Action:
    """A tool: what it is asked for with, its required parameters in order, and its optional ones, each with the ways
    to say it (none: the sentence says it)."""

    name: str
    about: str
    sentences: tuple[str, ...]
    required: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    optional: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = field(default_factory=dict)


ACTIONS = (
    Action("halt", "Stop at once.", ("halt", "stop now", "stay where you are", "do not move")),
    Action("wait", "Do nothing for a while.", ("wait {seconds} seconds", "pause for {seconds} s", "rest {seconds} s"),
           {"seconds": _number(1, 60)}),
    Action("go", "Drive to a place.", ("go to {place}", "drive to {place}", "head for {place}"), {"x": X, "y": Y}),
    Action("grip", "Take a thing in a hand.", ("grip the {thing} with the {hand} hand", "take the {thing}, {hand} hand",
                                               "{hand} hand: get the {thing}"),
           {"thing": _words(THINGS), "hand": _words(("left", "right"))},
           {"force": (_number(10, 90, 10), ("at force {}", "force {}"))}),
    Action("carry", "Bring a thing to a place.", ("carry the {thing} to {place}", "bring {place} the {thing}",
                                                  "take the {thing} over to {place}"),
           {"thing": _words(THINGS), "x": X, "y": Y},
           {"care": (_words(("gentle", "normal", "rough")), ("be {}", "in a {} way")),
            "speed": (_number(1, 9), ("at speed {}", "speed {}"))}),
    Action("paint", "Paint a thing.", ("paint the {thing} {colour}", "make the {thing} {colour}",
                                       "{colour} paint for the {thing}"),
           {"thing": _words(THINGS), "colour": _words(COLOURS)},
           {"coats": (_number(1, 5), ("with {} coats", "{} coats")),
            "gloss": (_number(10, 90, 10), ("gloss {}", "{} gloss")),
            "hours": (_number(1, 12), ("dry it {} hours", "let it dry {} h")),
            "room": (_words(("north", "south", "yard")), ("in the {} room", "room {}"))}),
    Action("label", "Print a label.", ('print "{text}" in {colour}', 'a {colour} label "{text}"',
                                       'label it "{text}", {colour}'),
           {"text": TEXT, "colour": _words(COLOURS)},
           {"copies": (_number(1, 20), ("{} copies", "{} times")), "size": (_words(SIZES), ("in {}", "size {}")),
            "tray": (_number(1, 4), ("from tray {}", "tray {}")), "width": (_number(10, 90, 10), ("{} mm wide",))}),
)  # fmt: skip
BY_NAME = {action.name: action for action in ACTIONS}


def tools(grouped: bool = False) -> list[dict[str, Any]]:
    """The tools as OpenAI-style definitions; `grouped`: x and y of a place are decoded as one value (x-group)."""
    return [definition(action, grouped) for action in ACTIONS]


def definition(action: Action, grouped: bool = False) -> dict[str, Any]:
    """One tool's."""
    own = {**action.required, **{name: schema for name, (schema, _) in action.optional.items()}}
    place = {"x-group": "place"} if grouped else {}
    properties = {name: {**schema, **(place if name in ("x", "y") else {})} for name, schema in own.items()}
    parameters = {"type": "object", "properties": properties, "required": list(action.required)}
    return {"name": action.name, "description": action.about, "parameters": parameters}


@dataclass(frozen=True)
class CorpusSample:
    """One decision: `allowed` are all calls that are right (`call`, which the expert made, among them); `kind` says
    what is asked of the model: "told", "seen" (a value is read from the observation) or "any" (several places are
    right); `order` is its sentence and its clauses, in the order in which they are said."""

    instruction: str
    observation: str
    call: Call
    allowed: tuple[Call, ...]
    kind: str
    order: str


@dataclass(frozen=True)
class CorpusOptions:
    """`shares`: how often calls of each number of arguments come (of the tools that can have so many, any). `places`:
    how many are told where one is asked for. `held_out`: orders of clauses, and seeds, that training never has."""

    shares: Mapping[int, float] = field(default_factory=lambda: dict(EVEN))
    places: int = 1
    held_out: bool = False


def samples(seed: int, options: CorpusOptions = CorpusOptions()) -> Iterator[CorpusSample]:
    """For ever; the same for the same arguments."""
    rng = Random(f"{seed} {options.held_out}")
    counts, weights = zip(*options.shares.items(), strict=True)
    while True:
        count = rng.choices(counts, weights)[0]
        fitting = [a for a in ACTIONS if len(a.required) <= count <= len(a.required) + len(a.optional)]
        yield _sample(rng, rng.choice(fitting), count, options)


def _sample(rng: Random, action: Action, count: int, options: CorpusOptions) -> CorpusSample:
    dial = rng.randrange(10, 91, 10)
    values = {name: draw(rng, schema) for name, schema in action.required.items()}
    told, places, kind = dict(values), [dict[str, int]()], "told"
    if "x" in values:
        places = [{"x": rng.randint(0, SIDE), "y": rng.randint(0, SIDE)} for _ in range(options.places)]
        told["place"] = " or ".join(f"{place['x']} {place['y']}" for place in places)
        kind = "any" if options.places > 1 else "told"
    sentence, extra, seen, order = _said(rng, action, count - len(action.required), told, dial, options.held_out)
    calls = [Call(action.name, _ordered(action, {**values, **place, **extra})) for place in places]
    observation = f"battery {rng.randint(5, 99)}; dial {dial}; {rng.choice(('quiet', 'busy', 'blocked'))}"
    return CorpusSample(sentence, observation, rng.choice(calls), tuple(calls), "seen" if seen else kind, order)


def _ordered(action: Action, values: Mapping[str, Any]) -> dict[str, Any]:
    order = (*action.required, *sorted(action.optional))
    return {name: values[name] for name in order if name in values}


def _said(
    rng: Random, action: Action, count: int, told: Mapping[str, Any], dial: int, held_out: bool
) -> tuple[str, dict[str, Any], bool, str]:
    """The sentence, the optional arguments that it asks for, whether one of them is what the dial shows, and the order
    in which it says them."""
    while True:
        chosen = rng.sample(list(action.optional), count)
        form = rng.randrange(len(action.sentences))
        key = f"{action.name} {form} {' '.join(chosen)}"
        # Of sentences with fewer clauses there are too few to keep any.
        if len(chosen) < 2 or (zlib.crc32(key.encode()) % 4 == 0) == held_out:
            break
    extra = {name: draw(rng, action.optional[name][0]) for name in chosen}
    read = next((name for name in chosen if action.optional[name][0].get("multipleOf") and rng.random() < 0.5), None)
    if read is not None:
        extra[read] = dial
    said = {name: DIAL if name == read else value for name, value in extra.items()}
    clauses = [rng.choice(action.optional[name][1]).format(value) for name, value in said.items()]
    return ", ".join([action.sentences[form].format(**told), *clauses]), extra, read is not None, key


def draw(rng: Random, schema: Mapping[str, Any]) -> Any:
    """A value of a parameter of this corpus."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema["type"] == "string":
        return " ".join(rng.sample(LABEL_WORDS, rng.randint(2, 4)))
    return rng.randrange(schema["minimum"], schema["maximum"] + 1, schema.get("multipleOf", 1))
