"""A world and an agent, bundled or the user's, as the skill that is trained and scored; and the check of a world."""

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
    reason,
    user_world,
)
from rtcontrol.telemetry.events import plain
from rtcontrol_client.console import printable

LIMIT_S = 300.0  # an episode that lasts longer, in its own time, counts as one that never ends
TRIED = 40  # goals, of which the expert decides for one of each kind before anything starts
REMEMBERED = 65_536  # observations: held-out rows come back to them long after
SCORED = 8  # goals, or one of each kind
# Of `rtcontrol check`: how long the expert plays, how many goals; characters that are shown; the time of a tick.
PLAYED_S, MOST_GOALS, SHOWN, PERIOD_NS = 7.0, 1_000, 400, round(1e9 / 16)


@dataclass(frozen=True, kw_only=True)
class UserSkill(Skill):
    """A skill whose goals and expert are the user's.

    It is scored by a few of `all_goals`, and by the ways to say them that are held out. The maker of a world closes it;
    `open` are those that are not closed yet.
    """

    agent: Agent
    all_goals: Goals
    step_s: float
    open: set[OpenWorld] = field(default_factory=set)

    def close(self) -> None:
        """Close the worlds that are open yet, each, whichever fails. Raises UserError for those that do."""
        with ExitStack() as worlds:
            for world in self.open.copy():
                worlds.callback(world.close)


def skill_of(env: str, agent: str | None = None, limit_s: float = LIMIT_S) -> Skill:
    """Return the skill of a bundled environment, or of a world and an agent's file with goals and expert. Raises
    UserError where something of it is missing."""
    chosen = assembly.agent(agent or assembly.default_agent(env), env)
    goals = chosen.goals
    if goals is None or chosen.expert is None:
        bundled = registry.skill(env)
        if bundled is not None and agent in (None, registry.WORLDS[env].agent):
            return bundled
        raise UserError(
            f"The agent {chosen.name} has no {'goals' if goals is None else 'expert'}: what is right is not known.",
            "Write `goals = {...}` and `def expert(data, goal): ...` in its file, and give it with --agent FILE.py "
            "(docs/your-own-game.md).",
        )
    if (still := chosen.fallback.safe_call) is None:
        raise UserError(
            f"The agent {chosen.name} has no call that is safe.", 'Write `fallback = Call("stop")`: what does nothing.'
        )
    texts, scored = _Texts(chosen), tuple(goals.spread(max(SCORED, len(goals.ways))))
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
        kinds=tuple(goals.ways),
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
        raise UserError(f"The world {env} cannot be trained in.", "Give a .py file, or a bundled environment.")
    return bundled.make()


def _look_over(skill: UserSkill, world: Any) -> None:
    """Raise UserError for what is wrong with it, before anything starts."""
    for goal in {goal.kind: goal for goal in skill.all_goals.spread(TRIED)}.values():
        world.judge_by(goal)
        world.reset(0)
        data = world.observe()
        fit(skill.agent, skill.name, getattr(world, "functions", world.bindings), Observation(0, 0, 0, data))
        skill.expert(data, goal)
    check_random(skill.agent.tools.schemas)


def expert_call(expert: UserExpert, data: Mapping[str, Any], goal: Goal) -> Call:
    """Return what the expert calls now. Raises UserError where it raises, or gives no legal call."""
    name = expert.agent.name
    try:
        calls = expert.calls(data, goal)
    except ExpertError as error:
        raise UserError(f"The expert of the agent {name} fails: {error}.", "Correct it there.") from error
    if not calls:
        problem = f'The expert of the agent {name}, told "{goal.text()}", gave no call.'
        raise UserError(problem, "Give the call that continues.")
    return calls[0]


