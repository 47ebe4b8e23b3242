"""What the benchmarks decide: instructions and observations of consecutive ticks, with an agent's expert acting."""

from __future__ import annotations

import json
from importlib import resources
from itertools import cycle
from typing import Any, NamedTuple

from rtcontrol.envs import registry
from rtcontrol.envs.skill import StepCarry
from rtcontrol.models.errors import UserError

HZ = 16
TICKS = 40  # of an episode, with one instruction
FIRST_SEED = 3000


class Situation(NamedTuple):
    """The instruction, and the observation's text."""

    instruction: str
    observation: str


def agent_of(model: str, agent: str | None = None) -> str:
    """Return the agent whose situations a model is measured in: the named one, else that of a bundled model, else the
    lander. Raises UserError."""
    if agent not in (None, *registry.AGENTS):
        raise UserError(f"Unknown agent {agent!r}.", f"Choose {', '.join(registry.AGENTS)}.")
    return agent or (model if model in registry.AGENTS else "lander")


def situations(agent: str, count: int) -> list[Situation]:
    """Return `count` consecutive ticks at 16 Hz of an agent's episodes, instructed its goals in turn; its scripted
    expert acts on the text."""
    skill, found = registry.BY_AGENT[agent].skill(), list[Situation]()
    for episode, goal in enumerate(cycle(skill.goals)):
        world = skill.make()
        carry = StepCarry(world.step_s)
        world.judge_by(goal)
        world.reset(FIRST_SEED + episode)
        for _ in range(TICKS):
            if len(found) == count:
                return found
            seen = skill.observe(world.observe())
            found.append(Situation(goal.text(), seen))
            call = skill.expert(skill.read_back(seen), goal)
            world.bindings[call.name](**call.arguments)
            for _ in range(carry.steps(round(1e9 / HZ))):
                world.step()
            if world.outcome() is not None:
                break
    raise AssertionError("episodes never end")


def schemas(agent: str) -> dict[str, list[dict[str, Any]]]:
    """`bundled`: the agent's own tools; `long`: 20 function names and three enums, the values of each branching at
    token depths 1, 3 and 6 of the lander's tokenizer (bottleneck head of 8 tokens), published as
    `rtcontrol/bench/schemas/long.json`."""
    text = resources.files("rtcontrol.bench").joinpath("schemas/long.json").read_text("utf-8")
    return {"bundled": registry.BY_AGENT[agent].controller().tools.openai(), "long": json.loads(text)}
