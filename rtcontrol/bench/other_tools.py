"""How well a model that reads its tools flies the bundled worlds under other names and orders, and beside other tools.

python -c "from rtcontrol.bench.other_tools import table; table('base', 'lander', seeds=12)"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from rtcontrol.envs import registry
from rtcontrol.envs.evaluate import Case, Seat, play
from rtcontrol.envs.skill import Skill
from rtcontrol.evaluation.score_tables import share
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.training.base_worlds import RECIPES
from rtcontrol.training.tool_randomization import Dressed, dressed, plain

FIRST_SEED = 5000  # no recipe trains there, and no other table looks there
DRAWN = 3  # sets of tools of a way, each in its share of the episodes
TOGETHER = 16
# Synonyms (the share of the names), and how many tools more.
WAYS: Mapping[str, tuple[float, int]] = {
    "any order": (0.0, 0),
    "three tools more": (0.0, 3),
    "synonyms": (1.0, 0),
    "all of it": (1.0, 3),
}


def drawn(tools: Sequence[ToolSchema], way: str, number: int) -> Dressed:
    """One of the ways' sets of tools, always the same."""
    rng, (synonyms, more) = Random(f"{way}/{number}"), WAYS[way]
    while len((made := dressed(rng, tools, synonyms, more)).tools) < len(tools) + more:
        pass
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


def flown(model: str, env: str, made: Dressed, cases: Sequence[Case]) -> list[int]:
    """Which episodes succeed, at 16 Hz in lockstep; a call of a tool that is not the world's leaves the last one in
    force."""
    skill: Skill | None = registry.skill(env)
    assert skill is not None, "the worlds of the base have skills"
    spec = DeciderSpec(model, tuple(tool.to_openai() for tool in made.tools), history=0)
    decider: STDecider = spec.build()

    def decide(seats: Sequence[Seat]) -> list[Call | None]:
        decided = decider.decide_many([(seat.seen, seat.case.instruction) for seat in seats])
        return [None if one.call is None else undressed(made, one.call) for one in decided]

    return [int(bool(done.episode.success)) for done in play(skill, decide, cases, parallel=TOGETHER)]


def measured(model: str, env: str, seeds: int) -> Iterator[tuple[str, list[int]]]:
    """(way, successes) of all goals of the world, as many seeds each; first with its own tools as they are."""
    skill = registry.skill(env)
    assert skill is not None
    tools = RECIPES[env].agent.tools.schemas
    told = [Case(goal.text(), goal, FIRST_SEED + i) for i in range(seeds) for goal in skill.goals]
    yield "its own tools", flown(model, env, plain(tools), told)
    for way in WAYS:
        found: list[int] = []
        for number in range(DRAWN):
            found += flown(model, env, drawn(tools, way, number), told[number::DRAWN])
        yield way, found


def table(model: str, env: str, seeds: int = 12) -> None:
    """Print a line for each way."""
    for way, outcomes in measured(model, env, seeds):
        print(f"{env:8} {way:18} {share(outcomes)}", flush=True)
