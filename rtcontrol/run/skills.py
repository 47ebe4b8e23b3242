"""Combine a world and an agent into a skill for training and scoring, and check worlds (`rtcontrol check`)."""

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
from rtcontrol.envs.skill import Judged, Skill, StepCarry
from rtcontrol.envs.thread import CLOSE_S, WorldThread, shut
from rtcontrol.envs.user_world import UserWorld
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import check_random, random_call
from rtcontrol.run import assembly
from rtcontrol.run.user_files import (
    CORRECT,
    ExpertError,
    UserExpert,
    check_observation,
    fit,
    is_gym,
    load_module,
    notices,
    reason,
    user_world,
)
from rtcontrol.telemetry.events import jsonable
from rtcontrol_client.console import printable

LIMIT_S = 300.0  # an episode that is longer, in simulated time, counts as endless
TRIED = 40  # goals that are sampled to try the expert on one goal of each kind before a training or score
REMEMBERED = 65_536  # observations that are kept, as held-out rows use them long after they were made
SCORED = 8  # goals that are scored at least; one of each kind if there are more kinds
# For `rtcontrol check`: time for the expert's episodes, goals at most, characters shown at most, duration of a tick.
PLAYED_S, MOST_GOALS, SHOWN, PERIOD_NS = 7.0, 1_000, 400, round(1e9 / 16)


@dataclass(frozen=True, kw_only=True)
class UserSkill(Skill):
    """A skill with a user's goals and expert.

    A score uses a few of `all_goals` and their held-out phrasings. The code that makes a world must close it; `open`
    has the worlds that are not closed yet.
    """

    agent: Agent
    all_goals: Goals
    step_s: float
    open: set[OpenWorld] = field(default_factory=set)

    def close(self) -> None:
        """Close all open worlds, even if closing one of them fails. Raises UserError if it does."""
        with ExitStack() as worlds:
            for world in self.open.copy():
                worlds.callback(world.close)


def skill_of(env: str, agent: str | None = None, limit_s: float = LIMIT_S) -> Skill:
    """Return the skill of a bundled environment, or of a world and an agent's file with goals and expert.
    Raises UserError if goals, expert or safe call are missing."""
    chosen = assembly.agent(agent or assembly.default_agent(env), env)
    goals = chosen.goals
    if goals is None or chosen.expert is None:
        bundled = registry.skill(env)
        if bundled is not None and agent in (None, registry.WORLDS[env].agent):
            return bundled
        raise UserError(
            f"The agent {chosen.name} has no {'goals' if goals is None else 'expert'}, so its calls cannot be judged.",
            "Write `goals = {...}` and `def expert(data, goal): ...` in its file, and give it with --agent FILE.py "
            "(docs/your-own-game.md).",
        )
    if (still := chosen.fallback.safe_call) is None:
        raise UserError(
            f"The agent {chosen.name} has no safe call.", 'Write such as `fallback = Call("stop")` in its file.'
        )
    texts, scored = _Texts(chosen), tuple(goals.select(max(SCORED, len(goals.phrasings))))
    worlds: set[OpenWorld] = set()
    make: Callable[[], Judged] = partial(_world, env, chosen, goals, limit_s, worlds)
    first = make()
    skill = UserSkill(
        name=env if is_gym(env) else Path(env).stem,
        make=make,
        observe=texts.observe,
        read_back=texts.observed.__getitem__,
        recognise=goals.recognise,
        expert=partial(expert_call, UserExpert(chosen)),
        still=still,
        any_call=partial(random_call, chosen.tools.schemas),
        agent=chosen,
        all_goals=goals,
        step_s=first.step_s,
        open=worlds,
        goals=scored,
        kinds=tuple(goals.phrasings),
        phrasings={"unseen": lambda kind: [(say, g) for g in scored if g.kind == kind for say in goals.held_out(g)]},
    )
    try:
        _look_over(skill, first)
    finally:
        shut(first)
    return skill


