"""What the benchmarks decide about: observation texts of consecutive ticks, recorded from the scripted expert."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from rtcontrol.agents.lander.goals import LanderGoal
from rtcontrol.agents.lander.tools import agent, observe
from rtcontrol.envs.lander.expert import expert
from rtcontrol.envs.lander.world import Lander
from rtcontrol.envs.stepping import StepCarry

HZ = 16
FIRST_SEED = 3000


def observations(count: int) -> list[str]:
    """`count` observation texts at 16 Hz of hovering flights, one after the other."""
    goal = LanderGoal("hover", 0.0, 0.7)
    texts: list[str] = []
    sim, carry = Lander(), StepCarry(Lander().step_s)
    seed = FIRST_SEED
    sim.reset(seed)
    while len(texts) < count:
        state = sim.observe()
        texts.append(observe(state))
        sim.engines(**expert(state, goal).arguments)
        for _ in range(carry.steps(round(1e9 / HZ))):
            sim.step()
        if sim.outcome() is not None or len(texts) % 200 == 0:
            seed += 1
            sim.reset(seed)
    return texts


def schemas() -> dict[str, list[dict[str, Any]]]:
    """`bundled`: the lander's tool; `long`: 20 function names and three enums, the values of each branching at token
    depths 1, 3 and 6 (bottleneck head of 8 tokens), published as `rtcontrol/bench/schemas/long.json`."""
    text = resources.files("rtcontrol.bench").joinpath("schemas/long.json").read_text("utf-8")
    return {"bundled": agent.tools.openai(), "long": json.loads(text)}
