"""Puts a run's parts together by their names: agent, environment, decider, host."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import rtcontrol.agents
from rtcontrol.agents import Agent, Goal, Goals, InvalidCall
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.envs.registry import BY_AGENT, WORLDS, BundledWorld, skill
from rtcontrol.envs.thread import WorldThread
from rtcontrol.hosts.backup import BackupHost, Handover
from rtcontrol.hosts.deciders import PLAIN, ExpertSource, NoopSource, RandomSource, STSource
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.plans import PlanHost, PlanTerms
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.protocol import DeciderSource, DecisionRequest, Host
from rtcontrol.hosts.remote_api import EndpointSource, is_endpoint, is_policy
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.errors import UserError
from rtcontrol.run.model_compatibility import hysteresis_for, model_for
from rtcontrol.run.user_code import load_module, reason, remedy_of
from rtcontrol.run.user_module import UserExpert, holds_agent, is_gym, user_agent, user_world

if TYPE_CHECKING:
    from rtcontrol.envs.gym import GymWorld


# Name and one sentence, as `rtcontrol envs` and the error of an unknown name tell them; `cli.app` starts them.
JOINED: dict[str, str] = {
    "carla-bridge": "A car in a CARLA server, driven by the bundled bridge; or in the stand-in: --carla-standin.",
    "gym:ID": "Any Gymnasium world: gym:CartPole-v1, gym:Pendulum-v1?levels=7&precision=1 (docs/your-own-game.md).",
    "remote": "One client of the wire, a robot or a game, that connects to --bind.",
}


def names() -> list[str]:
    """All names that --env takes."""
    return [*WORLDS, *sorted(JOINED)]


def unknown(env: str) -> UserError:
    """The error of a name that is none of these."""
    return UserError(
        f"There is no environment called {env!r}.",
        f"Known ones: {', '.join(names())}, or a .py file.",
    )


# Requests to a first decider that is far away: at 16 Hz each tick is asked of one that answers within 250 ms.
IN_FLIGHT = 4
BELOW = 0.5  # a backup decides where the least sure head of the first decider is less sure


def agents() -> dict[str, Agent]:
    """The bundled agents by name: every module of `rtcontrol.agents` that has an `agent`."""
    found = {}
    for module in pkgutil.iter_modules(rtcontrol.agents.__path__):
        agent = getattr(importlib.import_module(f"rtcontrol.agents.{module.name}"), "agent", None)
        if isinstance(agent, Agent):
            found[agent.name] = agent
    return dict(sorted(found.items()))


def agent(name: str, env: str = "", thread: WorldThread | None = None) -> Agent:
    """A bundled agent, that of a Gymnasium world, or that of a Python file of the user's.

    What a file for the Gymnasium world `env` leaves out is that world's: the one of the `thread`, where there is one,
    else one that is made for its names alone, and closed. Raises UserError where there is none.
    """
    if name.endswith(".py"):
        return user_agent(name, agent(env, env=env, thread=thread) if is_gym(env) else None)
    if is_gym(name):
        with closing(WorldThread(name)) as other:
            return gym_world(name, thread if thread is not None and name == env else other).agent()
    known = agents()
    if name not in known:
        raise UserError(f"There is no agent called {name!r}.", f"Known ones: {', '.join(known)}; or a .py file.")
    return known[name]


def environment(
    name: str, goal: str | None, told: Agent | None = None, thread: WorldThread | None = None
) -> Environment:
    """A bundled environment, the one simulation class in a Python file, UserError where there
    is none. `goal` is what is judged; of a world of the user's it is one of those of the agent `told`, and it is made
    on the `thread` (None: one of its own), unless it is there already."""
    if name.endswith(".py") or is_gym(name):
        thread = thread or WorldThread(name)
        goals = None if told is None else told.goals
        tools = () if told is None else [tool.name for tool in told.tools]
        judged = None if goal is None else named_goal(goal, goals)
        try:
            if is_gym(name):
                gym_world(name, thread)  # the one instance, which names and tools are of
            world = thread.make(lambda: user_world(name, goals, tools=tools, made=thread.world))
            if judged is not None:
                thread.do(lambda: world.judge_by(judged))
        except BaseException:
            thread.close()
            raise
        return PacedEnvironment(name if is_gym(name) else Path(name).stem, world, thread)
    if name not in WORLDS:
        raise unknown(name)
    return WORLDS[name].make(goal)


def gym_world(name: str, thread: WorldThread) -> GymWorld:
    """The Gymnasium world of the thread, made there if it is not there yet; its module is imported here. UserError."""
    from rtcontrol.envs.gym import GymWorld, load

    if thread.world is None:
        load(name)
    world: GymWorld = thread.world or thread.make(lambda: GymWorld(name))
    return world


def named_goal(goal: str, goals: Goals | None) -> Goal:
    """The goal of the user's own that these words name. UserError where there is none."""
    if goals is None:
        raise UserError(
            "--goal is for worlds with goals: bundled ones, and those whose --agent FILE.py has `goals`.",
            "Tell your own environment what to do with --instruct.",
        )
    if (found := goals.recognise(goal)) is None:
        raise UserError(f"--goal {goal!r} is none of {goals.source}.", f"It has {goals.known()}.")
    return found


def default_agent(env: str) -> str:
    """The agent that an environment is made for."""
    if is_gym(env):
        return env
    if env.endswith(".py"):
        if holds_agent(load_module(env, "--env")):
            return env
        raise UserError(f"The environment {env} names no agent.", "Give one with --agent NAME or --agent FILE.py.")
    if env not in WORLDS:
        raise unknown(env)
    return WORLDS[env].agent


