"""Puts a run's parts together by their names: agent, environment, decider, host."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rtcontrol.agents
from rtcontrol.agents import Agent
from rtcontrol.config import RunConfig
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.hosts.base import DeciderSource, DecisionRequest, Host
from rtcontrol.hosts.deciders import PLAIN, ExpertSource, NoopSource, RandomSource, STSource
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError


def agents() -> dict[str, Agent]:
    """The bundled agents by name: every module of `rtcontrol.agents` that has an `agent`."""
    found = {}
    for module in pkgutil.iter_modules(rtcontrol.agents.__path__):
        agent = getattr(importlib.import_module(f"rtcontrol.agents.{module.name}"), "agent", None)
        if isinstance(agent, Agent):
            found[agent.name] = agent
    return dict(sorted(found.items()))


def agent(name: str) -> Agent:
    """A bundled agent, or the `agent` in a Python file of the user's. UserError where there is none."""
    if name.endswith(".py"):
        found = _load(name, "--agent").__dict__.get("agent")
        if not isinstance(found, Agent):
            raise UserError(f"{name} has no Agent called `agent`.", "Write `agent = Agent(...)` at its top level.")
        return found
    known = agents()
    if name not in known:
        raise UserError(f"There is no agent called {name!r}.", f"Known ones: {', '.join(known)}; or a .py file.")
    return known[name]


def environment(name: str, goal: str | None) -> Environment:
    """A bundled environment, or the one `Simulation` class in a Python file. UserError where there is none."""
    if name.endswith(".py"):
        from rtcontrol.envs.paced import PacedEnvironment

        if goal is not None:
            raise UserError("--goal is the lander's.", "Tell your own environment what to do with --instruct.")
        module = _load(name, "--env")
        classes: list[Any] = [
            c
            for c in vars(module).values()
            if inspect.isclass(c) and c.__module__ == module.__name__ and hasattr(c, "step_s") and hasattr(c, "outcome")
        ]
        if len(classes) != 1:
            raise UserError(
                f"{name} has {len(classes)} simulation classes.",
                "Write one class with step_s, reset, step, observe, outcome, bindings and instruct.",
            )
        return PacedEnvironment(Path(name).stem, classes[0]())
    from rtcontrol.envs import registry

    return registry.make(name, **({} if goal is None else {"goal": goal}))


def _load(name: str, option: str) -> Any:
    path = Path(name)
    if not path.is_file():
        raise UserError(f"{option} {name}: there is no such file.", "Give the path of a Python file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def default_agent(env: str) -> str:
    """The agent that an environment is made for."""
    from rtcontrol.envs import registry

    if env.endswith(".py"):
        raise UserError(f"The environment {env} names no agent.", "Give one with --agent NAME or --agent FILE.py.")
    entry = registry.known().get(env)
    if entry is None:
        raise UserError(
            f"There is no environment called {env!r}.", f"Known ones: {', '.join(registry.known())}; or a .py file."
        )
    return entry.agent


def goal_text(goal: str) -> str:
    """The canonical instruction of one of the lander's goals."""
    from rtcontrol.agents.lander_goal import recognise

    named = recognise(goal)
    return goal if named is None else named.text()


def _lander_expert(request: DecisionRequest) -> Call:
    from rtcontrol.envs.evaluate import expert_policy

    return expert_policy([(request.instruction, request.observation)])[0]


EXPERTS: dict[str, Callable[[DecisionRequest], Call]] = {"lander": _lander_expert}


def decider(config: RunConfig, chosen: Agent, model: str) -> DeciderSource:
    """The recipe of what decides. UserError for a model that is none."""
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tuple(chosen.tools.openai()), config.seed)
    if model == "expert":
        if config.env not in EXPERTS:
            raise UserError(f"The environment {config.env} has no scripted expert.", "Give another --model.")
        return ExpertSource(EXPERTS[config.env])
    from rtcontrol.models.checkpoint import resolve
    from rtcontrol.models.decider import DeciderSpec

    resolve(model)
    spec = DeciderSpec(
        model=model,
        engine=config.engine,
        tools=tuple(chosen.tools.openai()),
        allow_null=chosen.allow_null,
        history=chosen.history,
    )
    return STSource(spec)


def host(config: RunConfig, source: DeciderSource, model: str) -> Host:
    """Where it decides."""
    if config.host == "inprocess":
        from rtcontrol.hosts.inprocess import InProcessHost

        return InProcessHost(source, config.pipeline)
    from rtcontrol.hosts.ray_host import RayHost

    return RayHost(source, config.pipeline, gpus=0 if model in PLAIN else None)


def sample(config: RunConfig, goal: str | None) -> Observation | None:
    """One observation to warm up with, from a second, standing copy of the environment; None if it has none."""
    world = environment(config.env, goal)
    try:
        world.start("lockstep", config.seed, 1)
        return world.latest()
    finally:
        world.close()
