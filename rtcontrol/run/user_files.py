"""A user's files: loaded once, as world, agent, goals and expert, and judged before anything runs."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pydantic
import yaml

from rtcontrol.agents import Agent, Fallback, Goal, Goals, InvalidCall, Tools
from rtcontrol.agents.signatures import check_called, defined, idle
from rtcontrol.agents.tool import Tool
from rtcontrol.envs.base import Observation
from rtcontrol.envs.thread import half_made, shut
from rtcontrol.envs.user_world import NEEDS, UserWorld
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop import errors
from rtcontrol.models.call import Call, Plan
from rtcontrol.models.errors import UserError, read_text

GOALS = ("goals", "placeholders", "words")  # tables of a file of goals
WORLD = ("reset", "step", "observe")  # a class with these methods is a world
CORRECT = "Correct it there, or use another version of the package that fails."
HISTORY = 6  # calls that an agent of nothing but tools shows
_loaded: dict[Path, ModuleType] = {}


def load_module(name: str, option: str) -> ModuleType:
    """Return the module of a Python file, which runs once, however often it is named. Raises UserError if it fails."""
    path = Path(name).resolve()
    if not path.is_file():
        raise UserError(f"{option} {name}: there is no such file.", "Give the path of a Python file.")
    if path in _loaded:
        return _loaded[path]
    # A unique name: a file called json.py must not stand in for the module of that name.
    title = f"rtcontrol_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # its neighbours can be imported; they hide no module
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[title]
        if isinstance(error, UserError) or not isinstance(error, Exception | SystemExit):
            raise
        raise UserError(f"{option} {name} cannot be loaded ({reason(error)}).", f"Run `python {name}`.") from error
    _loaded[path] = module
    return module


def reason(error: BaseException) -> str:
    """Return an error of the user's code as text, with the line of theirs that it comes from."""
    # Where nothing of theirs ran, as in a file that cannot be parsed, the text has the line.
    place = None if isinstance(error, SyntaxError) else errors.where(error)
    return errors.text(error) if place is None or place.startswith("<") else f"{errors.text(error)}, {place}"


def contents(files: Iterable[str | None]) -> dict[str, str]:
    """Return a digest of each of the files that are on this disk, by its name."""
    texts = {name: Path(name).read_bytes() for name in files if name is not None and Path(name).is_file()}
    return {name: hashlib.sha256(text).hexdigest()[:16] for name, text in texts.items()}


# -- worlds -----------------------------------------------------------------------------------------------------------


def is_gym(name: str) -> bool:
    """Return whether an environment is a Gymnasium world."""
    return name.startswith("gym:")


def user_world(
    name: str, goals: Goals | None, limit_s: float | None = None, tools: Collection[str] = (), world: Any = None
) -> UserWorld:
    """Return the simulation of a Python file, made from its one class, or a Gymnasium world (or the one given).

    `tools` are the names that the agent calls. What was started and cannot be used is closed. Raises UserError.
    """
    if is_gym(name):
        from rtcontrol.envs.gym import GymWorld

        return UserWorld(world or GymWorld(name), name, None, limit_s)
    kind = _world_class(name)
    title = f"{name}: the simulation {kind.__name__}"
    check_called({"__init__": (kind, ())})
    try:
        world = kind()
        return UserWorld(world, title, goals, limit_s, tools)
    except BaseException as error:
        started = half_made(error, lambda value: isinstance(value, kind)) if world is None else world
        with suppress(Exception):  # the message says why it cannot be used
            shut(started)
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        hint = "It is called without arguments; correct its __init__."
        raise UserError(f"{title} cannot be made ({reason(error)}).", hint) from error


def _world_class(name: str) -> type[Any]:
    """Return the one world of a file: a class that another one builds on is a part of it."""
    module = load_module(name, "--env")
    own = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    worlds = [c for c in own if all(callable(getattr(c, method, None)) for method in WORLD)]
    worlds = [c for c in worlds if not any(c in other.__mro__[1:] for other in worlds)]
    if len(worlds) != 1:
        raise UserError(f"{name} has {len(worlds)} simulation classes (with {', '.join(WORLD)}).", NEEDS)
    return worlds[0]


# -- agents -----------------------------------------------------------------------------------------------------------


def holds_agent(module: ModuleType) -> bool:
    """Return whether a file is (also) an agent's: it has an `agent`, tools or an expert."""
    parts = vars(module)
    return bool({"agent", "tools", "expert"} & set(parts)) or any(isinstance(value, Tool) for value in parts.values())


