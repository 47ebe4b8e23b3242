"""Files of the user's own: a Python file's world, agent, goals and expert, and what is wrong with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import yaml

from rtcontrol.agents import Agent, Fallback, Goal, Goals, InvalidCall, Tools
from rtcontrol.agents.signatures import check_called, defined
from rtcontrol.agents.tool import Tool
from rtcontrol.envs.base import Observation
from rtcontrol.envs.thread import half_made, shut
from rtcontrol.envs.user_world import NEEDS, UserWorld
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Call, Plan
from rtcontrol.models.errors import UserError, read_text
from rtcontrol.run.user_code import load_module, reason

GOALS = ("goals", "placeholders", "words")
WORLD = ("reset", "step", "observe")
HISTORY = 6  # calls that an agent of nothing but tools shows


class ExpertError(Exception):
    """The user's expert raised, or gave no legal call; the message names file and line."""


def tools_only_agent(name: str, tools: Tools, instruction: str, fallback: Fallback) -> Agent:
    """It reads what is observed as `render` words it, and names no model."""
    return Agent(
        name=name,
        description="Tools that were given.",
        tools=tools,
        observe=render,
        instruction=instruction,
        fallback=fallback,
        model="",
        history=HISTORY,
    )


def render(data: Mapping[str, Any]) -> str:
    """`key value` pairs in the order given: `x 0.25 on true at 1 2`. Arrays are left out: they are for agents."""
    return " ".join(f"{key} {_plain(value)}" for key, value in data.items() if not isinstance(value, np.ndarray))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return render(value)
    if isinstance(value, (list, tuple)):
        return " ".join(_plain(v) for v in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


def holds_agent(module: ModuleType) -> bool:
    """Whether a file is (also) an agent's: it has an `agent`, or two and more of the parts of one: tools, goals (or an
    instruction), and an expert."""
    parts = vars(module)
    tools = "tools" in parts or any(isinstance(one, Tool) for one in parts.values())
    return "agent" in parts or tools + bool({"goals", "instruction"} & set(parts)) + ("expert" in parts) > 1


def is_gym(name: str) -> bool:
    """Whether it names a Gymnasium world."""
    return name.startswith("gym:")


def user_world(
    name: str,
    goals: Goals | None = None,
    limit_s: float | None = None,
    tools: Collection[str] = (),
    made: Any = None,
) -> UserWorld:
    """The one simulation of a Python file, made anew and looked over, or a Gymnasium world (or what was `made`). What
    was begun and cannot be used is closed. UserError where there is none. `tools` are the names that the agent calls.
    """
    if is_gym(name):
        from rtcontrol.envs.gym import GymWorld

        return UserWorld(made or GymWorld(name), name, None, limit_s)
    module = load_module(name, "--env")
    classes: list[Any] = [
        c
        for c in vars(module).values()
        if inspect.isclass(c) and c.__module__ == module.__name__ and all(callable(getattr(c, m, None)) for m in WORLD)
    ]
    # A class that another one builds on is a part of it.
    classes = [c for c in classes if not any(c in other.__mro__[1:] for other in classes)]
    if len(classes) != 1:
        raise UserError(f"{name} has {len(classes)} simulation classes (with {', '.join(WORLD)}).", NEEDS)
    [kind], title = classes, f"{name}: the simulation {classes[0].__name__}"
    check_called({"__init__": (kind, ())})
    try:
        made = kind()
        return UserWorld(made, title, goals, limit_s, tools)
    except BaseException as error:
        begun = half_made(error, lambda one: isinstance(one, kind)) if made is None else made
        with suppress(Exception):  # why it cannot be used is told
            shut(begun)
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        raise UserError(
            f"{title} cannot be made ({reason(error)}).", "It is called without arguments; correct its __init__."
        ) from error


def user_goals(file: Path, where: str) -> Goals:
    """The goals of a .yaml or .json file, which is named by `where`: a table `goals`, canonical words to other ways to
    say it, with tables `placeholders` and `words` where those need them. UserError with the line, where it can be
    told."""
    remedy = f"Give a table with {', '.join(GOALS)}, as in docs/your-own-game.md."
    try:
        told = yaml.safe_load(read_text(file))  # JSON is read, too
    except FileNotFoundError:
        raise UserError(f"{where} {file}: there is no such file.", "Give a .yaml or .json file.") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{file}{line} cannot be read ({problem}).", f"{remedy} Put ways in quotes.") from None
    if not isinstance(told, dict) or "goals" not in told or set(told) - set(GOALS):
        odd = ", ".join(map(str, sorted(set(told) - set(GOALS), key=str))) if isinstance(told, dict) else ""
        raise UserError(f"{file} has {f'unknown tables ({odd})' if odd else 'no table of goals'}.", remedy)
    return Goals(**told, source=str(file))


def user_agent(name: str, base: Agent | None = None) -> Agent:
    """The agent of a Python file: its `agent`, or one of its `tools`, `observe`, `fallback`, `instruction`, `history`
    and `model`; with its `goals` and its `expert`. What a file without `agent` leaves
    out is that of `base`, where there is one. UserError where there is none."""
    module = load_module(name, "--agent")
    found = vars(module).get("agent")
    if found is not None and not isinstance(found, Agent):
        raise UserError(f"{name}: its `agent` is no Agent.", "Write `agent = Agent(...)` at its top level.")
    told = _goals(module, name) or getattr(found, "goals", None) or getattr(base, "goals", None)
    expert = getattr(found, "expert", None) or vars(module).get("expert")
    if expert is not None and not callable(expert):
        raise UserError(f"{name}: its `expert` is no function.", "Write `def expert(observation, goal): ...`.")
    if expert is not None and told is None:
        raise UserError(f"{name}: its expert has no goals.", 'Write goals = {"go to the {thing}": [...]}.')
    made = found if found is not None else _made_of_parts(module, name, told, base)
    return replace(made, goals=told, expert=expert)


def _made_of_parts(module: ModuleType, name: str, goals: Goals | None, base: Agent | None) -> Agent:
    from rtcontrol.run.toolsets import tools_from

    parts = vars(module)
    if base is not None:
        known = {"instruction": base.instruction, "fallback": base.fallback, "observe": base.observe}
        parts = known | {"history": base.history} | parts
    try:
        tools = base.tools if base is not None and "tools" not in parts else tools_from(name, lambda line: None)
    except UserError as error:
        what = f"{name} has no Agent called `agent`, and no tools to make one of. {error.what}"
        raise UserError(what, "Write `tools = [...]`, or `agent = Agent(...)`, at its top level.") from None
    instruction = parts.get("instruction") or (None if goals is None else next(iter(goals)).text())
    if not isinstance(instruction, str):
        raise UserError(f"{name} says nowhere what to do.", 'Write `instruction = "..."`, or `goals = {...}`.')
    given = parts.get("fallback", ())
    if not isinstance(given, Fallback):
        calls = [given] if isinstance(given, Call) else given
        if not isinstance(calls, list | tuple) or not all(isinstance(call, Call) for call in calls):
            raise UserError(f"{name}: its `fallback` is no call.", 'Write `fallback = Call("stop")`.')
        given = Fallback(calls=calls)
    description = (module.__doc__ or f"The agent of {name}.").strip().splitlines()[0]
    observe, history, model = parts.get("observe", render), parts.get("history", 0), parts.get("model", "")
    return Agent(Path(name).stem, description, tools, observe, instruction, given, model, history)


def _goals(module: ModuleType, name: str) -> Goals | None:
    given = vars(module).get("goals")
    if isinstance(given, str) and given.endswith((".yaml", ".yml", ".json")):
        return user_goals(Path(name).parent / given, f"{name}: its goals are those of")
    if given is None or isinstance(given, Goals):
        return given
    return Goals(given, vars(module).get("placeholders"), vars(module).get("words"), name)


@dataclass(frozen=True)
class UserExpert:
    """An agent's own expert as a function of requests, and of a raw observation and its goal. A list of calls is a
    plan: the first one for now, then one each `step_ns`.

    UserError for words that name no goal; ExpertError where the expert raises or gives no legal call.
    """

    agent: Agent
    step_ns: int = 0

    def __call__(self, request: DecisionRequest) -> Call | Plan | None:
        goals, data = self.agent.goals, request.data
        assert goals is not None, "an agent with an expert has goals"
        goal = goals.recognise(request.instruction)
        if goal is None:
            told = request.instruction[:80]
            raise UserError(
                f"The expert of the agent {self.agent.name} does not know what {told!r} asks for.",
                f"Say a goal of {goals.source} in its words: {goals.known()}.",
            )
        if not isinstance(data, Mapping):
            raise ExpertError("only the text of the observation is here, and the expert reads the observation itself")
        calls = self.calls(data, goal)
        if len(calls) > 1 and self.step_ns:
            return Plan(calls, self.step_ns)
        return calls[0] if calls else None

    def call(self, data: Mapping[str, Any], goal: Goal) -> Call | None:
        """What the expert calls now."""
        return next(iter(self.calls(data, goal)), None)

    def calls(self, data: Mapping[str, Any], goal: Goal) -> tuple[Call, ...]:
        """What it calls now and after; none where it gives no call, and may."""
        function: Callable[..., Any] = self.agent.expert  # type: ignore[assignment]
        try:
            gave = function(data, goal)
        except Exception as error:
            raise ExpertError(f'told "{goal.text()}" it raised {reason(error)}') from error
        if gave is None and self.agent.allow_null:
            return ()
        where = f'{defined(function)}: told "{goal.text()}" the expert gave'
        calls = tuple(gave) if isinstance(gave, list | tuple) and gave else (gave,)
        for call in calls:
            if not isinstance(call, Call):
                raise ExpertError(f'{where} {call!r:.80}, no call: return Call("tool", {{"parameter": value}})')
        try:
            return tuple(map(self.agent.tools.validate, calls))
        except InvalidCall as error:
            raise ExpertError(f"{where} {', '.join(call.text() for call in calls)}: {error}") from None


def try_expert(agent: Agent, sample: Observation, instruction: str) -> None:
    """Ask an agent's own expert once, before anything runs. UserError where it gives no legal call."""
    if agent.expert is None:
        return
    try:
        UserExpert(agent)(DecisionRequest(0, 0, "", instruction, data=sample.data))
    except ExpertError as error:
        raise UserError(f"The expert of the agent {agent.name} fails: {error}.", "Correct it there.") from error
