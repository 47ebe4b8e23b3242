"""Combine a world and an agent into a `Skill` for training and scoring, and check a user's world for errors."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent, Goal, Goals, Tools
from rtcontrol.agents.signatures import run_to_completion
from rtcontrol.agents.tool import Tool
from rtcontrol.envs import registry
from rtcontrol.envs.base import Episode, Observation
from rtcontrol.envs.skill import JudgedSimulation, Skill, StepAccumulator
from rtcontrol.envs.thread import CLOSE_S, WorldThread, close_world
from rtcontrol.envs.user_world import UserWorld
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import check_random, random_call
from rtcontrol.run import assembly
from rtcontrol.run.user_files import (
    CORRECT,
    ExpertError,
    UserExpert,
    check_fit,
    check_observation,
    error_text,
    is_gym,
    load_module,
    notices,
    user_world,
)
from rtcontrol.telemetry.events import to_jsonable
from rtcontrol_client.console import printable

LIMIT_S = 300.0  # after this many simulated seconds, an episode ends as a failure
CHECKED_GOALS = 40  # with 40 goals or more, the expert first tries only one goal of each kind
MAX_TEXTS = 65_536  # number of stored raw observations, which held-out rows use later; older ones are dropped
SCORED_GOALS = 8  # number of goals in a score; with more kinds of goals, one goal of each kind
# For `rtcontrol check`: maximum seconds for the expert's episodes, goals, and characters of a line; period of a tick.
EXPERT_S, MAX_GOALS, MAX_CHARS, PERIOD_NS = 7.0, 1_000, 400, round(1e9 / 16)


@dataclass(frozen=True, kw_only=True)
class UserSkill(Skill):
    """A skill with a user's world, goals and expert.

    A score uses some of `all_goals`, in phrasings that are not used in training. `open_worlds`: worlds that `make`
    returned and that are not closed yet.
    """

    agent: Agent
    all_goals: Goals
    step_s: float
    open_worlds: set[GuardedWorld] = field(default_factory=set)

    def close(self) -> None:
        """Close all open worlds. If this fails for a world, close the others and raise UserError."""
        with ExitStack() as worlds:
            for world in self.open_worlds.copy():
                worlds.callback(world.close)


def skill_of(env: str, agent: str | None = None, limit_s: float = LIMIT_S) -> Skill:
    """Return the skill of a bundled environment, or a skill of a user's world and the agent of a file. Raises UserError
    if the agent lacks goals, an expert or a safe call."""
    chosen = assembly.load_agent(agent or assembly.default_agent(env), env)
    goals = chosen.goals
    if goals is None or chosen.expert is None:
        bundled = registry.skill(env)
        if bundled is not None and agent in (None, registry.WORLDS[env].agent):
            return bundled
        raise UserError(
            f"The agent {chosen.name} has no {'goals' if goals is None else 'expert'}, so its calls cannot be judged.",
            "Write `goals = {...}` and `def expert(data, goal): ...` in a file, and name the file by --agent FILE.py "
            "(docs/your-own-game.md).",
        )
    if (safe_call := chosen.fallback.safe_call) is None:
        raise UserError(
            f"The agent {chosen.name} has no safe call.", 'Write for example `fallback = Call("stop")` in its file.'
        )
    texts, scored = _ObservationCache(chosen), tuple(goals.spread(max(SCORED_GOALS, len(goals.phrasings))))
    worlds: set[GuardedWorld] = set()
    make: Callable[[], JudgedSimulation] = partial(_make_world, env, chosen, goals, limit_s, worlds)
    first = make()
    skill = UserSkill(
        name=env if is_gym(env) else Path(env).stem,
        make=make,
        observe=texts.observe,
        parse_observation=texts.observed.__getitem__,
        recognise=goals.recognise,
        expert=partial(expert_call, UserExpert(chosen)),
        noop_call=safe_call,
        any_call=partial(random_call, chosen.tools.schemas),
        agent=chosen,
        all_goals=goals,
        step_s=first.step_s,
        open_worlds=worlds,
        goals=scored,
        kinds=tuple(goals.phrasings),
        phrasings={"unseen": lambda kind: [(say, g) for g in scored if g.kind == kind for say in goals.held_out(g)]},
    )
    try:
        _check_skill(skill, first)
    finally:
        close_world(first)
    return skill


def _make_world(env: str, agent: Agent, goals: Goals, limit_s: float, worlds: set[GuardedWorld]) -> JudgedSimulation:
    if env.endswith(".py") or is_gym(env):
        world = user_world(env, goals, limit_s, [tool.name for tool in agent.tools])
        checked: Any = GuardedWorld(env, world, agent.tools, worlds)
        return checked
    if (bundled := registry.skill(env)) is None:
        raise UserError(f"The world {env} cannot be used for training.", "Use a .py file, or a bundled environment.")
    return bundled.make()


def _check_skill(skill: UserSkill, world: Any) -> None:
    """Try the skill's expert with a goal of each kind, and check its tools. Raises UserError for the first error."""
    for goal in {goal.kind: goal for goal in skill.all_goals.spread(CHECKED_GOALS)}.values():
        world.judge_by(goal)
        world.reset(0)
        data = world.observe()
        check_fit(skill.agent, skill.name, getattr(world, "functions", world.bindings), Observation(0, 0, 0, data))
        skill.expert(data, goal)
    check_random(skill.agent.tools.schemas)