def user_tools(name: str) -> Tools:
    """Return the tools of a Python file: of its `agent`, its `tools`, or its decorated functions and pydantic models; a
    model that is a part of another one is not a tool. Raises UserError if there are none."""
    module = load_module(name, "FILE")
    if isinstance(agent := vars(module).get("agent"), Agent):
        return agent.tools
    tools = vars(module).get("tools")
    if isinstance(tools, Tools):
        return tools
    if not isinstance(tools, list | tuple):
        own = [v for key, v in vars(module).items() if _module(v) == module.__name__ and not key.startswith("_")]
        models = [v for v in own if isinstance(v, type) and issubclass(v, pydantic.BaseModel)]
        parts = {name for model in models for name in model.model_json_schema().get("$defs", {})}
        tools = [v for v in own if isinstance(v, Tool)] + [m for m in models if m.__name__ not in parts]
    if not tools:
        hint = (
            "Decorate functions with `rtcontrol.agents.tool`, or write `tools = [...]` of functions, dicts or models."
        )
        raise UserError(f"{name} has no tools.", hint)
    return Tools(list(tools))


def _module(value: Any) -> str:
    """Return where it was defined: what a file imports belongs to another."""
    return str(getattr(value.function if isinstance(value, Tool) else value, "__module__", ""))


def tools_only_agent(name: str, tools: Tools, instruction: str, fallback: Fallback) -> Agent:
    """Return an agent that reads observations as `render` words them, and names no model."""
    return Agent(name, "Tools that were given.", tools, render, instruction, fallback, model="", history=HISTORY)


def render(data: Mapping[str, Any]) -> str:
    """Return `key value` pairs in their order: `x 0.25 on true at 1 2`. Arrays are left out: they are for agents."""
    return " ".join(f"{key} {_worded(value)}" for key, value in data.items() if not isinstance(value, np.ndarray))


