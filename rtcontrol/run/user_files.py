"""Load a user's Python files (world, agent, goals, expert), and check them before a run starts."""

from __future__ import annotations

import ast
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
from rtcontrol.agents.signatures import check_signatures, location_of, reason_without_effect
from rtcontrol.agents.tool import Tool
from rtcontrol.envs.base import Observation
from rtcontrol.envs.thread import close_world, find_partly_created
from rtcontrol.envs.user_world import NEEDS, UserWorld
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop import errors
from rtcontrol.models.call import Call, Plan
from rtcontrol.models.errors import UserError, read_text
from rtcontrol_client.console import printable

GOALS = ("goals", "placeholders", "words")  # tables that a file of goals may contain
WORLD = ("reset", "step", "observe")  # a class with these methods is a world
CORRECT = "Correct the code there, or install another version of the package that fails."
HISTORY = 6  # an agent that has only tools gets this number of previous calls in its prompt
_loaded: dict[Path, ModuleType] = {}


def load_module(name: str, option: str) -> ModuleType:
    """Execute a Python file as a module, once per process, and return the module. Raises UserError."""
    path = Path(name).resolve()
    if not path.is_file():
        why = "it is not a file" if path.exists() else "there is no such file"
        raise UserError(f"{option} {name}: {why}.", "Specify the path of a Python file.")
    if path in _loaded:
        return _loaded[path]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end, because a file there must not hide an installed module
    for hidden in _hidden_imports(path):
        package = hidden.rstrip("/").removesuffix(".py")
        problem = f"{path.name} imports the installed module {package}, not {hidden} in its folder."
        print(printable(f"{problem} To import {hidden}, rename it."), file=sys.stderr)
    title = _module_name(path)
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[title]
        if isinstance(error, UserError) or not isinstance(error, Exception | SystemExit):
            raise
        raise UserError(f"{option} {name} cannot be loaded ({error_text(error)}).", f"Run `python {name}`.") from error
    _loaded[path] = module
    return module


def _module_name(path: Path) -> str:
    """Return the module name for a user's file. This is its import name, which its child processes need, unless another
    module has this name: a file json.py must not replace the module json."""
    if path.stem.isidentifier() and _is_imported_as(path.stem, path):
        return path.stem
    return f"rtcontrol_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _is_imported_as(name: str, path: Path) -> bool:
    """Return whether `import name` finds this file."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # raised for __main__, for example
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path


def _hidden_imports(path: Path) -> list[str]:
    """Return the local modules that a file cannot import, because installed modules have the same name. They are files
    (`ray.py`) or packages (`ray/`) next to the file whose names it imports."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError):  # the same error will be reported when the file is executed
        return []
    imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imports |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    names = {name.partition(".")[0] for name in imports}
    files = {f"{name}.py": f"{name}.py" for name in names} | {f"{name}/": f"{name}/__init__.py" for name in names}
    local = [(name, path.parent / file) for name, file in files.items() if (path.parent / file).is_file()]
    return sorted(name for name, file in local if not _is_imported_as(name.rstrip("/").removesuffix(".py"), file))


def error_text(error: BaseException) -> str:
    """Return the text of an exception in a user's code, with its file and line."""
    # The text of a syntax error already contains file and line.
    place = None if isinstance(error, SyntaxError) else errors.location(error)
    return errors.message(error) if place is None or place.startswith("<") else f"{errors.message(error)}, {place}"


def file_digests(files: Iterable[str | None]) -> dict[str, str]:
    """Return a digest of the content of each file that exists, by name."""
    texts = {name: Path(name).read_bytes() for name in files if name is not None and Path(name).is_file()}
    return {name: hashlib.sha256(text).hexdigest()[:16] for name, text in texts.items()}


# -- worlds -----------------------------------------------------------------------------------------------------------


def is_gym(name: str) -> bool:
    """Return whether an environment's name is that of a Gymnasium world (gym:ID)."""
    return name.startswith("gym:")


