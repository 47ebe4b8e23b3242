"""Who understands what is said to an agent: a local model in a process of its own, a chat model, or a decision API."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent, Goals
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs import registry
from rtcontrol.hosts.chat_api import CHAT, ChatSource
from rtcontrol.hosts.deciders import PLAIN, STSource
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.process import ProcessHost
from rtcontrol.hosts.protocol import DeciderSource, Host
from rtcontrol.hosts.remote_api import WIRES, EndpointSource, is_endpoint
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.interpreter import GATE, LIMIT_S, Interpreter
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import gate_of

AT_ONCE = 8  # requests to an endpoint
FORMS = f"a model, {CHAT}:URL#NAME, {' or '.join(f'{api}:URL#NAME' for api in WIRES)}"


def goal_tools(agent: Agent) -> GoalTools | None:
    """What the agent can be told, as tools; None where it has no goals."""
    if isinstance(agent.goals, Goals):
        return agent.goals.goal_tools(agent.name)
    world, bundled = registry.by_agent().get(agent.name), assembly.agents().get(agent.name)
    if world is None or bundled is None or bundled.tools.openai() != agent.tools.openai():
        return None  # of another's tools, whatever it is called
    return world.phrasings().goal_tools


def interpreter(name: str, agent: Agent, *options: Any, **named: Any) -> Interpreter:
    """`of_goals` for the agent's. UserError also where it has none."""
    return of_goals(name, goals_of(agent), *options, **named)


def goals_of(agent: Agent) -> GoalTools:
    """What the agent can be told, as tools. UserError where it has no goals."""
    if (goals := goal_tools(agent)) is None:
        raise UserError(
            f"--interpreter: the agent {agent.name} has no goals that words could be mapped to.",
            "Write `goals = {...}` in its file (docs/your-own-game.md), or leave --interpreter out.",
        )
    return goals


def of_goals(
    name: str,
    goals: GoalTools,
    gate: float | None = None,
    limit_s: float = LIMIT_S,
    engine: str = "torch",
    apart: bool = True,
    shared: bool = False,
) -> Interpreter:
    """Whoever is called so, for these goals; it is not started yet. A local model is asked in a process of its own,
    unless not `apart`; an endpoint several times at once. `shared` as the interpreter's. UserError for what is none."""
    source = _source(name, goals.definitions, engine)
    local = isinstance(source, STSource)
    make: Callable[[], Host] = partial(ProcessHost if local and apart else InProcessHost, source)
    least, most, note = gate_for(name, goals, gate), 1 if local else AT_ONCE, None
    if gate is not None and name.partition(":")[0] == CHAT:
        note = f"--interpreter-gate {gate:g} has no effect: {shown(name)} tells no probability"
    return Interpreter(shown(name), goals, make, least, limit_s, most, shared, note)


def of_config(config: RunConfig, agent: Agent) -> Interpreter | None:
    """Whoever a run's settings name; None: nobody. UserError."""
    if config.interpreter is None:
        return None
    return interpreter(config.interpreter, agent, config.interpreter_gate, config.interpreter_s, config.engine)


def check(name: str, engine: str = "torch") -> None:
    """UserError for what can interpret for nobody."""
    _source(name, ({"name": "look"},), engine)


def shown(name: str) -> str:
    """Who is asked, for people and for records: of an endpoint its model, where it is named, or its address."""
    api, _, rest = name.partition(":")
    if api not in (CHAT, *WIRES):
        return Path(name).name
    url, _, model = rest.partition("#")
    return f"{api}:{model or url}"


def gate_for(name: str, goals: GoalTools, gate: float | None) -> float:
    """The gate that is asked for, else the checkpoint's own for these tools, else the default."""
    if gate is not None:
        return gate
    own = None if name.partition(":")[0] == CHAT else gate_of(name, goals.tools.schemas)
    return GATE if own is None else own


def _source(name: str, tools: tuple[Mapping[str, Any], ...], engine: str) -> DeciderSource:
    listed = [dict(tool) for tool in tools]
    if name.partition(":")[0] == CHAT:
        return ChatSource.parse(name, listed, allow_null=True)
    if is_endpoint(name):
        return EndpointSource.parse(name, listed, allow_null=True)
    if name in PLAIN or name.partition(":")[0] == "openai":
        raise UserError(f"--interpreter {name} understands nothing.", f"Give {FORMS}.")
    from rtcontrol.models.checkpoint.checkpoint import resolve
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.models.runners import registry as engines

    engines.check(engine)
    resolve(name)
    # It runs behind everybody else: of two threads one would wait for a processor, and the other for it.
    return STSource(DeciderSpec(name, tuple(listed), engine, threads=1, allow_null=True, history=0), patient=True)


class Interpreters:
    """Those of a server's agents: one for each, made when it is first wanted, shared by its sessions."""

    def __init__(self, name: str | None, gate: float | None, limit_s: float, engine: str) -> None:
        self._name, self._gate, self._limit_s, self._engine = name, gate, limit_s, engine
        self._made: dict[str, Interpreter] = {}
        self._lock = threading.Lock()
        self._closed = False

    def start(self, agent: Agent, stopped: Callable[[], bool]) -> None:
        """Build that of the agent now: what a session would wait for. Raises UserError."""
        if (made := self.of(agent)) is not None:
            made.start(stopped)

    def of(self, agent: Agent) -> Interpreter | None:
        """None where there is none, or the agent has no goals. After the close it is one that has ended."""
        if self._name is None or goal_tools(agent) is None:
            return None
        with self._lock:
            if agent.name not in self._made:
                given = self._gate, self._limit_s, self._engine
                self._made[agent.name] = made = interpreter(self._name, agent, *given, shared=True)
                if self._closed:
                    made.end()
            return self._made[agent.name]

    def close(self) -> None:
        with self._lock:
            made, self._made, self._closed = list(self._made.values()), {}, True
        for one in made:
            one.end()
