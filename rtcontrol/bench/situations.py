"""What the benchmarks decide about: what an agent is told and sees at consecutive ticks, its expert acting."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

from rtcontrol.envs import registry
from rtcontrol.envs.skill import Skill, StepCarry
from rtcontrol.models.call import Call
from rtcontrol.models.decider import STDecider
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ABSENT

HZ = 16
TICKS = 40  # of an episode, told one thing
FIRST_SEED = 3000


class Situation(NamedTuple):
    """What is told, and the observation's text."""

    instruction: str
    observation: str


def agent_of(model: str, agent: str | None = None) -> str:
    """The agent whose situations a model is measured in: the one named, else a bundled model's own, else the lander.
    Raises UserError."""
    if agent not in (None, *registry.AGENTS):
        raise UserError(f"Unknown agent {agent!r}.", f"Choose {', '.join(registry.AGENTS)}.")
    return agent or (model if model in registry.AGENTS else "lander")


def situations(agent: str, count: int) -> list[Situation]:
    """`count` consecutive ticks at 16 Hz of an agent's own episodes: told in turn one of its goals as it is written
    and a phrasing of one that its model never saw; its scripted expert acts on the text."""
    skill, found = registry.BY_AGENT[agent].skill(), list[Situation]()
    for episode, (told, goal) in enumerate(_told(skill)):
        world = skill.make()
        carry = StepCarry(world.step_s)
        world.judge_by(goal)
        world.reset(FIRST_SEED + episode)
        for _ in range(TICKS):
            if len(found) == count:
                return found
            seen = skill.observe(world.observe())
            found.append(Situation(told, seen))
            call = skill.expert(skill.read_back(seen), goal)
            world.bindings[call.name](**call.arguments)
            for _ in range(carry.steps(round(1e9 / HZ))):
                world.step()
            if world.outcome() is not None:
                break
    raise AssertionError("episodes never end")


def _told(skill: Skill) -> Iterator[tuple[str, Any]]:
    turn = 0
    while True:
        goal = skill.goals[turn % len(skill.goals)]
        yield goal.text(), goal
        phrasings = skill.phrasings["held-out"](skill.kinds[turn % len(skill.kinds)])
        yield phrasings[turn // len(skill.kinds) % len(phrasings)]
        turn += 1


def schemas(agent: str) -> dict[str, list[dict[str, Any]]]:
    """`bundled`: the agent's own tools; `long`: 20 function names and three enums, the values of each branching at
    token depths 1, 3 and 6 of the lander's tokenizer (bottleneck head of 8 tokens), published as
    `rtcontrol/bench/schemas/long.json`."""
    text = resources.files("rtcontrol.bench").joinpath("schemas/long.json").read_text("utf-8")
    return {"bundled": registry.BY_AGENT[agent].controller().tools.openai(), "long": json.loads(text)}


Ids = tuple[int, ...]


class HeadCalls:
    """Typed calls from the token ids that were written for each head."""

    def __init__(self, decider: STDecider) -> None:
        plan, encode = decider.plan, decider.tokenizer.encode
        self._plan = plan
        self._tools = {tuple(encode(tool.name)): i for i, tool in enumerate(plan.tools)}
        self._values: list[list[dict[Ids, Any]]] = []
        for i, slots in enumerate(plan.slots):
            known: list[dict[Ids, Any]] = []
            for k, slot in enumerate(slots):
                values = {tuple(encode(plan.text(i, k, v))): v for v in slot.domain.values}
                known.append({**values, **dict.fromkeys([()] * len(slot.null), *slot.null)})
            self._values.append(known)

    def call(self, heads: Sequence[Ids]) -> Call | None:
        """Return the call of the function's head and the arguments'; None where the plan has no such call."""
        tool = self._tools.get(heads[0])
        if tool is None:
            return None
        arguments: dict[str, Any] = {}
        for slot, known, ids in zip(self._plan.slots[tool], self._values[tool], heads[1:], strict=False):
            if ids not in known:
                return None
            if known[ids] is not ABSENT:
                arguments |= slot.arguments(known[ids])
        return Call(self._plan.tools[tool].name, arguments)
