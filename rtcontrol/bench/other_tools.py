"""How well a model flies the bundled worlds with tools of other names and orders, beside others, seen in other words.

python -c "from rtcontrol.bench.other_tools import table; table('base', 'lander', seeds=12)"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from rtcontrol.envs import registry
from rtcontrol.envs.evaluate import Case, Seat, play
from rtcontrol.envs.skill import Skill
from rtcontrol.evaluation.score_tables import share
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.models.train.tasks.schemas import arranged
from rtcontrol.training.base_worlds import RECIPES
from rtcontrol.training.tool_randomization import TAUGHT, Dressed, Synonyms, dressed, plain

FIRST_SEED = 5000  # no recipe trains there, and no other table looks there
DRAWN = 3  # sets of tools of a way, each in its share of the episodes
TOGETHER = 16
# Names that no recipe draws, and other words for what the worlds' observations call their fields.
NEVER_TAUGHT = Synonyms(
    {
        "engines": ("set_propulsion", "fire_rockets"),
        "move": ("drive_bat", "racket_velocity"),
        "set_speed": ("hold_velocity", "target_pace"),
        "change_lane": ("move_across", "swap_lane"),
        "follow": ("pursue", "keep_behind"),
        "brake": ("reduce_speed", "ease_off"),
        "turn": ("steer_at_crossing", "junction_choice"),
        "stop": ("come_to_rest", "cease_motion"),
    },
    {
        "main": ("upward_power", "lifting_engine"),
        "side": ("horizontal_power", "sideways_engine"),
        "velocity": ("pace", "movement"),
        "kmh": ("pace_kmh", "kilometres_per_hour"),
        "direction": ("towards", "which_side"),
        "gap": ("spacing", "metres_behind"),
        "level": ("intensity", "how_hard"),
        "at_next_junction": ("crossing", "then"),
    },
    {"straight": ("directly on",), "left": ("leftward",), "right": ("rightward",)},
)
FIELDS: Mapping[str, Mapping[str, str]] = {
    "lander": {
        "x": "east", "y": "height", "vx": "drift", "vy": "climb", "angle": "tilt", "spin": "turning", "legs": "feet",
    },
    "paddle": {
        "x": "across", "y": "down", "vx": "across_speed", "vy": "down_speed", "own": "mine", "ball": "below",
        "other": "theirs",
    },
    "road": {
        "speed": "pace", "limit": "allowed", "lane": "track", "shift": "moving", "ahead": "front", "behind": "back",
        "l": "port", "r": "starboard", "light": "signal", "junction": "crossing", "way": "route",
    },
}  # fmt: skip


# Tools that belong to none of the worlds.
STRANGERS = tuple(
    ToolSchema.from_openai(
        {"name": name, "description": told, "parameters": {"properties": asked, "required": [*asked]}}
    )
    for name, told, asked in (
        ("send_email", "Send an email.", {"to": {"type": "string"}, "body": {"type": "string"}}),
        ("set_flashlight", "Turn the flashlight on or off.", {"on": {"type": "boolean"}}),
        ("add_event", "Add an event to the calendar.", {"title": {"type": "string"}, "day": {"type": "string"}}),
        ("get_weather", "Tell the weather of a city.", {"city": {"type": "string"}}),
        ("play_song", "Play a song.", {"title": {"type": "string"}, "volume": {"enum": [10, 50, 100]}}),
        ("order_pizza", "Order a pizza.", {"size": {"enum": ["small", "large"]}}),
        ("take_screenshot", "Save what the screen shows.", {}),
        ("translate", "Translate a text.", {"text": {"type": "string"}, "to": {"enum": ["French", "German", "Thai"]}}),
    )
)


class Disguise(NamedTuple):
    """The share of the names that are synonyms, and whose; how many drawn tools more, or the strangers; and whether
    what is seen has other names too."""

    synonyms: float = 0.0
    more: int = 0
    known: Synonyms = TAUGHT
    strangers: bool = False
    fields: bool = False


WAYS: Mapping[str, Disguise] = {
    "any order": Disguise(),
    "three tools more": Disguise(more=3),
    "eight strangers more": Disguise(strangers=True),
    "synonyms": Disguise(1.0),
    "all of it": Disguise(1.0, 3),
    "names never taught": Disguise(1.0, known=NEVER_TAUGHT),
    "fields renamed": Disguise(fields=True),
    "all of that": Disguise(1.0, 0, NEVER_TAUGHT, strangers=True, fields=True),
}


def drawn(tools: Sequence[ToolSchema], way: str, number: int) -> Dressed:
    """One of the ways' sets of tools, always the same."""
    rng, asked = Random(f"{way}/{number}"), WAYS[way]
    while len((made := dressed(rng, tools, asked.synonyms, asked.more, asked.known)).tools) < len(tools) + asked.more:
        pass
    if asked.strangers:
        made = replace(made, tools=arranged(rng, [*made.tools, *STRANGERS]))
    return made


def undressed(made: Dressed, call: Call) -> Call | None:
    """The world's own call; None for a tool that is not the world's."""
    for own, (name, parameters) in made.names.items():
        if name == call.name:
            back = {
                written: (key, {new: old for old, new in words.items()}) for key, (written, words) in parameters.items()
            }
            found = [(back[written], value) for written, value in call.arguments.items()]
            return Call(own, {key: words.get(value, value) for (key, words), value in found})
    return None


def renamed(env: str, seen: str) -> str:
    """An observation's text with its fields under other names."""
    names = FIELDS[env]
    return re.sub(r"[a-z]+", lambda found: names.get(found[0], found[0]), seen)


def flown(model: str, env: str, made: Dressed, cases: Sequence[Case], fields: bool = False) -> list[int]:
    """Which episodes succeed, at 16 Hz in lockstep, seen with other names of its `fields` or as it is; a call of a tool
    that is not the world's leaves the last one in force."""
    skill: Skill | None = registry.skill(env)
    assert skill is not None, "the worlds of the base have skills"
    spec = DeciderSpec(model, tuple(tool.to_openai() for tool in made.tools), history=0)
    decider: STDecider = spec.build()

    def decide(seats: Sequence[Seat]) -> list[Call | None]:
        seen = [renamed(env, seat.seen) if fields else seat.seen for seat in seats]
        told = [seat.case.instruction for seat in seats]
        decided = decider.decide_many([*zip(seen, told, strict=True)])
        return [None if one.call is None else undressed(made, one.call) for one in decided]

    return [int(bool(done.episode.success)) for done in play(skill, decide, cases, parallel=TOGETHER)]


def measured(model: str, env: str, seeds: int) -> Iterator[tuple[str, list[int]]]:
    """(way, successes) of all goals of the world, as many seeds each; first with its own tools as they are."""
    skill = registry.skill(env)
    assert skill is not None
    tools = RECIPES[env].agent.tools.schemas
    told = [Case(goal.text(), goal, FIRST_SEED + i) for i in range(seeds) for goal in skill.goals]
    yield "its own tools", flown(model, env, plain(tools), told)
    for way, asked in WAYS.items():
        found: list[int] = []
        for number in range(DRAWN):
            found += flown(model, env, drawn(tools, way, number), told[number::DRAWN], asked.fields)
        yield way, found


def table(model: str, env: str, seeds: int = 12) -> None:
    """Print a line for each way."""
    for way, outcomes in measured(model, env, seeds):
        print(f"{env:8} {way:18} {share(outcomes)}", flush=True)
