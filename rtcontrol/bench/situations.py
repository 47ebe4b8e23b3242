"""Create situations for benchmarks: instructions and observations of consecutive ticks of a scripted expert."""

from __future__ import annotations

import json
from importlib import resources
from itertools import cycle
from typing import Any, NamedTuple

from rtcontrol.envs import registry
from rtcontrol.envs.skill import StepAccumulator
from rtcontrol.models.errors import UserError

HZ = 16
TICKS = 40  # maximum number of ticks of an episode, which has only one instruction
FIRST_SEED = 3000


class Situation(NamedTuple):
    """An instruction, and the text of an observation."""

    instruction: str
    observation: str


def agent_for_model(model: str, agent: str | None = None) -> str:
    """Return the name of the agent for a benchmark of a model: `agent`, or the bundled agent of this model, or lander.
    Raises UserError if `agent` is unknown."""
    if agent not in (None, *registry.AGENTS):
        raise UserError(f"Unknown agent {agent!r}.", f"Choose {', '.join(registry.AGENTS)}.")
    return agent or (model if model in registry.AGENTS else "lander")


def situations(agent: str, count: int) -> list[Situation]:
    """Return `count` situations of consecutive ticks at 16 Hz, in episodes that the scripted expert plays. Each episode
    has the next of the agent's goals."""
    skill, result = registry.BY_AGENT[agent].skill(), list[Situation]()
    for episode, goal in enumerate(cycle(skill.goals)):
        world = skill.make()
        accumulator = StepAccumulator(world.step_s)
        world.judge_by(goal)
        world.reset(FIRST_SEED + episode)
        for _ in range(TICKS):
            if len(result) == count:
                return result
            observation = skill.observe(world.observe())
            result.append(Situation(goal.text(), observation))
            call = skill.expert(skill.parse_observation(observation), goal)
            world.bindings[call.name](**call.arguments)
            for _ in range(accumulator.steps(round(1e9 / HZ))):
                world.step()
            if world.outcome() is not None:
                break
    raise AssertionError("episodes never end")


def tool_lists(agent: str) -> dict[str, list[dict[str, Any]]]:
    """Return two lists of tools: `bundled` is the agent's list, and `long` is in `rtcontrol/bench/schemas/long.json`.

    The long tools have 20 function names and three enums. With the lander's tokenizer, the longest enum value has 8
    tokens, and the values differ from the 1st, 3rd or 6th token on."""
    text = resources.files("rtcontrol.bench").joinpath("schemas/long.json").read_text("utf-8")
    return {"bundled": registry.BY_AGENT[agent].controller().tools.openai(), "long": json.loads(text)}
