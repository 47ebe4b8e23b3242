"""Generate the synthetic corpus of `heads_or_json.py`: robot tools with up to six arguments, observations, sentences.

Sentences state values ("with 3 coats"), quote them, or refer to the observation ("as the dial shows"). Rows are random.
Some orders of clauses, chosen by a checksum, occur only in held-out rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Row

DIAL = "as the dial shows"  # may replace a number whose step is 10
THINGS = ["crate", "lamp", "table", "barrel", "shelf", "cart", "pump", "valve", "chair", "drum", "rack", "bin"]
COLOURS = ["red", "green", "blue", "black", "white", "amber", "violet", "grey"]
_LABELS = """
amber anchor basil bridge canyon cedar copper delta ember falcon garden harbour island jasmine lantern maple meadow
nickel orchid paper quartz raven river saffron silver summit thunder valley velvet willow winter zephyr
"""
LABEL_WORDS = _LABELS.split()


def range_of(low: int, high: int, step: int = 1) -> dict[str, Any]:
    """Return the JSON schema of an integer from `low` to `high`."""
    return {"type": "integer", "minimum": low, "maximum": high, **({"multipleOf": step} if step > 1 else {})}


def enum_of(values: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of a string that is one of `values`."""
    return {"type": "string", "enum": list(values)}


X = Y = range_of(0, 30)
TEXT = {"type": "string", "maxLength": 40}
SIZES = ("small", "medium", "large")


@dataclass(frozen=True)
class Action:
    """A tool, with its sentence templates. `required` has schemas by parameter; `optional` also has clauses."""

    name: str
    about: str
    sentences: tuple[str, ...]
    required: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    optional: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = field(default_factory=dict)


ACTIONS = (
    Action("halt", "Stop at once.", ("halt", "stop now", "stay where you are", "do not move")),
    Action("wait", "Do nothing for a while.", ("wait {seconds} seconds", "pause for {seconds} s", "rest {seconds} s"),
           {"seconds": range_of(1, 60)}),
    Action("go", "Drive to a place.", ("go to {place}", "drive to {place}", "head for {place}"), {"x": X, "y": Y}),
    Action("grip", "Take a thing in a hand.", ("grip the {thing} with the {hand} hand", "take the {thing}, {hand} hand",
                                               "{hand} hand: get the {thing}"),
           {"thing": enum_of(THINGS), "hand": enum_of(("left", "right"))},
           {"force": (range_of(10, 90, 10), ("at force {}", "force {}"))}),
    Action("carry", "Bring a thing to a place.", ("carry the {thing} to {place}", "bring {place} the {thing}",
                                                  "take the {thing} over to {place}"),
           {"thing": enum_of(THINGS), "x": X, "y": Y},
           {"care": (enum_of(("gentle", "normal", "rough")), ("be {}", "in a {} way")),
            "speed": (range_of(1, 9), ("at speed {}", "speed {}"))}),
    Action("paint", "Paint a thing.", ("paint the {thing} {colour}", "make the {thing} {colour}",
                                       "{colour} paint for the {thing}"),
           {"thing": enum_of(THINGS), "colour": enum_of(COLOURS)},
           {"coats": (range_of(1, 5), ("with {} coats", "{} coats")),
            "gloss": (range_of(10, 90, 10), ("gloss {}", "{} gloss")),
            "hours": (range_of(1, 12), ("dry it {} hours", "let it dry {} h")),
            "room": (enum_of(("north", "south", "yard")), ("in the {} room", "room {}"))}),
    Action("label", "Print a label.", ('print "{text}" in {colour}', 'a {colour} label "{text}"',
                                       'label it "{text}", {colour}'),
           {"text": TEXT, "colour": enum_of(COLOURS)},
           {"copies": (range_of(1, 20), ("{} copies", "{} times")), "width": (range_of(10, 90, 10), ("{} mm wide",)),
            "size": (enum_of(SIZES), ("in {}", "size {}")), "tray": (range_of(1, 4), ("from tray {}", "tray {}"))}),
)  # fmt: skip


def tool_definitions() -> list[dict[str, Any]]:
    """Return the definitions of all tools, as dicts with name, description and parameters."""
    definitions = []
    for action in ACTIONS:
        schemas = {**action.required, **{name: schema for name, (schema, _) in action.optional.items()}}
        parameters = {"type": "object", "properties": schemas, "required": list(action.required)}
        definitions.append({"name": action.name, "description": action.about, "parameters": parameters})
    return definitions


def random_rows(seed: int, held_out: bool = False) -> Iterator[Row]:
    """Yield an endless sequence of random rows, always the same for the same arguments. With `held_out`, clauses have
    orders that do not occur in training."""
    rng = Random(f"{seed} {held_out}")
    while True:
        count = rng.choices(range(7), [1.0] * 7)[0]
        fitting = [a for a in ACTIONS if len(a.required) <= count <= len(a.required) + len(a.optional)]
        yield _random_row(rng, rng.choice(fitting), count, held_out)


def _random_row(rng: Random, action: Action, count: int, held_out: bool) -> Row:
    dial = rng.randrange(10, 91, 10)
    values = {name: _random_value(rng, schema) for name, schema in action.required.items()}
    spoken = {**values, "place": f"{values.get('x')} {values.get('y')}"}
    sentence, extra = _random_sentence(rng, action, count - len(action.required), spoken, dial, held_out)
    call = Call(action.name, {**values, **dict(sorted(extra.items()))})
    observation = f"battery {rng.randint(5, 99)}; dial {dial}; {rng.choice(('quiet', 'busy', 'blocked'))}"
    return Row(sentence, observation, call)


def _random_sentence(
    rng: Random, action: Action, count: int, spoken: Mapping[str, Any], dial: int, held_out: bool
) -> tuple[str, dict[str, Any]]:
    """Return a random sentence with `count` clauses for optional arguments, and these arguments."""
    while True:
        chosen = rng.sample(list(action.optional), count)
        form = rng.randrange(len(action.sentences))
        key = f"{action.name} {form} {' '.join(chosen)}"
        # There are too few sentences with less than two clauses to hold some of them out.
        if len(chosen) < 2 or (zlib.crc32(key.encode()) % 4 == 0) == held_out:
            break
    extra = {name: _random_value(rng, action.optional[name][0]) for name in chosen}
    read = next((name for name in chosen if action.optional[name][0].get("multipleOf") and rng.random() < 0.5), None)
    if read is not None:
        extra[read] = dial
    texts = {name: DIAL if name == read else value for name, value in extra.items()}
    clauses = [rng.choice(action.optional[name][1]).format(value) for name, value in texts.items()]
    return ", ".join([action.sentences[form].format(**spoken), *clauses]), extra


def _random_value(rng: Random, schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema["type"] == "string":
        return " ".join(rng.sample(LABEL_WORDS, rng.randint(2, 4)))
    return rng.randrange(schema["minimum"], schema["maximum"] + 1, schema.get("multipleOf", 1))