def user_world(
    name: str, goals: Goals | None, limit_s: float | None = None, tools: Collection[str] = (), world: Any = None
) -> UserWorld:
    """Create the world of a Python file that has one world class, or wrap a Gymnasium world (None: a new world).

    `tools`: names of the agent's tools. Raises UserError if the world cannot be used, after closing it.
    """
    if is_gym(name):
        from rtcontrol.envs.gym import GymWorld

        return UserWorld(world or GymWorld(name), name, None, limit_s)
    kind = _world_class(name)
    title = f"{name}: the world {kind.__name__}"
    check_signatures({"__init__": (kind, ())})
    try:
        world = kind()
        return UserWorld(world, title, goals, limit_s, tools)
    except BaseException as error:
        started = find_partly_created(error, lambda value: isinstance(value, kind)) if world is None else world
        with suppress(Exception):  # report the original error, not errors of close()
            close_world(started)
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        hint = "The class is called without arguments. Correct its __init__."
        raise UserError(f"{title} cannot be created ({error_text(error)}).", hint) from error


def _world_class(name: str) -> type[Any]:
    """Return the world class of a file. Raises UserError unless there is exactly one, apart from base classes."""
    module = load_module(name, "--env")
    local = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    worlds = [c for c in local if all(callable(getattr(c, method, None)) for method in WORLD)]
    worlds = [c for c in worlds if not any(c in other.__mro__[1:] for other in worlds)]
    if len(worlds) != 1:
        raise UserError(f"{name} has {len(worlds)} world classes (classes with {', '.join(WORLD)}).", NEEDS)
    return worlds[0]


# -- agents -----------------------------------------------------------------------------------------------------------


def defines_agent(module: ModuleType) -> bool:
    """Return whether a module has an `agent`, tools or an expert."""
    parts = vars(module)
    return bool({"agent", "tools", "expert"} & set(parts)) or any(isinstance(value, Tool) for value in parts.values())


def user_tools(name: str) -> Tools:
    """Return the tools of a Python file: those of `agent`, the list `tools`, or decorated functions and pydantic
    models. A model that is a field of another model is not a tool. Raises UserError if there are no tools."""
    module = load_module(name, "FILE")
    if isinstance(agent := vars(module).get("agent"), Agent):
        return agent.tools
    tools = vars(module).get("tools")
    if isinstance(tools, Tools):
        return tools
    if not isinstance(tools, list | tuple):
        public = [v for key, v in vars(module).items() if not key.startswith("_")]
        local = [v for v in public if _defining_module(v) == module.__name__]
        models = [v for v in local if isinstance(v, type) and issubclass(v, pydantic.BaseModel)]
        parts = {name for model in models for name in model.model_json_schema().get("$defs", {})}
        tools = [v for v in local if isinstance(v, Tool)] + [m for m in models if m.__name__ not in parts]
    if not tools:
        hint = "Decorate functions with `rtcontrol.agents.tool`, or write a list `tools` of functions, dicts or models."
        raise UserError(f"{name} has no tools.", hint)
    return Tools(list(tools))


def _defining_module(value: Any) -> str:
    """Return the name of the module that defines a value. The value may be imported from there."""
    return str(getattr(value.function if isinstance(value, Tool) else value, "__module__", ""))


def tools_only_agent(name: str, tools: Tools, instruction: str, fallback: Fallback) -> Agent:
    """Return an agent with these tools, without a default model. Its `observe` is `observation_text`."""
    return Agent(name, "Tools without a model.", tools, observation_text, instruction, fallback, "", HISTORY)


def observation_text(data: Mapping[str, Any]) -> str:
    """Return an observation as text with all keys and values, such as `x 0.25 on true at 1 2`. Skip arrays. Write NaN
    as none."""
    return " ".join(f"{key} {_value_text(value)}" for key, value in data.items() if not isinstance(value, np.ndarray))


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return observation_text(value)
    if isinstance(value, (list, tuple)):
        return " ".join(map(_value_text, value))
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return "none" if np.isnan(value) else f"{value:.6g}"
    return "none" if value is None else str(value)


def notices(agent: Agent, sample: Observation | None) -> list[str]:
    """Return notices for the user before a run: the agent's, and one about arrays, which the model cannot read."""
    if sample is None or agent.observe is not observation_text:
        return [*agent.notices]
    arrays = [str(key) for key, value in sample.data.items() if isinstance(value, np.ndarray)]
    if not arrays:
        return [*agent.notices]
    rest = "" if agent.observe(sample.data) else " The text is empty without them."
    problem = f"The observation text for the model does not have these arrays: {', '.join(arrays)}.{rest}"
    return [*agent.notices, f"{problem} Write the agent's observe(data) to include them."]


