"""Build interpreters, each of which maps a person's instructions to goals of an agent by a checkpoint or chat model."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent, Goals
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.registry import BY_AGENT
from rtcontrol.hosts.deciders import SCRIPTED, STSource
from rtcontrol.hosts.protocol import DeciderSource
from rtcontrol.hosts.remote_api import CHAT, EndpointSource, is_chat, is_endpoint
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.interpreter import GATE, LIMIT_S, Interpreter
from rtcontrol.models.errors import UserError
from rtcontrol.run.model_compatibility import gate_of


def goal_tools(agent: Agent) -> GoalTools | None:
    """Return the agent's goals as tools that an interpreter can call, or None if the agent has no goals."""
    if isinstance(agent.goals, Goals):
        return agent.goals.goal_tools(agent.name)
    world = BY_AGENT.get(agent.name)
    if world is None or world.controller().tools.openai() != agent.tools.openai():
        return None  # a user's agent with the name of a bundled agent
    return world.phrasings().goal_tools


def required_goal_tools(agent: Agent) -> GoalTools:
    """Return the agent's goals as tools that an interpreter can call. Raises UserError if the agent has no goals."""
    if (goals := goal_tools(agent)) is None:
        raise UserError(
            f"loop.interpreter needs goals, but the agent {agent.name} has no goals.",
            "Write `goals = {...}` in its file (docs/your-own-game.md), or do not set loop.interpreter.",
        )
    return goals


def interpreter_of_goals(name: str, goals: GoalTools, limit_s: float = LIMIT_S, engine: str = "torch") -> Interpreter:
    """Return an interpreter that maps instructions to these goals; the caller starts it. Raises UserError if `name` is
    neither a checkpoint nor a chat endpoint."""
    source = _decider_source(name, goals.definitions, engine)
    gate = gate_of(name, goals.tools.schemas) if isinstance(source, STSource) else None
    return Interpreter(display_name(name), goals, source, GATE if gate is None else gate, limit_s)


def interpreter_of_config(config: RunConfig, agent: Agent) -> Interpreter | None:
    """Return the interpreter that the setting loop.interpreter names, or None if it is not set. Raises UserError."""
    if config.interpreter is None:
        return None
    return interpreter_of_goals(config.interpreter, required_goal_tools(agent), engine=config.engine)


def check_interpreter(name: str, engine: str = "torch") -> None:
    """Raise UserError if `name` is neither a checkpoint nor a chat endpoint."""
    _decider_source(name, ({"name": "look"},), engine)


def display_name(name: str) -> str:
    """Return a short name of an interpreter, for display and records. For an endpoint: its model, or its address."""
    if not is_chat(name):
        return Path(name).name
    url, _, model = name.removeprefix(f"{CHAT}:").partition("#")
    return f"{CHAT}:{model or url}"


def _decider_source(name: str, tools: tuple[Mapping[str, Any], ...], engine: str) -> DeciderSource:
    listed = [dict(tool) for tool in tools]
    if is_chat(name):
        return EndpointSource.parse(name, listed, allow_null=True)
    if name in SCRIPTED or is_endpoint(name) or name.partition(":")[0] == "openai":
        hint = f"Give a checkpoint, or {CHAT}:URL#NAME."
        raise UserError(f"loop.interpreter={name} cannot interpret instructions.", hint)
    from rtcontrol.models.checkpoint.checkpoint import resolve
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.models.runners import registry

    registry.check_engine(engine)
    resolve(name)
    return STSource(DeciderSpec(name, tuple(listed), engine, threads=1, allow_null=True, history=0), patient=True)


class Interpreters:
    """The interpreters of a server. Sessions with the same agent share an interpreter."""

    def __init__(self, name: str | None, engine: str) -> None:
        self._name, self._engine = name, engine
        self._by_agent: dict[str, Interpreter] = {}
        self._lock = threading.Lock()

    def for_agent(self, agent: Agent) -> Interpreter | None:
        """Return the agent's interpreter, or None if the agent has no goals or the server has no interpreter."""
        if self._name is None or (goals := goal_tools(agent)) is None:
            return None
        with self._lock:
            if agent.name not in self._by_agent:
                self._by_agent[agent.name] = interpreter_of_goals(self._name, goals, engine=self._engine)
            return self._by_agent[agent.name]
