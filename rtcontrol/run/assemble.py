"""Puts a run's parts together by their names: agent, environment, decider, host."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import rtcontrol.agents
from rtcontrol.agents import Agent
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.hosts.backup import BackupHost
from rtcontrol.hosts.base import DeciderSource, DecisionRequest, Host
from rtcontrol.hosts.deciders import PLAIN, ExpertSource, NoopSource, RandomSource, STSource
from rtcontrol.hosts.endpoint import EndpointSource, is_endpoint
from rtcontrol.hosts.first import Handover
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.record.pictures import Pictures
from rtcontrol.run import worlds
from rtcontrol.run.recording import recording

METHODS = ("reset", "step", "observe", "outcome", "instruct")
VALUES = ("step_s", "bindings")
# Requests to a first decider that is far away: at 16 Hz each tick is asked of one that answers within 250 ms.
IN_FLIGHT = 4
RECORDED = ".mcap"
_loaded: dict[Path, ModuleType] = {}


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
    if name.endswith(RECORDED):
        return recording(Path(name)).agent()
    if name.endswith(".py"):
        found = vars(load_module(name, "--agent")).get("agent")
        if not isinstance(found, Agent):
            raise UserError(f"{name} has no Agent called `agent`.", "Write `agent = Agent(...)` at its top level.")
        return found
    known = agents()
    if name not in known:
        raise UserError(f"There is no agent called {name!r}.", f"Known ones: {', '.join(known)}; or a .py file.")
    return known[name]


def environment(name: str, goal: str | None) -> Environment:
    """A bundled environment, the one `Simulation` class in a Python file, or what was recorded. UserError where there
    is none."""
    if name.endswith(RECORDED):
        if goal is not None:
            raise UserError("--goal is for bundled environments: nobody judges a recording.", "Leave it out.")
        return recording(Path(name)).world()
    if name.endswith(".py"):
        from rtcontrol.envs.paced import PacedEnvironment

        if goal is not None:
            raise UserError(
                "--goal is for bundled environments.", "Tell your own environment what to do with --instruct."
            )
        return PacedEnvironment(Path(name).stem, _simulation(name))
    from rtcontrol.envs import registry

    if name not in registry.known():
        raise worlds.unknown(name)
    return registry.make(name, **({} if goal is None else {"goal": goal}))


def _simulation(name: str) -> Any:
    """The one simulation of a Python file, made and looked over."""
    module = load_module(name, "--env")
    classes: list[Any] = [
        c
        for c in vars(module).values()
        if inspect.isclass(c) and c.__module__ == module.__name__ and hasattr(c, "step_s") and hasattr(c, "outcome")
    ]
    remedy = f"Write one class with {', '.join((*VALUES, *METHODS))}."
    if len(classes) != 1:
        raise UserError(f"{name} has {len(classes)} simulation classes (with step_s and outcome).", remedy)
    title = f"{name}: the simulation {classes[0].__name__}"
    try:
        made = classes[0]()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{title} cannot be made ({_reason(error)}).", "It is called without arguments; correct its __init__."
        ) from error
    missing = [m for m in METHODS if not callable(getattr(made, m, None))] + [m for m in VALUES if not hasattr(made, m)]
    if missing:
        raise UserError(f"{title} has no {', '.join(missing)}.", remedy)
    step_s = made.step_s
    if isinstance(step_s, bool) or not isinstance(step_s, int | float) or not 1e-6 <= step_s <= 1e3:
        raise UserError(f"{title} has step_s = {step_s!r}.", "Give the seconds of one physics step, such as 0.02.")
    if not isinstance(made.bindings, Mapping) or not all(callable(f) for f in made.bindings.values()):
        raise UserError(f"{title}: its bindings are no functions by name.", 'Write {"tool": self.method, ...}.')
    return made


def load_module(name: str, option: str) -> ModuleType:
    """The module of a Python file: run once, however often it is named. UserError when it does not run."""
    path = Path(name).resolve()
    if not path.is_file():
        raise UserError(f"{option} {name}: there is no such file.", "Give the path of a Python file.")
    if path in _loaded:
        return _loaded[path]
    # A name of its own: a file called json.py must not stand in for the module of that name.
    title = f"rtcontrol_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        # Its neighbours can be imported, as when Python runs it.
        sys.path.insert(0, str(path.parent))
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[title]
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        raise UserError(
            f"{option} {name} cannot be loaded ({_reason(error)}).", f"Run `python {name}` to see where."
        ) from error
    _loaded[path] = module
    return module


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def default_agent(env: str) -> str:
    """The agent that an environment is made for."""
    from rtcontrol.envs import registry

    if env.endswith(RECORDED):
        return env
    if env.endswith(".py"):
        load_module(env, "--env")
        raise UserError(f"The environment {env} names no agent.", "Give one with --agent NAME or --agent FILE.py.")
    entry = registry.known().get(env)
    if entry is None:
        raise worlds.unknown(env)
    return entry.agent


def goal_text(goal: str, env: str = "lander") -> str:
    """The canonical instruction of one of the environment's goals; `goal` itself where it names none."""
    from rtcontrol.envs import registry

    skill = registry.skill(env)
    named = None if skill is None else skill.recognise(goal)
    return goal if named is None else str(named.text())