def goal_text(goal: str, env: str = "lander", goals: Goals | None = None) -> str:
    """The canonical instruction of one of the environment's goals, or of the user's own `goals`; `goal` itself where it
    names none."""
    known = goals or skill(env)
    named = None if known is None else known.recognise(goal)
    return goal if named is None else str(named.text())


def _expert(world: BundledWorld, request: DecisionRequest) -> Call:
    return world.skill().expert_policy([(request.instruction, request.observation)])[0]


# By the agent whose tools the expert of an environment calls.
EXPERTS: dict[str, Callable[[DecisionRequest], Call]] = {
    agent: partial(_expert, world) for agent, world in BY_AGENT.items()
}


def decider(config: RunConfig, chosen: Agent, model: str) -> DeciderSource:
    """The recipe of what decides. UserError for a model or an engine that is none."""
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.models.runners import registry

    registry.check(config.engine)
    registry.check_options(config.engine, config.dtype, None, config.threads)
    hysteresis = hysteresis_for(config.hysteresis, model)
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tuple(chosen.tools.openai()), config.seed)
    if model == "expert":
        if chosen.expert is not None:
            return ExpertSource(UserExpert(chosen, config.period_ns))
        if chosen.name not in EXPERTS and config.env not in EXPERTS:
            remedy = "Give another --model, or the agent's file with `goals` and `expert`: --agent FILE.py."
            raise UserError(f"No scripted expert of the agent {chosen.name} is known here.", remedy)
        return ExpertSource(EXPERTS.get(chosen.name) or EXPERTS[config.env])
    waits = config.clock == "lockstep"
    if is_policy(model):
        return PolicySource.parse(model, chosen.tools.openai(), config.period_ns, waits)
    if is_endpoint(model):
        return EndpointSource.parse(model, chosen.tools.openai(), chosen.allow_null, late=waits)
    resolve(model)
    spec = DeciderSpec(
        model=model,
        engine=config.engine,
        dtype=config.dtype,
        threads=config.threads,
        tools=tuple(chosen.tools.openai()),
        allow_null=chosen.allow_null,
        history=chosen.history,
        hysteresis=hysteresis,
    )
    return STSource(spec)


def reads_data(source: DeciderSource) -> bool:
    """Whether it decides by the raw observation, which never leaves the process."""
    scripted = isinstance(source, ExpertSource) and isinstance(source.function, UserExpert)
    return scripted or isinstance(source, PolicySource)


makes_plans = reads_data  # only these answer by several calls, one for each step


def host(config: RunConfig, source: DeciderSource, model: str, chosen: Agent | None = None) -> Host:
    """Where it decides; where there is a backup, that of the agent `chosen`."""
    if config.backup is None or chosen is None:
        return planned(config, source, _place(config, source, model), chosen)
    if is_endpoint(config.backup):
        raise UserError(
            f"--backup {config.backup} is an endpoint: it may be as late as any.", "Give a model of this machine's."
        )
    named = model_for(chosen.tools.schemas, config.backup)
    spare, local = decider(config, chosen, named), isinstance(source, STSource)
    if not local or config.host == "inprocess":
        # Whoever is far away only waits, and a script takes no time: no process is needed for that.
        return backed(config, source, _place(config, spare, named), chosen)
    if config.standby:
        raise UserError(
            "--standby is for one local model, and here are two: where --model is lost, --backup decides at once.",
            "Leave one of them out.",
        )
    from rtcontrol.hosts.standby import two_hosts

    return BackupHost(*two_hosts(source, spare, config.pipeline), handover(config, local))


def backed(config: RunConfig, source: DeciderSource, backup: Host, chosen: Agent) -> BackupHost:
    """A first decider on threads of this process, and its backup."""
    terms = handover(config, isinstance(source, STSource))
    first = planned(config, source, InProcessHost(source, terms.in_flight), chosen)
    return BackupHost(first, backup, terms)


def planned(config: RunConfig, source: DeciderSource, host: Host, chosen: Agent | None) -> Host:
    """The host; where its answers may be plans, one that executes them."""
    if not makes_plans(source) or config.calls_per_tick > 1 or chosen is None:
        return host

    def legal(call: Call) -> bool:
        try:
            chosen.tools.validate(call)
        except InvalidCall:
            return False
        return True

    terms = PlanTerms(config.max_age_ns, config.pipeline, config.clock == "lockstep")
    return PlanHost(host, terms, legal)


def handover(config: RunConfig, local: bool) -> Handover:
    """When the backup decides, as the run's settings say; `local`: the first one's requests hold each other up."""
    return Handover(BELOW, config.period_ns, config.pipeline if local else IN_FLIGHT)


def _place(config: RunConfig, source: DeciderSource, model: str) -> Host:
    if config.host == "inprocess" or reads_data(source):
        return InProcessHost(source, config.pipeline)
    gpus = 0 if model in PLAIN or is_endpoint(model) else None
    if config.standby:
        from rtcontrol.hosts.standby import standby_host

        return standby_host(source, config.pipeline, gpus)
    from rtcontrol.hosts.standby import single_host

    return single_host(source, config.pipeline, gpus)


def sample(config: RunConfig, env: Environment) -> Observation | None:
    """One observation to check and to warm up with, before `env` starts; None if it has none to show.

    UserError for a simulation that fails at once, when it is told what to do and reset.
    """
    preview = getattr(env, "preview", None)
    if preview is None:
        return None
    try:
        if config.instruction is not None:
            env.instruct(config.instruction)
        seen: Observation = preview(config.seed)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"The environment {env.name} fails at the start of its first episode ({reason(error)}).",
            remedy_of(error),
        ) from error
    return seen