def _world(env: str, agent: Agent, goals: Goals, limit_s: float, worlds: set[OpenWorld]) -> Judged:
    if env.endswith(".py") or is_gym(env):
        world = user_world(env, goals, limit_s, [tool.name for tool in agent.tools])
        checked: Any = OpenWorld(env, world, agent.tools, worlds)
        return checked
    if (bundled := registry.skill(env)) is None:
        raise UserError(f"The world {env} cannot be used for training.", "Give a .py file, or a bundled environment.")
    return bundled.make()


def _look_over(skill: UserSkill, world: Any) -> None:
    """Try the skill's expert and tools on one goal of each kind. Raises UserError for the first defect."""
    for goal in {goal.kind: goal for goal in skill.all_goals.select(TRIED)}.values():
        world.judge_by(goal)
        world.reset(0)
        data = world.observe()
        fit(skill.agent, skill.name, getattr(world, "functions", world.bindings), Observation(0, 0, 0, data))
        skill.expert(data, goal)
    check_random(skill.agent.tools.schemas)


def expert_call(expert: UserExpert, data: Mapping[str, Any], goal: Goal) -> Call:
    """Return the expert's call for an observation and a goal. Raises UserError if the expert fails or gives no call."""
    name = expert.agent.name
    try:
        calls = expert.calls(data, goal)
    except ExpertError as error:
        raise UserError(f"The expert of the agent {name} fails: {error}.", "Correct it there.") from error
    if not calls:
        problem = f'The expert of the agent {name} returned no call for the goal "{goal.text()}".'
        raise UserError(problem, "Return the call that continues.")
    return calls[0]