def user_agent(name: str, base: Agent | None = None) -> Agent:
    """Return the agent that a Python file defines, with its `goals` and `expert`. Raises UserError.

    A file without `agent` may define `tools`, `observe`, `fallback`, `instruction`, `history` and `model`. The agent
    `base` supplies those that the file does not define.
    """
    module = load_module(name, "--agent")
    agent = vars(module).get("agent")
    if agent is not None and not isinstance(agent, Agent):
        raise UserError(f"{name}: its `agent` is not an Agent.", "Write `agent = Agent(...)` at its top level.")
    goals = _goals_of_file(module, name) or getattr(agent, "goals", None) or getattr(base, "goals", None)
    expert = getattr(agent, "expert", None) or vars(module).get("expert")
    if expert is not None and goals is None:
        raise UserError(f"{name} has an expert, but no goals.", 'Write goals = {"go to the {thing}": [...]}.')
    return replace(agent or _agent_from_parts(module, name, goals, base), goals=goals, expert=expert)


def _agent_from_parts(module: ModuleType, name: str, goals: Goals | None, base: Agent | None) -> Agent:
    parts = vars(module)
    if base is not None:
        parts = {key: getattr(base, key) for key in ("instruction", "fallback", "observe", "history")} | parts
    tools = base.tools if base is not None and "tools" not in parts else user_tools(name)
    instruction = parts.get("instruction") or (None if goals is None else next(iter(goals)).text())
    if not isinstance(instruction, str):
        raise UserError(f"{name} has no instruction.", 'Write `instruction = "..."`, or `goals = {...}`.')
    fallback = parts.get("fallback", ())
    if not isinstance(fallback, Fallback):
        calls = fallback if isinstance(fallback, list | tuple) else [fallback]
        if not all(isinstance(call, Call) for call in calls):
            raise UserError(f"{name}: its `fallback` is not a call.", 'Write `fallback = Call("stop")`.')
        fallback = Fallback(calls=calls)
    description = (module.__doc__ or f"The agent of {name}.").strip().splitlines()[0]
    observe, history, model = parts.get("observe", observation_text), parts.get("history", 0), parts.get("model", "")
    return Agent(Path(name).stem, description, tools, observe, instruction, fallback, model, history)


def _goals_of_file(module: ModuleType, name: str) -> Goals | None:
    goals = vars(module).get("goals")
    if isinstance(goals, str) and goals.endswith((".yaml", ".yml", ".json")):
        return user_goals(Path(name).parent / goals, f"{name}: its goals are in")
    if goals is None or isinstance(goals, Goals):
        return goals
    return Goals(goals, vars(module).get("placeholders"), vars(module).get("words"), name)


def user_goals(file: Path, where: str) -> Goals:
    """Return the goals of a .yaml or .json file. Raises UserError with the line of an error.

    The table `goals` maps a canonical sentence to other sentences with the same meaning. The tables `placeholders` and
    `words` list the values of the slots {...} in these sentences.
    """
    hint = f"Write the tables {', '.join(GOALS)}, as in docs/your-own-game.md; put sentences in quotes."
    try:
        tables = yaml.safe_load(read_text(file))  # JSON is a subset of YAML
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{where} {file}, which cannot be read ({' '.join(str(error).split())}).", hint) from None
    if not isinstance(tables, dict) or "goals" not in tables or (set(tables) - set(GOALS)):
        raise UserError(f"{file} has no table `goals`, or has unknown tables.", hint)
    return Goals(**tables, source=str(file))


# -- experts ----------------------------------------------------------------------------------------------------------


class ExpertError(Exception):
    """The user's expert raised an exception or did not return a legal call; the message has file and line."""


