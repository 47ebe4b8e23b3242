"""Build the parts of a run from their names: agent, environment, decider and host."""

from __future__ import annotations

import difflib
import re
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
    defines_agent,
    error_text,
    is_gym,
    load_module,
    user_agent,
    user_world,
)

if TYPE_CHECKING:
    from rtcontrol.envs.gym import GymWorld

# Environments other than bundled worlds. By name: the description for `rtcontrol envs`.
OTHER_ENVIRONMENTS: dict[str, str] = {
    "carla-bridge": "A car in a CARLA server, driven by the bundled bridge; or in the stand-in (carla.standin).",
    "gym:ID": "Any Gymnasium world: gym:CartPole-v1, gym:Pendulum-v1?levels=7&precision=1 (docs/your-own-game.md).",
    "remote": "A client, such as a robot or a game, that connects to the address serve.bind (docs/clients.md).",
}
# Maximum concurrent requests to a remote first decider. At 16 Hz, 4 are enough for answers that take 250 ms.
CONCURRENT_REQUESTS = 4
BACKUP_CONFIDENCE = 0.5  # if the first decider has less confidence in a value, the backup decides


# -- agents and environments ------------------------------------------------------------------------------------------


def unknown_environment(env: str) -> UserError:
    """Return a UserError for an unknown environment name. Its hint lists the known names."""
    names = [*WORLDS, *sorted(OTHER_ENVIRONMENTS)]
    near = difflib.get_close_matches(env, names)
    similar = f"gym:{env}" if re.fullmatch(r"\S+-v\d+", env) else next(iter(near), None)
    hint = f"Known environments: {', '.join(names)}, or a .py file."
    return UserError(f"There is no environment called {env!r}.", f"Did you mean {similar}? {hint}" if similar else hint)


def bundled_agents() -> dict[str, Agent]:
    """Return the bundled agents by name."""
    return {name: world.controller() for name, world in BY_AGENT.items()}


def load_agent(name: str, env: str = "", thread: WorldThread | None = None) -> Agent:
    """Return a bundled agent, the agent of a Gymnasium world, or the agent of a user's Python file.

    If `env` is a Gymnasium world, it supplies the parts that the file does not define. For this, the world on `thread`
    is used if it has this name, or else a temporary world. Raises UserError.
    """
    if name.endswith(".py"):
        return user_agent(name, load_agent(env, env=env, thread=thread) if is_gym(env) else None)
    if is_gym(name):
        with closing(WorldThread(name)) as other:
            return gym_world(name, thread if thread is not None and name == env else other).agent()
    if name not in BY_AGENT:
        raise UserError(f"There is no agent called {name!r}.", f"Known agents: {', '.join(BY_AGENT)}; or a .py file.")
    return BY_AGENT[name].controller()


def default_agent(env: str) -> str:
    """Return the name of the default agent of an environment. Raises UserError if it has no default agent."""
    if is_gym(env):
        return env
    if env.endswith(".py"):
        if defines_agent(load_module(env, "--env")):
            return env
        raise UserError(
            f"The environment {env} defines no agent.", "Specify an agent by --agent NAME or --agent FILE.py."
        )
    if env not in WORLDS:
        raise unknown_environment(env)
    return WORLDS[env].agent


def make_environment(name: str, chosen: Agent, thread: WorldThread) -> Environment:
    """Return a bundled environment, or one with the world of a Python file or of Gymnasium. Raises UserError.

    A user's world is created on `thread`, for the goals and tools of the agent `chosen`, unless the thread has a world
    already.
    """
    if not (name.endswith(".py") or is_gym(name)):
        if name not in WORLDS:
            raise unknown_environment(name)
        return WORLDS[name].make()
    tools = [tool.name for tool in chosen.tools]
    if is_gym(name):
        gym_world(name, thread)  # create the world now; `user_world` below uses the same instance
    world = thread.create_world(lambda: user_world(name, chosen.goals, tools=tools, world=thread.world))
    return PacedEnvironment(name if is_gym(name) else Path(name).stem, world, thread)