class _Texts:
    """A cache from the texts of an agent's observations to the latest raw observation with that text."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.observed: dict[str, Mapping[str, Any]] = {}

    def observe(self, data: Mapping[str, Any]) -> str:
        text = self._agent.observe(data)
        self.observed.pop(text, None)
        self.observed[text] = copy.deepcopy(dict(data))
        if len(self.observed) > REMEMBERED:
            del self.observed[next(iter(self.observed))]  # drop the oldest, as alternating worlds need the others
        return text


class OpenWorld:
    """A user's world in the form of `Judged`, which is in the set `open` until it is closed.

    Its exceptions become UserErrors with the line of the user's code. As in a run, a tool that the world does not bind
    is executed by the tool's own function.
    """

    def __init__(self, env: str, world: UserWorld, tools: Tools, open: set[OpenWorld]) -> None:
        self._env, self._world, self._open = env, world, open
        open.add(self)
        self.functions = world.bindings
        names = {tool.name for tool in tools}
        bound = tools.bind(**{name: world.bindings[name] for name in names & set(world.bindings)})
        self.bindings = {tool.name: partial(self._call, tool.name, partial(_act, bound, tool)) for tool in bound}

    def close(self) -> None:
        if self in self._open:
            self._open.remove(self)
            self._call("close", self._world.close)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._world, name)
        return partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"The world {self._env}: {name}() raised {reason(error)}.", CORRECT) from error


def _act(tools: Tools, tool: Tool, /, **arguments: Any) -> None:
    run_to_completion(tool.function, **tools.convert(Call(tool.name, arguments)))


# -- `rtcontrol check` ------------------------------------------------------------------------------------------------


def check_world(world: str, agent: str | None = None, *, steps: int, seed: int) -> list[str]:
    """Test a world (`gym:ID`, a .py file, or a bundled one), and return the results as lines of text.

    One instance is created on its thread, reset twice to `seed`, played by its agent's expert, called at random for
    `steps` steps, and closed. Raises UserError for the first defect.
    """
    with closing(WorldThread(world)) as thread:
        if world.endswith(".py"):
            load_module(world, "--env")  # on the main thread, as the file may set up signal handlers
        chosen = assembly.agent(agent or assembly.default_agent(world), world, thread)
        lines = thread.do(lambda: _Trial(world, chosen, seed, thread).lines(steps))
        thread.close()
        if thread.fault:
            hint = f"Correct its close(): it must end the current step within {CLOSE_S:g} s, without an exception."
            raise UserError(thread.fault, hint)
    return lines


class _Trial:
    """The test of a world, which runs on the world's thread."""

    def __init__(self, env: str, agent: Agent, seed: int, thread: WorldThread) -> None:
        self._env, self._agent, self._seed = env, agent, seed
        if env.endswith(".py") or is_gym(env):
            names = [tool.name for tool in agent.tools]
            thread.world = user_world(env, agent.goals, LIMIT_S, names, thread.world)
        elif (bundled := registry.skill(env)) is not None:
            thread.world = UserWorld(bundled.make(), env)
        else:
            raise assembly.unknown(env)
        self._world: Any = OpenWorld(env, thread.world, agent.tools, set())

    def lines(self, steps: int) -> list[str]:
        env, agent = self._env, self._agent
        self._world.instruct(agent.instruction)
        first, second = self._start(self._seed), self._start(self._seed)
        if jsonable(first) != jsonable(second):
            names = [str(n) for n in {**first, **second} if jsonable(first.get(n)) != jsonable(second.get(n))]
            problem = f"The world {env}: two resets with the seed {self._seed} differ (in {', '.join(names)})."
            raise UserError(problem, "Derive all random values from the seed, in each reset.")
        fit(agent, env, self._world.functions, Observation(0, 0, 0, first))
        calls = [random_call([tool], random.Random(0)).text() for tool in agent.tools.schemas]
        return [
            f"seen at the start: {printable(repr(first), SHOWN)}",
            f"which is read as: {printable(agent.observe(first), SHOWN)}",
            f"calls such as: {printable(', '.join(calls), SHOWN)}",
            *(f"warning: {printable(notice)}" for notice in notices(agent, Observation(0, 0, 0, first))),
            *self._by_expert(),
            self._at_random(steps),
        ]

    def _start(self, seed: int) -> dict[str, Any]:
        self._world.reset(seed)
        data = dict(self._world.observe())
        self._world.outcome()
        return data

    def _act(self, call: Call, steps: int) -> Episode | None:
        """Execute a call, then step the world `steps` times; return the episode if it ended, else None."""
        self._world.bindings[call.name](**call.arguments)
        for _ in range(steps):
            self._world.step()
            if (outcome := self._world.outcome()) is not None:
                return outcome
        return None

    def _by_expert(self) -> list[str]:
        """Let the agent's expert play every goal until the time is up, and return a line with the results."""
        if self._agent.expert is None or self._agent.goals is None:
            return []
        until_s, ends, world = time.monotonic() + PLAYED_S, list[bool](), self._world
        goals = list(self._agent.goals.select(MOST_GOALS))
        for goal in goals:
            world.judge_by(goal)
            data, carry = self._start(self._seed), StepCarry(world.step_s)
            outcome: Episode | None = None
            while outcome is None and time.monotonic() < until_s:
                check_observation(self._agent, self._env, data)
                call = expert_call(UserExpert(self._agent), data, goal)
                outcome = self._act(call, carry.steps(PERIOD_NS))
                data = dict(world.observe())
            if outcome is not None:
                ends.append(bool(outcome.success))
        return [f"tried: its expert played {len(ends)} of {len(goals)} goals to their end ({sum(ends)} succeeded)"]

    def _at_random(self, steps: int) -> str:
        """Step the world with random calls, episode after episode, and return a line with the result."""
        rng, ended = random.Random(self._seed), 0
        self._start(self._seed)
        for _ in range(steps):
            outcome = self._act(random_call(self._agent.tools.schemas, rng), 1)
            check_observation(self._agent, self._env, dict(self._world.observe()))
            if outcome is not None:
                ended += 1
                self._start(self._seed + ended)
        return f"tried: {steps} random calls, in which {ended} episodes ended"