class _Texts:
    """An agent's texts, and the observation that each one was of, the last one."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.observed: dict[str, Mapping[str, Any]] = {}

    def observe(self, data: Mapping[str, Any]) -> str:
        text = self._agent.observe(data)
        self.observed.pop(text, None)
        self.observed[text] = copy.deepcopy(dict(data))
        if len(self.observed) > REMEMBERED:
            del self.observed[next(iter(self.observed))]  # the oldest: worlds that run in turns need the others
        return text


class OpenWorld:
    """A user's world as `Judged`, one of the `open` ones until it is closed: what it raises is a UserError with its
    line. A tool that it has no function for is executed by the tool's, as in a run."""

    def __init__(self, env: str, world: UserWorld, tools: Tools, open: set[OpenWorld]) -> None:
        self._env, self._world, self._open = env, world, open
        open.add(self)
        self.functions = world.bindings
        names = {tool.name for tool in tools}
        bound = tools.bind(**{name: world.bindings[name] for name in names & set(world.bindings)})
        self.bindings = {name: partial(self._call, name, partial(_act, bound, name)) for name in names}

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


def _act(tools: Tools, name: str, /, **arguments: Any) -> None:
    tools.execute(Call(name, arguments))


# -- `rtcontrol check` ------------------------------------------------------------------------------------------------


def check_world(world: str, agent: str | None = None, *, steps: int, seed: int) -> list[str]:
    """Try a world (`gym:ID`, a .py file, or a bundled one), and return what it showed.

    One instance is made on its thread, reset twice to `seed`, played by its agent's expert, called at random for so
    many `steps`, and closed. Raises UserError for the first thing that is wrong.
    """
    with closing(WorldThread(world)) as thread:
        if world.endswith(".py"):
            load_module(world, "--env")  # here: what it sets up once may be for the main thread alone
        chosen = assembly.agent(agent or assembly.default_agent(world), world, thread)
        lines = thread.do(lambda: _Trial(world, chosen, seed, thread).lines(steps))
        thread.close()
        if thread.fault:
            hint = f"Correct its close(): it ends, with the step under way, within {CLOSE_S:g} s, and raises nothing."
            raise UserError(thread.fault, hint)
    return lines


class _Trial:
    """A world that is tried, on its thread."""

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
        if plain(first) != plain(second):
            names = [str(name) for name in {**first, **second} if plain(first.get(name)) != plain(second.get(name))]
            problem = f"The world {env}: two resets to the seed {self._seed} are not the same (in {', '.join(names)})."
            raise UserError(problem, "Draw all that is random from the seed, in each reset.")
        fit(agent, env, self._world.functions, Observation(0, 0, 0, first))
        calls = [random_call([tool], random.Random(0)).text() for tool in agent.tools.schemas]
        return [
            f"seen at the start: {printable(repr(first), SHOWN)}",
            f"which is read as: {printable(agent.observe(first), SHOWN)}",
            f"calls such as: {printable(', '.join(calls), SHOWN)}",
            *self._by_expert(),
            self._at_random(steps),
        ]

    def _start(self, seed: int) -> dict[str, Any]:
        self._world.reset(seed)
        data = dict(self._world.observe())
        self._world.outcome()
        return data

    def _act(self, call: Call, steps: int) -> Episode | None:
        """Execute a call and make so many steps; return how the episode ended, if it did."""
        self._world.bindings[call.name](**call.arguments)
        for _ in range(steps):
            self._world.step()
            if (outcome := self._world.outcome()) is not None:
                return outcome
        return None

    def _by_expert(self) -> list[str]:
        """Play each goal by the agent's expert, as far as the time allows."""
        if self._agent.expert is None or self._agent.goals is None:
            return []
        until_s, ends, world = time.monotonic() + PLAYED_S, list[bool](), self._world
        goals = list(self._agent.goals.spread(MOST_GOALS))
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
        """Step with random calls, episode after episode."""
        rng, ended = random.Random(self._seed), 0
        self._start(self._seed)
        for _ in range(steps):
            outcome = self._act(random_call(self._agent.tools.schemas, rng), 1)
            check_observation(self._agent, self._env, dict(self._world.observe()))
            if outcome is not None:
                ended += 1
                self._start(self._seed + ended)
        return f"tried: {steps} random calls, in which {ended} episodes ended"