def gym_world(name: str, thread: WorldThread, pictures: bool = False) -> GymWorld:
    """Return the Gymnasium world of a thread. If the thread has none, import the world's module on this thread, and
    create the world on `thread`. `pictures`: let it draw pictures for the live view, if it can."""
    from rtcontrol.envs.gym import GymWorld, load

    if thread.world is None:
        load(name)
    world: GymWorld = thread.world or thread.create_world(lambda: GymWorld(name, pictures))
    return world


def preview_observation(config: RunConfig, env: Environment) -> Observation | None:
    """Return an observation for checks and warm-up before `env` starts, or None if the environment has none yet. Raises
    UserError if the world fails when it receives its instruction or is reset."""
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
        problem = f"The environment {env.name} fails at the start of its first episode ({error_text(error)})."
        raise UserError(problem, CORRECT) from error
    return observation


# -- deciders ---------------------------------------------------------------------------------------------------------


def _expert_call(world: BundledWorld, request: DecisionRequest) -> Call:
    return world.skill().expert_policy([(request.instruction, request.observation)])[0]


# By agent name: the scripted expert of the agent's bundled world.
EXPERTS: dict[str, Callable[[DecisionRequest], Call]] = {
    name: partial(_expert_call, world) for name, world in BY_AGENT.items()
}


def decider_source(config: RunConfig, chosen: Agent, model: str) -> DeciderSource:
    """Return the source from which a host builds the decider. Raises UserError for an unknown model or engine."""
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.models.runners import registry

    registry.check_engine(config.engine)
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
            hint = "Use another --model, or an agent's file with `goals` and `expert`: --agent FILE.py."
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


def reads_raw_data(source: DeciderSource) -> bool:
    """Return whether a decider reads the raw observation, not its text. Only such deciders may return plans."""
    scripted = isinstance(source, ExpertSource) and isinstance(source.function, UserExpert)
    return scripted or isinstance(source, PolicySource)


# -- hosts ------------------------------------------------------------------------------------------------------------


def make_host(config: RunConfig, source: DeciderSource, model: str, chosen: Agent) -> Host:
    """Return the host of the decider or, if a backup is set, a host of both deciders. Raises UserError."""
    if config.backup is None:
        return with_plans(config, source, _single_host(config, source, model), chosen)
    backup_model = model_for(chosen.tools.schemas, config.backup)
    backup, local = decider_source(config, chosen, backup_model), isinstance(source, STSource)
    if not local or config.host == "inprocess":
        # The first decider needs no separate process: a remote decider only waits, and a script is fast.
        return with_backup(config, source, _single_host(config, backup, backup_model), chosen)
    from rtcontrol.hosts.standby import two_hosts

    return BackupHost(*two_hosts(source, backup, config.pipeline), _backup_rule(config, local))


def with_backup(config: RunConfig, source: DeciderSource, backup: Host, chosen: Agent) -> BackupHost:
    """Return a host that runs the first decider on threads of this process, and has the host `backup` as its backup."""
    rule = _backup_rule(config, isinstance(source, STSource))
    first = with_plans(config, source, InProcessHost(source, rule.in_flight), chosen)
    return BackupHost(first, backup, rule)


def with_plans(config: RunConfig, source: DeciderSource, host: Host, chosen: Agent) -> Host:
    """Wrap `host` in a PlanHost, which takes each tick's call from a plan, if the decider may return plans."""
    if not reads_raw_data(source) or config.calls_per_tick > 1:
        return host

    def is_legal(call: Call) -> bool:
        try:
            chosen.tools.validate(call)
        except InvalidCall:
            return False
        return True

    settings = PlanSettings(config.max_age_ns, config.pipeline, config.clock == "lockstep")
    return PlanHost(host, settings, is_legal)


def _backup_rule(config: RunConfig, local: bool) -> BackupRule:
    """Return the rule that says when the backup decides. A `local` first decider has fewer concurrent requests."""
    return BackupRule(BACKUP_CONFIDENCE, config.period_ns, config.pipeline if local else CONCURRENT_REQUESTS)


def _single_host(config: RunConfig, source: DeciderSource, model: str) -> Host:
    if config.host == "inprocess" or reads_raw_data(source):
        return InProcessHost(source, config.pipeline)
    from rtcontrol.hosts.standby import single_host, standby_host

    gpus = 0 if model in SCRIPTED or is_endpoint(model) else None
    return (standby_host if config.standby else single_host)(source, config.pipeline, gpus)
