"""Put a run's parts together by their names: agent, environment, decider, host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rtcontrol.agents import Agent, InvalidCall
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.envs.registry import BY_AGENT, WORLDS, BundledWorld
from rtcontrol.envs.thread import WorldThread
from rtcontrol.hosts.backup import Handover
from rtcontrol.hosts.deciders import PLAIN, ExpertSource, NoopSource, RandomSource, STSource
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.layered import BackupHost, PlanHost
from rtcontrol.hosts.plans import PlanTerms
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.protocol import DeciderSource, DecisionRequest, Host
from rtcontrol.hosts.remote_api import EndpointSource, is_endpoint, is_policy
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.errors import UserError
from rtcontrol.run.model_compatibility import hysteresis_for, model_for
from rtcontrol.run.user_files import (
    CORRECT,
    UserExpert,
    holds_agent,
    is_gym,
    load_module,
    reason,
    user_agent,
    user_world,
)

if TYPE_CHECKING:
    from rtcontrol.envs.gym import GymWorld

# Name and one sentence; `cli.app` starts them.
JOINED: dict[str, str] = {
    "carla-bridge": "A car in a CARLA server, driven by the bundled bridge; or in the stand-in (carla.standin).",
    "gym:ID": "Any Gymnasium world: gym:CartPole-v1, gym:Pendulum-v1?levels=7&precision=1 (docs/your-own-game.md).",
    "remote": "One client of the wire, a robot or a game, that connects to serve.bind.",
}
# Requests to a first decider that is far away: at 16 Hz each tick is sent to one that answers within 250 ms.
IN_FLIGHT = 4
BELOW = 0.5  # a backup decides where the least sure head of the first decider is less sure


# -- agents and environments ------------------------------------------------------------------------------------------


def unknown(env: str) -> UserError:
    """Return the error of an environment that does not exist."""
    known = ", ".join((*WORLDS, *sorted(JOINED)))
    return UserError(f"There is no environment called {env!r}.", f"Known ones: {known}, or a .py file.")


def agents() -> dict[str, Agent]:
    """Return the bundled agents by name."""
    return {name: world.controller() for name, world in BY_AGENT.items()}


def agent(name: str, env: str = "", thread: WorldThread | None = None) -> Agent:
    """Return a bundled agent, that of a Gymnasium world, or that of a user's Python file.

    What a file for the Gymnasium world `env` leaves out is that world's: the one of the `thread`, else one that is made
    for this alone, and closed. Raises UserError.
    """
    if name.endswith(".py"):
        return user_agent(name, agent(env, env=env, thread=thread) if is_gym(env) else None)
    if is_gym(name):
        with closing(WorldThread(name)) as other:
            return gym_world(name, thread if thread is not None and name == env else other).agent()
    if name not in BY_AGENT:
        raise UserError(f"There is no agent called {name!r}.", f"Known ones: {', '.join(BY_AGENT)}; or a .py file.")
    return BY_AGENT[name].controller()


def default_agent(env: str) -> str:
    """Return the agent that an environment is made for. Raises UserError."""
    if is_gym(env):
        return env
    if env.endswith(".py"):
        if holds_agent(load_module(env, "--env")):
            return env
        raise UserError(f"The environment {env} names no agent.", "Give one with --agent NAME or --agent FILE.py.")
    if env not in WORLDS:
        raise unknown(env)
    return WORLDS[env].agent


def environment(name: str, chosen: Agent, thread: WorldThread) -> Environment:
    """Return a bundled environment, or the simulation of a Python file or of Gymnasium. Raises UserError.

    A user's world is made on the `thread`, unless it is there already, for the goals and tools of the agent `chosen`.
    """
    if not (name.endswith(".py") or is_gym(name)):
        if name not in WORLDS:
            raise unknown(name)
        return WORLDS[name].make()
    tools = [tool.name for tool in chosen.tools]
    if is_gym(name):
        gym_world(name, thread)  # the one instance, which names and tools are of
    world = thread.make(lambda: user_world(name, chosen.goals, tools=tools, world=thread.world))
    return PacedEnvironment(name if is_gym(name) else Path(name).stem, world, thread)


def gym_world(name: str, thread: WorldThread) -> GymWorld:
    """Return the Gymnasium world of the thread, made there if need be; its module is imported here."""
    from rtcontrol.envs.gym import GymWorld, load

    if thread.world is None:
        load(name)
    world: GymWorld = thread.world or thread.make(lambda: GymWorld(name))
    return world


def sample(config: RunConfig, env: Environment) -> Observation | None:
    """Return an observation to check and to warm up with, before `env` starts; None if it has none to show.

    Raises UserError for a simulation that fails at once, when it is instructed and reset.
    """
    preview = getattr(env, "preview", None)
    if preview is None:
        return None
    try:
        if config.instruction is not None:
            env.instruct(config.instruction)
        observation: Observation = preview(config.seed)
    except UserError:
        raise
    except Exception as error:
        problem = f"The environment {env.name} fails at the start of its first episode ({reason(error)})."
        raise UserError(problem, CORRECT) from error
    return observation


# -- deciders ---------------------------------------------------------------------------------------------------------


def _expert(world: BundledWorld, request: DecisionRequest) -> Call:
    return world.skill().expert_policy([(request.instruction, request.observation)])[0]


# By the agent whose tools the expert of an environment calls.
EXPERTS: dict[str, Callable[[DecisionRequest], Call]] = {
    name: partial(_expert, world) for name, world in BY_AGENT.items()
}


def decider(config: RunConfig, chosen: Agent, model: str) -> DeciderSource:
    """Return the recipe of what decides. Raises UserError for a model or an engine that does not exist."""
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.models.runners import registry

    registry.check(config.engine)
    registry.check_options(config.engine, config.dtype, None, config.threads)
    hysteresis = hysteresis_for(config.hysteresis, model)
    tools, waits = chosen.tools.openai(), config.clock == "lockstep"
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tuple(tools), config.seed)
    if model == "expert":
        if chosen.expert is not None:
            return ExpertSource(UserExpert(chosen, config.period_ns))
        if (expert := EXPERTS.get(chosen.name) or EXPERTS.get(config.env)) is None:
            hint = "Give another --model, or the agent's file with `goals` and `expert`: --agent FILE.py."
            raise UserError(f"No scripted expert of the agent {chosen.name} is known here.", hint)
        return ExpertSource(expert)
    if is_policy(model):
        return PolicySource.parse(model, tools, config.period_ns, waits)
    if is_endpoint(model):
        return EndpointSource.parse(model, tools, chosen.allow_null, late=waits)
    resolve(model)
    spec = DeciderSpec(
        model=model,
        engine=config.engine,
        dtype=config.dtype,
        threads=config.threads,
        tools=tuple(tools),
        allow_null=chosen.allow_null,
        history=chosen.history,
        hysteresis=hysteresis,
    )
    return STSource(spec)


def reads_data(source: DeciderSource) -> bool:
    """Return whether it decides by the raw observation, which never leaves the process; only such make plans."""
    scripted = isinstance(source, ExpertSource) and isinstance(source.function, UserExpert)
    return scripted or isinstance(source, PolicySource)


# -- hosts ------------------------------------------------------------------------------------------------------------


def host(config: RunConfig, source: DeciderSource, model: str, chosen: Agent) -> Host:
    """Return where it decides; with a backup, that of the agent `chosen`. Raises UserError."""
    if config.backup is None:
        return planned(config, source, _place(config, source, model), chosen)
    backup_model = model_for(chosen.tools.schemas, config.backup)
    backup, local = decider(config, chosen, backup_model), isinstance(source, STSource)
    if not local or config.host == "inprocess":
        # A decider that is far away only waits, and a script takes no time: no process is needed for that.
        return backed(config, source, _place(config, backup, backup_model), chosen)
    from rtcontrol.hosts.standby import two_hosts

    return BackupHost(*two_hosts(source, backup, config.pipeline), _handover(config, local))


def backed(config: RunConfig, source: DeciderSource, backup: Host, chosen: Agent) -> BackupHost:
    """Return a first decider on threads of this process, with its backup."""
    terms = _handover(config, isinstance(source, STSource))
    first = planned(config, source, InProcessHost(source, terms.in_flight), chosen)
    return BackupHost(first, backup, terms)


def planned(config: RunConfig, source: DeciderSource, host: Host, chosen: Agent) -> Host:
    """Return the host; where its answers may be plans, one that executes them."""
    if not reads_data(source) or config.calls_per_tick > 1:
        return host

    def legal(call: Call) -> bool:
        try:
            chosen.tools.validate(call)
        except InvalidCall:
            return False
        return True

    terms = PlanTerms(config.max_age_ns, config.pipeline, config.clock == "lockstep")
    return PlanHost(host, terms, legal)


def _handover(config: RunConfig, local: bool) -> Handover:
    """Return when the backup decides; requests to a `local` first decider hold each other up."""
    return Handover(BELOW, config.period_ns, config.pipeline if local else IN_FLIGHT)


def _place(config: RunConfig, source: DeciderSource, model: str) -> Host:
    if config.host == "inprocess" or reads_data(source):
        return InProcessHost(source, config.pipeline)
    from rtcontrol.hosts.standby import single_host, standby_host

    gpus = 0 if model in PLAIN or is_endpoint(model) else None
    return (standby_host if config.standby else single_host)(source, config.pipeline, gpus)
