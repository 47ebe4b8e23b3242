"""Tools under other names: what a base meets of every world, so that it reads a schema instead of knowing it by heart.

A tool, a parameter or a word keeps its meaning under its synonyms; their order is any, and tools may stand beside them
that nobody asks for.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from rtcontrol.models.call import Call
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.models.train.tasks import schemas
from rtcontrol.training.other_trades import a_stranger, parts_of


class Synonyms(NamedTuple):
    """Other names of the bundled worlds' tools, of their parameters, and of words; what is not here has no other."""

    tools: Mapping[str, Sequence[str]]
    parameters: Mapping[str, Sequence[str]]
    words: Mapping[str, Sequence[str]]


# What training may draw.
TOOLS = {
    "engines": ("thrusters", "thrust", "set_engines", "burn", "jets"),
    "move": ("move_paddle", "slide", "shift", "set_velocity", "steer"),
    "set_speed": ("drive_at", "cruise", "speed", "go_at"),
    "change_lane": ("switch_lane", "lane_change", "merge", "move_over"),
    "follow": ("keep_distance", "tail", "stay_behind", "trail"),
    "brake": ("slow_down", "decelerate", "apply_brakes"),
    "turn": ("take_turn", "choose_way", "route", "turn_off"),
    "stop": ("halt", "full_stop", "stand"),
}
PARAMETERS = {
    "main": ("main_engine", "up", "lift", "bottom", "vertical"),
    "side": ("side_engine", "lateral", "sideways", "sides"),
    "velocity": ("speed", "v", "rate", "steps"),
    "kmh": ("speed", "km_per_hour", "target_speed", "limit"),
    "direction": ("side", "to", "which", "lane_side"),
    "gap": ("distance", "metres", "headway", "gap_m"),
    "level": ("strength", "percent", "force", "amount"),
    "at_next_junction": ("direction", "way", "next_junction", "where"),
}
WORDS = {"straight": ("ahead", "onward", "forward"), "left": ("lefthand",), "right": ("righthand",)}
TAUGHT = Synonyms(TOOLS, PARAMETERS, WORDS)
DISTRACTING = 3
MANY = 10
STRANGERS = 0.7  # of the companions of a tool set that goes far
_FIELD = re.compile(r"(?:(?<=\d )|^)[a-z]+|[a-z]+(?= -?\d)")
_SOUNDS = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


class FieldNames:
    """An observation's fields under made-up names: the same ones for all that is seen of one way. A field is a word
    that begins the text, follows a number, or stands before one."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._names: dict[str, str] = {}

    def __call__(self, seen: str) -> str:
        words = set(seen.split())
        return _FIELD.sub(lambda found: self._name(found[0], words), seen)

    def _name(self, field: str, words: Container[str]) -> str:
        while field not in self._names:
            name = "".join(self._rng.choices(_SOUNDS, k=self._rng.randint(2, 3)))
            if name not in self._names.values() and name not in words:
                self._names[field] = name
        return self._names[field]


@dataclass(frozen=True)
class Dressed:
    """`tools` that stand for others; `call` writes a call of those in their names."""

    tools: tuple[ToolSchema, ...]
    names: Mapping[str, tuple[str, Mapping[str, tuple[str, Mapping[Any, Any]]]]]

    def call(self, call: Call) -> Call:
        """The same call, under these names."""
        name, parameters = self.names[call.name]
        arguments = {}
        for key, value in call.arguments.items():
            written, words = parameters[key]
            arguments[written] = words.get(value, value)
        tool = next(tool for tool in self.tools if tool.name == name)
        return Call(name, {p.name: arguments[p.name] for p in tool.parameters if p.name in arguments})


def dressed(
    rng: Random,
    tools: Sequence[ToolSchema],
    synonyms: float = 0.5,
    distracting: int = DISTRACTING,
    known: Synonyms = TAUGHT,
    strangers: float = 0.0,
) -> Dressed:
    """The tools and up to so many `distracting` ones in any order, of which so many are `strangers` (other_trades.py)
    and the others of a game's trade; their parameters and words in any order, each name one of its `synonyms`, of those
    `known`, so often."""
    made, names = [], {}
    for tool in tools:
        name = _another(rng, tool.name, known.tools, synonyms)
        properties: dict[str, Any] = {}
        written: dict[str, tuple[str, dict[Any, Any]]] = {}
        for parameter in rng.sample(tool.parameters, len(tool.parameters)):
            schema, words = _words(rng, parameter.schema, synonyms, known.words)
            other = _another(rng, parameter.name, known.parameters, synonyms)
            properties[other], written[parameter.name] = schema, (other, words)
        shape = {"type": "object", "properties": properties, "required": list(properties)}
        definition = {"name": name, "description": rng.choice((tool.description, "")), "parameters": shape}
        made.append(ToolSchema.from_openai(definition))
        names[tool.name] = name, written
    taken = {tool.name for tool in made}
    moving = {*schemas.VERBS["move"]}  # these may be asked for
    companions = rng.randint(0, distracting)
    strange = sum(rng.random() < strangers for _ in range(companions)) if strangers else 0
    avoided = meaningful(tools)
    for _ in range(strange):
        made.append(a_stranger(rng, avoided))
        taken.add(made[-1].name)
        avoided |= parts_of(made[-1].name)
    verbs = [verb for verb in schemas.verbs(rng, companions - strange) if verb not in taken | moving]
    for verb in verbs:
        way = {"way": schemas.words(rng, rng.choice(schemas.WAYS))} if rng.random() < 0.7 else {}
        made.append(schemas.a_tool(rng, verb, way)[0])
    return Dressed(schemas.arranged(rng, made), names)


def meaningful(tools: Sequence[ToolSchema]) -> set[str]:
    """The words of all names of these tools, their parameters and their listed values that training may draw."""
    asked = [parameter for tool in tools for parameter in tool.parameters]
    listed = [value for parameter in asked for value in parameter.schema.get("enum", ()) if isinstance(value, str)]
    own = {*(tool.name for tool in tools), *(parameter.name for parameter in asked), *listed}
    others = [name for table in TAUGHT for one, names in table.items() if one in own for name in names]
    return set().union(*(parts_of(name) for name in (*own, *others)))


def plain(tools: Sequence[ToolSchema]) -> Dressed:
    """The tools as they are."""
    return Dressed(tuple(tools), {t.name: (t.name, {p.name: (p.name, {}) for p in t.parameters}) for t in tools})


def _another(rng: Random, name: str, table: Mapping[str, Sequence[str]], synonyms: float) -> str:
    return rng.choice(table[name]) if name in table and rng.random() < synonyms else name


def _words(
    rng: Random, schema: Mapping[str, Any], synonyms: float, known: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], dict[Any, Any]]:
    """The schema with its words in any order, some by a synonym: which for which."""
    values = schema.get("enum")
    if values is None:
        return dict(schema), {}
    words = {value: _another(rng, value, known, synonyms) for value in values if value in known}
    listed = [words.get(value, value) for value in values]
    return {**schema, "enum": rng.sample(listed, len(listed))}, words