def expert_call(expert: UserExpert, data: Mapping[str, Any], goal: Goal) -> Call:
    """Return the expert's call for an observation and a goal. Raises UserError if the expert fails or returns none."""
    name = expert.agent.name
    try:
        calls = expert.calls(data, goal)
    except ExpertError as error:
        raise UserError(f"The expert of the agent {name} fails: {error}.", "Correct the code there.") from error
    if not calls:
        problem = f'The expert of the agent {name} returned no call for the goal "{goal.text()}".'
        raise UserError(problem, "Return the call that continues the task.")
    return calls[0]


class _ObservationCache:
    """A cache from the text of an observation to the latest raw observation that has this text."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.observed: dict[str, Mapping[str, Any]] = {}

    def observe(self, data: Mapping[str, Any]) -> str:
        text = self._agent.observe(data)
        self.observed.pop(text, None)
        self.observed[text] = copy.deepcopy(dict(data))
        if len(self.observed) > MAX_TEXTS:
            del self.observed[next(iter(self.observed))]  # drop the oldest; other worlds may need newer ones
        return text


class GuardedWorld:
    """A user's world, whose exceptions become UserErrors with the line of the user's code.

    If the world does not bind a tool, the tool's function is called, as in a run. The world removes itself from
    `open_worlds` when it is closed.
    """

    def __init__(self, env: str, world: UserWorld, tools: Tools, open_worlds: set[GuardedWorld]) -> None:
        self._env, self._world, self._open_worlds = env, world, open_worlds
        open_worlds.add(self)
        self.functions = world.bindings
        names = {tool.name for tool in tools}
        bound = tools.bind(**{name: world.bindings[name] for name in names & set(world.bindings)})
        self.bindings = {t.name: partial(self._call_guarded, t.name, partial(_execute_tool, bound, t)) for t in bound}

    def close(self) -> None:
        if self in self._open_worlds:
            self._open_worlds.remove(self)
            self._call_guarded("close", self._world.close)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._world, name)
        return partial(self._call_guarded, name, value) if callable(value) else value

    def _call_guarded(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"The world {self._env}: {name}() raised {error_text(error)}.", CORRECT) from error


def _execute_tool(tools: Tools, tool: Tool, /, **arguments: Any) -> None:
    run_to_completion(tool.function, **tools.convert(Call(tool.name, arguments)))


# -- `rtcontrol check` ------------------------------------------------------------------------------------------------


def check_world(world: str, agent: str | None = None, *, steps: int, seed: int) -> list[str]:
    """Test a world (`gym:ID`, a .py file or a bundled name), and return the results as lines of text.

    Create the world on a separate thread, reset it twice to `seed`, let the agent's expert play its goals, execute
    `steps` random calls, and close the world. Raises UserError for the first error.
    """
    with closing(WorldThread(world)) as thread:
        if world.endswith(".py"):
            load_module(world, "--env")  # on the main thread, because the file may install signal handlers
        chosen = assembly.load_agent(agent or assembly.default_agent(world), world, thread)
        lines = thread.run(lambda: _WorldTest(world, chosen, seed, thread).run(steps))
        thread.close()
        if thread.close_error:
            hint = f"Correct its close(): it must return within {CLOSE_S:g} s, also during a step, and not raise."
            raise UserError(thread.close_error, hint)
    return lines


class _WorldTest:
    """A test of a user's world. All methods must run on the world's thread."""

    def __init__(self, env: str, agent: Agent, seed: int, thread: WorldThread) -> None:
        self._env, self._agent, self._seed = env, agent, seed
        if env.endswith(".py") or is_gym(env):
            names = [tool.name for tool in agent.tools]
            thread.world = user_world(env, agent.goals, LIMIT_S, names, thread.world)
        elif (bundled := registry.skill(env)) is not None:
            thread.world = UserWorld(bundled.make(), env)
        else:
            raise assembly.unknown_environment(env)
        self._world: Any = GuardedWorld(env, thread.world, agent.tools, set())

    def run(self, steps: int) -> list[str]:
        env, agent = self._env, self._agent
        self._world.instruct(agent.instruction)
        first, second = self._reset(self._seed), self._reset(self._seed)
        if to_jsonable(first) != to_jsonable(second):
            names = [str(n) for n in {**first, **second} if to_jsonable(first.get(n)) != to_jsonable(second.get(n))]
            problem = f"The world {env}: two resets with the seed {self._seed} differ (in {', '.join(names)})."
            raise UserError(problem, "Derive all random values from the seed, in each reset.")
        check_fit(agent, env, self._world.functions, Observation(0, 0, 0, first))
        calls = [random_call([tool], random.Random(0)).text() for tool in agent.tools.schemas]
        return [
            f"first observation: {printable(repr(first), MAX_CHARS)}",
            f"as text for the model: {printable(agent.observe(first), MAX_CHARS)}",
            f"possible calls: {printable(', '.join(calls), MAX_CHARS)}",
            *(f"warning: {printable(notice)}" for notice in notices(agent, Observation(0, 0, 0, first))),
            *self._play_expert(),
            self._play_randomly(steps),
        ]

    def _reset(self, seed: int) -> dict[str, Any]:
        self._world.reset(seed)
        data = dict(self._world.observe())
        self._world.outcome()
        return data

    def _execute_and_step(self, call: Call, steps: int) -> Episode | None:
        """Execute a call, and step the world at most `steps` times. Return the episode if it has ended, else None."""
        self._world.bindings[call.name](**call.arguments)
        for _ in range(steps):
            self._world.step()
            if (outcome := self._world.outcome()) is not None:
                return outcome
        return None

    def _play_expert(self) -> list[str]:
        """Let the agent's expert play all goals within EXPERT_S seconds, and return a line with the results."""
        if self._agent.expert is None or self._agent.goals is None:
            return []
        until_s, ends, world = time.monotonic() + EXPERT_S, list[bool](), self._world
        goals = list(self._agent.goals.spread(MAX_GOALS))
        for goal in goals:
            world.judge_by(goal)
            data, accumulator = self._reset(self._seed), StepAccumulator(world.step_s)
            outcome: Episode | None = None
            while outcome is None and time.monotonic() < until_s:
                check_observation(self._agent, self._env, data)
                call = expert_call(UserExpert(self._agent), data, goal)
                outcome = self._execute_and_step(call, accumulator.steps(PERIOD_NS))
                data = dict(world.observe())
            if outcome is not None:
                ends.append(bool(outcome.success))
        return [f"tried: its expert finished {len(ends)} of {len(goals)} goals ({sum(ends)} successfully)"]

    def _play_randomly(self, steps: int) -> str:
        """Execute `steps` random calls, each with a step of the world, and return a line with the result."""
        rng, ended = random.Random(self._seed), 0
        self._reset(self._seed)
        for _ in range(steps):
            outcome = self._execute_and_step(random_call(self._agent.tools.schemas, rng), 1)
            check_observation(self._agent, self._env, dict(self._world.observe()))
            if outcome is not None:
                ended += 1
                self._reset(self._seed + ended)
        return f"tried: {steps} random calls, during which {ended} episodes ended"