@dataclass(frozen=True)
class UserExpert:
    """A decider that calls the expert of an agent, a function from observation and goal to a call.

    If the expert returns a list of calls, the decision is a plan with a call every `step_ns` nanoseconds. Raises
    UserError if the instruction names no goal, and ExpertError if the expert fails or returns no legal call.
    """

    agent: Agent
    step_ns: int = 0

    def __call__(self, request: DecisionRequest) -> Call | Plan | None:
        goals, data = self.agent.goals, request.data
        assert goals is not None, "an agent with an expert has goals"
        goal = goals.recognise(request.instruction)
        if goal is None:
            problem = f"The expert of the agent {self.agent.name} does not know {request.instruction[:80]!r}."
            raise UserError(problem, f"Use the words of a goal in {goals.source}: {goals.describe()}.")
        if not isinstance(data, Mapping):
            raise ExpertError("the expert needs the raw observation, but the request has only its text")
        calls = self.calls(data, goal)
        if len(calls) > 1 and self.step_ns:
            return Plan(calls, self.step_ns)
        return calls[0] if calls else None

    def calls(self, data: Mapping[str, Any], goal: Goal) -> tuple[Call, ...]:
        """Return the expert's calls for this step and later steps, or an empty tuple if the expert returned None."""
        function: Callable[..., Any] = self.agent.expert  # type: ignore[assignment]
        try:
            value = function(data, goal)
        except Exception as error:
            raise ExpertError(f'for the goal "{goal.text()}" it raised {error_text(error)}') from error
        if value is None and self.agent.allow_null:
            return ()
        where = f'{location_of(function)}: for the goal "{goal.text()}" the expert returned'
        calls = tuple(value) if isinstance(value, list | tuple) and value else (value,)
        if not_calls := [call for call in calls if not isinstance(call, Call)]:
            raise ExpertError(f'{where} {not_calls[0]!r:.80}, not a call: return Call("tool", {{"parameter": value}})')
        try:
            return tuple(map(self.agent.tools.validate, calls))
        except InvalidCall as error:
            raise ExpertError(f"{where} {', '.join(call.text() for call in calls)}: {error}") from None


def check_expert(agent: Agent, sample: Observation, instruction: str) -> None:
    """Call an agent's expert for a sample observation. Raises UserError if it does not return a legal call."""
    if agent.expert is None:
        return
    try:
        UserExpert(agent)(DecisionRequest(0, 0, "", instruction, data=sample.data))
    except ExpertError as error:
        raise UserError(f"The expert of the agent {agent.name} fails: {error}.", "Correct the code there.") from error


# -- agent and environment --------------------------------------------------------------------------------------------


def check_fit(agent: Agent, env: str, bindings: Mapping[str, Callable[..., Any]], sample: Observation | None) -> None:
    """Check that an environment can execute an agent's tools, and that the agent can read the observation `sample`.

    Raises UserError if it cannot, for example if no function executes a tool, or if the function does not accept the
    tool's parameters. `bindings`: the environment's functions by tool name.
    """
    for tool in agent.tools:
        where = f"Agent {agent.name}, tool {tool.name}, environment {env}"
        executor = bindings.get(tool.name)
        if executor is not None:
            _check_function(where, executor, tool.schema.parameters)
        elif tool.has_no_function or _has_empty_body(tool.function):
            lacks = "tool has no function" if tool.has_no_function else "tool's function does nothing"
            problem = f"{where}: the environment has no binding of this name, and the {lacks}."
            has = ", ".join(bindings) or "none"
            raise UserError(problem, f"Existing bindings: {has}. Rename the tool, bind it, or write its function.")
    if sample is not None:
        check_observation(agent, env, sample.data)


def _check_function(where: str, executor: Callable[..., Any], parameters: Any) -> None:
    if why := reason_without_effect(executor):
        raise UserError(f"{where}: {location_of(executor)}: the environment's function {why}.", "Write a plain `def`.")
    try:
        signature = inspect.signature(executor)
    except (TypeError, ValueError):
        return  # functions in C may have no signature
    for names in ([p.name for p in parameters if p.required], [p.name for p in parameters]):
        try:
            signature.bind(**dict.fromkeys(names))
        except TypeError as error:
            problem = f"{where}: the environment's function does not accept ({', '.join(names)}): {error}."
            hint = "Use the same parameters in tool and binding; optional parameters need defaults in both."
            raise UserError(problem, hint) from None


def _has_empty_body(function: Callable[..., Any]) -> bool:
    """Return whether the body of a function is empty, except for a docstring."""
    code = getattr(function, "__code__", None)
    return code is not None and len(code.co_code) <= len((lambda: None).__code__.co_code)


def check_observation(agent: Agent, env: str, data: Mapping[str, Any]) -> None:
    """Raise UserError if the agent cannot read this observation."""
    where = f"Agent {agent.name} cannot read the observation of the environment {env}"
    try:
        text = agent.observe(data)
    except UserError:  # it already explains the problem (such as NaN in a Gymnasium world)
        raise
    except Exception as error:
        keys = ", ".join(map(str, data)) if hasattr(data, "keys") else type(data).__name__
        hint = f"The observation contains: {keys}. Correct the agent's `observe`."
        raise UserError(f"{where} ({error_text(error)}).", hint) from error
    if not isinstance(text, str):
        raise UserError(f"{where}: observe returned {type(text).__name__}, not text.", "Return a str from `observe`.")