def _expert(name: str, request: DecisionRequest) -> Call:
    from rtcontrol.envs import registry

    skill = registry.skill(name)
    assert skill is not None, "only environments with a skill are listed"
    return skill.expert_policy([(request.instruction, request.observation)])[0]


# By the agent whose tools the expert of an environment calls.
EXPERTS: dict[str, Callable[[DecisionRequest], Call]] = {
    agent: partial(_expert, env) for agent, env in (("driver", "road"), ("lander", "lander"), ("paddle", "paddle"))
}


def decider(config: RunConfig, chosen: Agent, model: str) -> DeciderSource:
    """The recipe of what decides. UserError for a model or an engine that is none."""
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.models.engines import registry

    registry.check(config.engine)
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tuple(chosen.tools.openai()), config.seed)
    if model == "expert":
        if chosen.name not in EXPERTS and config.env not in EXPERTS:
            raise UserError(f"The environment {config.env} has no scripted expert.", "Give another --model.")
        return ExpertSource(EXPERTS.get(chosen.name) or EXPERTS[config.env])
    if is_endpoint(model):
        waits = config.late == "use" or config.clock == "lockstep"
        return EndpointSource.parse(model, chosen.tools.openai(), chosen.allow_null, late=waits)
    from rtcontrol.models.checkpoint import resolve

    resolve(model)
    spec = DeciderSpec(
        model=model,
        engine=config.engine,
        tools=tuple(chosen.tools.openai()),
        allow_null=chosen.allow_null,
        history=chosen.history,
        value_tokens=config.value_tokens,
        arguments=config.arguments,
    )
    return STSource(spec)


def host(config: RunConfig, source: DeciderSource, model: str, chosen: Agent | None = None) -> Host:
    """Where it decides; where there is a backup, that of the agent `chosen`."""
    if config.backup is None or chosen is None:
        return _place(config, source, model)
    from rtcontrol.run.trained import model_for

    if is_endpoint(config.backup):
        raise UserError(
            f"--backup {config.backup} is an endpoint: it may be as late as any.", "Give a model of this machine's."
        )
    named = model_for(chosen.tools.schemas, config.backup)
    spare, local = decider(config, chosen, named), isinstance(source, STSource)
    if not local or config.host == "inprocess":
        # Whoever is far away only waits, and a script takes no time: no process is needed for that.
        return backed(config, source, _place(config, spare, named))
    if config.standby:
        raise UserError(
            "--standby is for one local model, and here are two: where --model is lost, --backup decides at once.",
            "Leave one of them out.",
        )
    from rtcontrol.hosts.standby import two_hosts

    return BackupHost(*two_hosts(source, spare, config.first_in_flight or config.pipeline), handover(config, local))


def backed(config: RunConfig, source: DeciderSource, backup: Host) -> BackupHost:
    """A first decider on threads of this process, and its backup."""
    terms = handover(config, isinstance(source, STSource))
    return BackupHost(InProcessHost(source, terms.in_flight), backup, terms)


def handover(config: RunConfig, local: bool) -> Handover:
    """When the backup decides, as the run's settings say; `local`: the first one's requests hold each other up."""
    after_ns = config.period_ns if config.backup_after_ms is None else round(config.backup_after_ms * 1e6)
    in_flight = config.first_in_flight or (config.pipeline if local else IN_FLIGHT)
    return Handover(config.backup_below, min(after_ns, config.max_age_ns), config.period_ns, in_flight)


def _place(config: RunConfig, source: DeciderSource, model: str) -> Host:
    if config.host == "inprocess":
        return InProcessHost(source, config.pipeline)
    gpus = 0 if model in PLAIN or is_endpoint(model) else None
    if config.standby:
        from rtcontrol.hosts.standby import standby_host

        return standby_host(source, config.pipeline, gpus)
    from rtcontrol.hosts.ray_pool import own_host

    return own_host(source, config.pipeline, gpus)


def pictures(config: RunConfig) -> Pictures | None:
    """What draws the record's pictures, None where none are wanted. UserError for a world that has none."""
    if not config.record_pictures:
        return None
    from rtcontrol.envs.pictures import painter, png

    if (paint := painter(config.env)) is None:
        raise UserError(f"--record-pictures: there are no pictures of {config.env}.", "Leave it out.")
    # Epochs count from 1, and each has the next seed.
    return Pictures(lambda epoch, data: png(paint(config.seed + epoch - 1, data)), config.record_pictures)


def sample(config: RunConfig, env: Environment) -> Observation | None:
    """One observation to check and to warm up with, before `env` starts; None if it has none to show.

    UserError for a simulation that fails at once.
    """
    preview = getattr(env, "preview", None)
    if preview is None:
        return None
    try:
        seen: Observation = preview(config.seed)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"The environment {env.name} fails at the start of its first episode ({_reason(error)}).",
            "Correct its reset and observe.",
        ) from error
    return seen