def _worded(value: Any) -> str:
    if isinstance(value, Mapping):
        return render(value)
    if isinstance(value, (list, tuple)):
        return " ".join(map(_worded, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


def user_agent(name: str, base: Agent | None = None) -> Agent:
    """Return the agent of a Python file: its `agent`, or one of its `tools`, `observe`, `fallback`, `instruction`,
    `history` and `model`; with its `goals` and `expert`. What the file leaves out is that of `base`. Raises UserError.
    """
    module = load_module(name, "--agent")
    agent = vars(module).get("agent")
    if agent is not None and not isinstance(agent, Agent):
        raise UserError(f"{name}: its `agent` is not an Agent.", "Write `agent = Agent(...)` at its top level.")
    goals = _goals(module, name) or getattr(agent, "goals", None) or getattr(base, "goals", None)
    expert = getattr(agent, "expert", None) or vars(module).get("expert")
    if expert is not None and goals is None:
        raise UserError(f"{name}: its expert has no goals.", 'Write goals = {"go to the {thing}": [...]}.')
    return replace(agent or _agent_of_parts(module, name, goals, base), goals=goals, expert=expert)


def _agent_of_parts(module: ModuleType, name: str, goals: Goals | None, base: Agent | None) -> Agent:
    parts = vars(module)
    if base is not None:
        parts = {key: getattr(base, key) for key in ("instruction", "fallback", "observe", "history")} | parts
    tools = base.tools if base is not None and "tools" not in parts else user_tools(name)
    instruction = parts.get("instruction") or (None if goals is None else next(iter(goals)).text())
    if not isinstance(instruction, str):
        raise UserError(f"{name} says nowhere what to do.", 'Write `instruction = "..."`, or `goals = {...}`.')
    fallback = parts.get("fallback", ())
    if not isinstance(fallback, Fallback):
        calls = fallback if isinstance(fallback, list | tuple) else [fallback]
        if not all(isinstance(call, Call) for call in calls):
            raise UserError(f"{name}: its `fallback` is not a call.", 'Write `fallback = Call("stop")`.')
        fallback = Fallback(calls=calls)
    description = (module.__doc__ or f"The agent of {name}.").strip().splitlines()[0]
    observe, history, model = parts.get("observe", render), parts.get("history", 0), parts.get("model", "")
    return Agent(Path(name).stem, description, tools, observe, instruction, fallback, model, history)


def _goals(module: ModuleType, name: str) -> Goals | None:
    goals = vars(module).get("goals")
    if isinstance(goals, str) and goals.endswith((".yaml", ".yml", ".json")):
        return user_goals(Path(name).parent / goals, f"{name}: its goals are those of")
    if goals is None or isinstance(goals, Goals):
        return goals
    return Goals(goals, vars(module).get("placeholders"), vars(module).get("words"), name)


def user_goals(file: Path, where: str) -> Goals:
    """Return the goals of a .yaml or .json file: a table `goals`, canonical words to other ways to say it, with tables
    `placeholders` and `words` where those need them. Raises UserError with the line."""
    hint = f"Give a table with {', '.join(GOALS)}, as in docs/your-own-game.md; put ways in quotes."
    try:
        tables = yaml.safe_load(read_text(file))  # reads JSON, too
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{where} {file}, which cannot be read ({' '.join(str(error).split())}).", hint) from None
    if not isinstance(tables, dict) or "goals" not in tables or (set(tables) - set(GOALS)):
        raise UserError(f"{file} has no table of goals, or unknown tables.", hint)
    return Goals(**tables, source=str(file))


# -- experts ----------------------------------------------------------------------------------------------------------


class ExpertError(Exception):
    """The user's expert raised, or gave no legal call; the message names file and line."""


@dataclass(frozen=True)
class UserExpert:
    """An agent's expert as a function of requests. A list of calls is a plan: one now, then one each `step_ns`.

    Raises UserError for words that name no goal; ExpertError where the expert raises or gives no legal call.
    """

    agent: Agent
    step_ns: int = 0

    def __call__(self, request: DecisionRequest) -> Call | Plan | None:
        goals, data = self.agent.goals, request.data
        assert goals is not None, "an agent with an expert has goals"
        goal = goals.recognise(request.instruction)
        if goal is None:
            problem = f"The expert of the agent {self.agent.name} does not know {request.instruction[:80]!r}."
            raise UserError(problem, f"Say a goal of {goals.source} in its words: {goals.known()}.")
        if not isinstance(data, Mapping):
            raise ExpertError("only the text of the observation is here, and the expert reads the observation itself")
        calls = self.calls(data, goal)
        if len(calls) > 1 and self.step_ns:
            return Plan(calls, self.step_ns)
        return calls[0] if calls else None

    def calls(self, data: Mapping[str, Any], goal: Goal) -> tuple[Call, ...]:
        """Return what it calls now and after; nothing where it gives no call, and may."""
        function: Callable[..., Any] = self.agent.expert  # type: ignore[assignment]
        try:
            value = function(data, goal)
        except Exception as error:
            raise ExpertError(f'told "{goal.text()}" it raised {reason(error)}') from error
        if value is None and self.agent.allow_null:
            return ()
        where = f'{defined(function)}: told "{goal.text()}" the expert gave'
        calls = tuple(value) if isinstance(value, list | tuple) and value else (value,)
        if odd := [call for call in calls if not isinstance(call, Call)]:
            raise ExpertError(f'{where} {odd[0]!r:.80}, no call: return Call("tool", {{"parameter": value}})')
        try:
            return tuple(map(self.agent.tools.validate, calls))
        except InvalidCall as error:
            raise ExpertError(f"{where} {', '.join(call.text() for call in calls)}: {error}") from None


def try_expert(agent: Agent, sample: Observation, instruction: str) -> None:
    """Ask an agent's expert once, before anything runs. Raises UserError where it gives no legal call."""
    if agent.expert is None:
        return
    try:
        UserExpert(agent)(DecisionRequest(0, 0, "", instruction, data=sample.data))
    except ExpertError as error:
        raise UserError(f"The expert of the agent {agent.name} fails: {error}.", "Correct it there.") from error


# -- agent and environment --------------------------------------------------------------------------------------------


def fit(agent: Agent, env: str, bindings: Mapping[str, Callable[..., Any]], sample: Observation | None) -> None:
    """Check that an agent and an environment belong together. Raises UserError for a tool that nothing executes, one
    that its executor does not take, or a `sample` that the agent cannot read."""
    for tool in agent.tools:
        where = f"Agent {agent.name}, tool {tool.name}, environment {env}"
        executor = bindings.get(tool.name)
        if executor is not None:
            _check_executor(where, executor, tool.schema.parameters)
        elif tool.elsewhere or _does_nothing(tool.function):
            lacks = "tool has no function" if tool.elsewhere else "tool's own function does nothing"
            problem = f"{where}: the environment has no binding of this name, and the {lacks}."
            has = ", ".join(bindings) or "none"
            raise UserError(problem, f"It has: {has}. Rename the tool, bind it, or write its body.")
    if sample is not None:
        check_observation(agent, env, sample.data)


def _check_executor(where: str, executor: Callable[..., Any], parameters: Any) -> None:
    if why := idle(executor):
        raise UserError(f"{where}: {defined(executor)}: the environment's function {why}.", "Write a plain `def`.")
    try:
        signature = inspect.signature(executor)
    except (TypeError, ValueError):
        return  # a function in C without one
    for names in ([p.name for p in parameters if p.required], [p.name for p in parameters]):
        try:
            signature.bind(**dict.fromkeys(names))
        except TypeError as error:
            problem = f"{where}: the environment's function does not take ({', '.join(names)}): {error}."
            hint = "Give tool and binding the same parameters; those that are optional need defaults in both."
            raise UserError(problem, hint) from None


def _does_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a function's body is empty but for its docstring."""
    code = getattr(function, "__code__", None)
    return code is not None and len(code.co_code) <= len((lambda: None).__code__.co_code)


def check_observation(agent: Agent, env: str, data: Mapping[str, Any]) -> None:
    """Raise UserError for an observation that the agent cannot read."""
    where = f"Agent {agent.name} cannot read the observation of the environment {env}"
    try:
        text = agent.observe(data)
    except UserError:  # a Gymnasium world's NaN: that says what to do
        raise
    except Exception as error:
        keys = ", ".join(map(str, data)) if hasattr(data, "keys") else type(data).__name__
        raise UserError(f"{where} ({reason(error)}).", f"It holds: {keys}. Correct the agent's observe.") from error
    if not isinstance(text, str):
        raise UserError(f"{where}: its observe gave {type(text).__name__}, not text.", "Return a str.")
