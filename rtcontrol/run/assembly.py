"""Build the parts of a run from their names: agent, environment, decider and host."""

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
from rtcontrol.hosts.backup import BackupRule
from rtcontrol.hosts.deciders import SCRIPTED, ExpertSource, NoopSource, RandomSource, STSource
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.layered import BackupHost, PlanHost
from rtcontrol.hosts.plans import PlanSettings
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

# Environments that `cli.app` starts, each with a sentence for `rtcontrol envs`.
JOINED: dict[str, str] = {
    "carla-bridge": "A car in a CARLA server, driven by the bundled bridge; or in the stand-in (carla.standin).",
    "gym:ID": "Any Gymnasium world: gym:CartPole-v1, gym:Pendulum-v1?levels=7&precision=1 (docs/your-own-game.md).",
    "remote": "One client of the wire, a robot or a game, that connects to serve.bind.",
}
# Requests to a first decider that is far away: at 16 Hz each tick is sent to one that answers within 250 ms.
IN_FLIGHT = 4
BELOW = 0.5  # a backup decides if any head of the first decider has less confidence than this


# -- agents and environments ------------------------------------------------------------------------------------------


def unknown(env: str) -> UserError:
    """Return the UserError for the name of an environment that does not exist."""
    known = ", ".join((*WORLDS, *sorted(JOINED)))
    return UserError(f"There is no environment called {env!r}.", f"Known ones: {known}, or a .py file.")


def agents() -> dict[str, Agent]:
    """Return the bundled agents by name."""
    return {name: world.controller() for name, world in BY_AGENT.items()}


def agent(name: str, env: str = "", thread: WorldThread | None = None) -> Agent:
    """Return a bundled agent, the agent of a Gymnasium world, or the agent of a user's Python file.

    The Gymnasium world `env` supplies what the file leaves out. That world is the one on the `thread`, or else a
    temporary one that is closed again. Raises UserError.
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
    """Return the name of the agent that an environment is made for. Raises UserError if there is none."""
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

    A user's world is created on the `thread`, unless the thread already has one. The world is created for the goals and
    tools of the agent `chosen`.
    """
    if not (name.endswith(".py") or is_gym(name)):
        if name not in WORLDS:
            raise unknown(name)
        return WORLDS[name].make()
    tools = [tool.name for tool in chosen.tools]
    if is_gym(name):
        gym_world(name, thread)  # creates the only instance, which supplies the names and tools
    world = thread.make(lambda: user_world(name, chosen.goals, tools=tools, world=thread.world))
    return PacedEnvironment(name if is_gym(name) else Path(name).stem, world, thread)


def gym_world(name: str, thread: WorldThread) -> GymWorld:
    """Return the Gymnasium world of the thread, and create it on that thread if needed.
    The module of the world is imported on the caller's thread."""
    from rtcontrol.envs.gym import GymWorld, load

    if thread.world is None:
        load(name)
    world: GymWorld = thread.world or thread.make(lambda: GymWorld(name))
    return world


def sample(config: RunConfig, env: Environment) -> Observation | None:
    """Return an observation for checks and warm-up before `env` starts; None if the environment has none yet.
    Raises UserError if the simulation fails when it is instructed and reset."""
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


# Expert policies of the environments, by the name of the agent whose tools they call.
EXPERTS: dict[str, Callable[[DecisionRequest], Call]] = {
    name: partial(_expert, world) for name, world in BY_AGENT.items()
}


def decider(config: RunConfig, chosen: Agent, model: str) -> DeciderSource:
    """Return the source of the run's decider. Raises UserError if the model or the engine does not exist."""
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
            raise UserError(f"The agent {chosen.name} has no scripted expert.", hint)
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
    """Return whether a decider reads the raw observation, which never leaves the process; only these make plans."""
    scripted = isinstance(source, ExpertSource) and isinstance(source.function, UserExpert)
    return scripted or isinstance(source, PolicySource)


# -- hosts ------------------------------------------------------------------------------------------------------------


def host(config: RunConfig, source: DeciderSource, model: str, chosen: Agent) -> Host:
    """Return the host that runs the decider; with a backup, a host for both. Raises UserError."""
    if config.backup is None:
        return planned(config, source, _place(config, source, model), chosen)
    backup_model = model_for(chosen.tools.schemas, config.backup)
    backup, local = decider(config, chosen, backup_model), isinstance(source, STSource)
    if not local or config.host == "inprocess":
        # A remote decider only waits and a script takes no time, so neither needs a process.
        return backed(config, source, _place(config, backup, backup_model), chosen)
    from rtcontrol.hosts.standby import two_hosts

    return BackupHost(*two_hosts(source, backup, config.pipeline), _handover(config, local))


def backed(config: RunConfig, source: DeciderSource, backup: Host, chosen: Agent) -> BackupHost:
    """Return a host that runs the first decider on threads of this process, and has the host `backup`."""
    terms = _handover(config, isinstance(source, STSource))
    first = planned(config, source, InProcessHost(source, terms.in_flight), chosen)
    return BackupHost(first, backup, terms)


def planned(config: RunConfig, source: DeciderSource, host: Host, chosen: Agent) -> Host:
    """Return the host, wrapped in one that executes plans if the decider's answers may be plans."""
    if not reads_data(source) or config.calls_per_tick > 1:
        return host

    def legal(call: Call) -> bool:
        try:
            chosen.tools.validate(call)
        except InvalidCall:
            return False
        return True

    terms = PlanSettings(config.max_age_ns, config.pipeline, config.clock == "lockstep")
    return PlanHost(host, terms, legal)


def _handover(config: RunConfig, local: bool) -> BackupRule:
    """Return the rule for when the backup decides; a `local` first decider handles one request at a time."""
    return BackupRule(BELOW, config.period_ns, config.pipeline if local else IN_FLIGHT)


def _place(config: RunConfig, source: DeciderSource, model: str) -> Host:
    if config.host == "inprocess" or reads_data(source):
        return InProcessHost(source, config.pipeline)
    from rtcontrol.hosts.standby import single_host, standby_host

    gpus = 0 if model in SCRIPTED or is_endpoint(model) else None
    return (standby_host if config.standby else single_host)(source, config.pipeline, gpus)
