"""A world and an agent, bundled or of the user's own, as the skill that is trained and scored."""

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
from rtcontrol.agents.signatures import carry_out
from rtcontrol.envs import registry
from rtcontrol.envs.base import Episode, Observation
from rtcontrol.envs.skill import Judged, Skill, StepCarry
from rtcontrol.envs.thread import CLOSE_S, WorldThread, shut
from rtcontrol.envs.user_world import UserWorld
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import check_random, random_call
from rtcontrol.run import assembly
from rtcontrol.run.check import check_observation, fit
from rtcontrol.run.user_code import load_module, reason, remedy_of
from rtcontrol.run.user_module import ExpertError, UserExpert, is_gym, user_world
from rtcontrol.telemetry.encoder import plain
from rtcontrol_client.console import printable

# An episode of a world of one's own that lasts longer than this, in its own time, is taken for one that never ends.
LIMIT_S = 300.0
ASKED, ASKED_S = 40, 2.0  # goals that the expert is asked about before anything begins, and how long
REMEMBERED = 65_536  # observations: held-out rows are asked about long after they were seen
SCORED = 8  # goals, or one of each kind
# Of `rtcontrol check`: the expert plays so long, so many goals; characters of what is shown; the time of a tick.
PLAYED_S, MOST_GOALS, SHOWN, PERIOD_NS = 7.0, 1_000, 400, round(1e9 / 16)


@dataclass(frozen=True, kw_only=True)
class UserSkill(Skill):
    """A skill whose goals and expert are the user's: whatever of theirs raises, or gives what it must not, is a
    UserError with their file and line. It is scored by a few of `all_goals`, and by the ways to say them that are held
    out. Whoever makes a world closes it; `open` are those that nobody has closed yet."""

    agent: Agent
    all_goals: Goals
    step_s: float
    open: set[BlamedWorld] = field(default_factory=set)

    def close(self) -> None:
        """Close the worlds that were made and are open yet, each, whichever fails. UserError for those that do."""
        with ExitStack() as worlds:
            for world in self.open.copy():
                worlds.callback(world.close)


def skill_of(env: str, agent: str | None = None, limit_s: float = LIMIT_S) -> Skill:
    """The skill of a bundled environment, or of one's own: a world (a .py file, or a bundled one) and an agent's file
    with goals and expert. UserError where something of it is missing."""
    chosen = assembly.agent(agent or assembly.default_agent(env), env)
    if chosen.goals is None or chosen.expert is None:
        bundled = registry.skill(env)
        if bundled is not None and agent in (None, registry.WORLDS[env].agent):
            return bundled
        has, lacks = ("goals", "expert") if chosen.goals is not None else ("tools", "goals")
        file = "an agent's file, and give it with --agent FILE.py" if agent is None else "its file"
        raise UserError(
            f"The agent {chosen.name} has {has} and no {lacks}: nobody knows what would be right.",
            f"Write `goals = {{...}}` and `def expert(data, goal): ...` in {file} (docs/your-own-game.md).",
        )
    if (still := chosen.fallback.safe_call) is None:
        raise UserError(
            f"The agent {chosen.name} has no call that is safe.", 'Write `fallback = Call("stop")`: what does nothing.'
        )
    words, told = _Words(chosen), chosen.goals
    scored = tuple(told.spread(max(SCORED, len(told.ways))))
    worlds: set[BlamedWorld] = set()
    make: Callable[[], Judged] = partial(_made, env, chosen, chosen.goals, limit_s, worlds)
    first = make()
    skill = UserSkill(
        name=env if is_gym(env) else Path(env).stem,
        make=make,
        observe=words.observe,
        read_back=words.read_back,
        recognise=chosen.goals.recognise,
        expert=partial(expert_call, UserExpert(chosen)),
        still=still,
        any_call=partial(random_call, chosen.tools.schemas),
        agent=chosen,
        all_goals=told,
        step_s=first.step_s,
        open=worlds,
        goals=scored,
        kinds=tuple(told.ways),
        phrasings={"unseen": lambda kind: [(said, g) for g in scored if g.kind == kind for said in told.held_out(g)]},
    )
    try:
        _look_over(skill, first)
    finally:
        shut(first)
    return skill


def _look_over(skill: UserSkill, world: Any) -> None:
    """What is wrong with it is told before anything begins."""
    bindings = getattr(world, "functions", world.bindings)
    started = time.monotonic()
    seen: dict[str, Any] = {}  # by kind of goal: a reset may be slow
    for goal in skill.all_goals.spread(ASKED):
        if goal.kind not in seen:
            if seen and time.monotonic() - started > ASKED_S:
                break
            world.judge_by(goal)
            world.reset(0)
            seen[goal.kind] = world.observe()
            if len(seen) == 1:
                fit(skill.agent, skill.name, bindings, Observation(0, 0, 0, seen[goal.kind]))
        skill.expert(seen[goal.kind], goal)
    check_random(skill.agent.tools.schemas)


def _made(env: str, agent: Agent, goals: Goals, limit_s: float, worlds: set[BlamedWorld]) -> Judged:
    if not (env.endswith(".py") or is_gym(env)):
        bundled = registry.skill(env)
        if bundled is None:
            raise UserError(f"The world {env} cannot be trained in.", "Give a .py file, or a bundled environment.")
        return bundled.make()
    made = user_world(env, goals, limit_s, [tool.name for tool in agent.tools])
    return BlamedWorld(env, made, agent.tools, worlds)


def expert_call(expert: UserExpert, data: Mapping[str, Any], goal: Goal) -> Call:
    """What the expert calls. UserError where it raises, or gives no legal call."""
    try:
        call = expert.call(data, goal)
    except ExpertError as error:
        raise UserError(f"The expert of the agent {expert.agent.name} fails: {error}.", "Correct it there.") from error
    if call is None:
        raise UserError(
            f'The expert of the agent {expert.agent.name}, told "{goal.text()}", gave no call.',
            "Give the call that goes on.",
        )
    return call


def check_world(world: str, agent: str | None = None, *, steps: int, seed: int) -> list[str]:
    """Return what of a world (`gym:ID`, a .py file, or a bundled one) was seen and tried. Raises UserError for the
    first thing that is wrong.

    One instance is made on its thread, reset twice to `seed`, played by its agent's expert, called at random for so
    many `steps`, and closed.
    """
    with closing(WorldThread(world)) as thread:
        if world.endswith(".py"):
            load_module(world, "--env")  # here: what it sets up once may be for the main thread alone
        chosen = assembly.agent(agent or assembly.default_agent(world), world, thread)
        lines = thread.do(lambda: _tried(world, chosen, steps, seed, thread))
        thread.close()
        if thread.fault:
            remedy = f"Correct its close(): it ends, with the step under way, within {CLOSE_S:g} s, and raises nothing."
            raise UserError(thread.fault, remedy)
    return lines


def _tried(env: str, chosen: Agent, steps: int, seed: int, thread: WorldThread) -> list[str]:
    if env.endswith(".py") or is_gym(env):
        names = [tool.name for tool in chosen.tools]
        thread.world = user_world(env, chosen.goals, LIMIT_S, names, thread.world)
    elif (bundled := registry.skill(env)) is not None:
        thread.world = UserWorld(bundled.make(), env)
    else:
        raise assembly.unknown(env)
    world = BlamedWorld(env, thread.world, chosen.tools, set())
    world.instruct(chosen.instruction)
    seen, again = _start(world, seed), _start(world, seed)
    if plain(seen) != plain(again):
        names = [str(name) for name in {**seen, **again} if plain(seen.get(name)) != plain(again.get(name))]
        what = f"The world {env}: two resets to the seed {seed} are not the same (they differ in {', '.join(names)})."
        raise UserError(what, "Draw all that is random from the seed, anew in each reset.")
    fit(chosen, env, world.functions, Observation(0, 0, 0, seen))
    calls = [random_call([tool], random.Random(0)).text() for tool in chosen.tools.schemas]
    return [
        f"seen at the start: {printable(repr(seen), SHOWN)}",
        f"which is read as: {printable(chosen.observe(seen), SHOWN)}",
        f"calls such as: {printable(', '.join(calls), SHOWN)}",
        *_by_expert(env, world, chosen, seed),
        _at_random(env, world, chosen, steps, seed),
    ]


def _start(world: BlamedWorld, seed: int) -> dict[str, Any]:
    world.reset(seed)
    seen = dict(world.observe())
    world.outcome()
    return seen


def _by_expert(env: str, world: BlamedWorld, chosen: Agent, seed: int) -> list[str]:
    """Play each goal by the agent's expert, as far as the time allows."""
    if chosen.expert is None or chosen.goals is None:
        return []
    until_s, ends, expert = time.monotonic() + PLAYED_S, list[bool](), UserExpert(chosen)
    goals = list(chosen.goals.spread(MOST_GOALS))
    for goal in goals:
        world.judge_by(goal)
        seen, carry = _start(world, seed), StepCarry(world.step_s)
        outcome: Episode | None = None
        while outcome is None and time.monotonic() < until_s:
            check_observation(chosen, env, seen)
            call = expert_call(expert, seen, goal)
            world.bindings[call.name](**call.arguments)
            for _ in range(carry.steps(PERIOD_NS)):
                world.step()
                if (outcome := world.outcome()) is not None:
                    break
            seen = dict(world.observe())
        if outcome is not None:
            ends.append(bool(outcome.success))
    return [f"tried: its expert played {len(ends)} of {len(goals)} goals to their end ({sum(ends)} succeeded)"]


def _at_random(env: str, world: BlamedWorld, chosen: Agent, steps: int, seed: int) -> str:
    """Step with random calls, episode after episode."""
    rng, ended = random.Random(seed), 0
    _start(world, seed)
    for _ in range(steps):
        call = random_call(chosen.tools.schemas, rng)
        world.bindings[call.name](**call.arguments)
        world.step()
        check_observation(chosen, env, dict(world.observe()))
        if world.outcome() is not None:
            ended += 1
            _start(world, seed + ended)
    return f"tried: {steps} random calls, in which {ended} episodes ended"


class _Words:
    """An agent's words for observations, and which observation they were for: the last one that was worded so."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._seen: dict[str, Mapping[str, Any]] = {}

    def observe(self, data: Mapping[str, Any]) -> str:
        text = _blamed(f"the agent {self._agent.name}: observe()", self._agent.observe, data)
        if not isinstance(text, str):
            raise UserError(
                f"The agent {self._agent.name}: observe() gave {type(text).__name__}, no text.", "Return a str."
            )
        self._seen.pop(text, None)
        self._seen[text] = copy.deepcopy(dict(data))
        if len(self._seen) > REMEMBERED:
            # The oldest: others may still be asked for by worlds that are flown beside this one.
            del self._seen[next(iter(self._seen))]
        return text

    def read_back(self, text: str) -> Mapping[str, Any]:
        """The observation; KeyError for words that were never used."""
        return self._seen[text]


class BlamedWorld:
    """Implements `Judged` over a world of the user's: what it raises is a UserError with its line. It is one of the
    `open` ones until it is closed."""

    def __init__(self, file: str, world: UserWorld, tools: Tools, open: set[BlamedWorld]) -> None:
        self._open = open
        open.add(self)
        self._world, self._of = world, f"The world {file}"
        self.step_s = world.step_s
        # As in a run: a tool that the world has no function for is executed by its own.
        self.functions = world.bindings
        functions = {tool.name: tool.function for tool in tools} | dict(world.bindings)
        self.bindings: Mapping[str, Callable[..., Any]] = {
            t.name: partial(self._act, tools, t.name, functions[t.name]) for t in tools
        }

    def _act(self, tools: Tools, name: str, function: Callable[..., Any], /, **arguments: Any) -> None:
        _blamed(f"{self._of}: {name}()", function, **tools.convert(Call(name, arguments)))

    def reset(self, seed: int) -> None:
        _blamed(f"{self._of}: reset({seed})", self._world.reset, seed)

    def step(self) -> None:
        _blamed(f"{self._of}: step()", self._world.step)

    def observe(self) -> Mapping[str, Any]:
        seen: Mapping[str, Any] = _blamed(f"{self._of}: observe()", self._world.observe)
        return seen

    def outcome(self) -> Episode | None:
        ended: Episode | None = _blamed(f"{self._of}: outcome()", self._world.outcome)
        return ended

    def instruct(self, text: str) -> None:
        _blamed(f"{self._of}: instruct()", self._world.instruct, text)

    def close(self) -> None:
        if self in self._open:
            self._open.remove(self)
            _blamed(f"{self._of}: close()", self._world.close)

    def judge_by(self, goal: Any) -> None:
        _blamed(f'{self._of}: told "{goal.text()}"', self._world.judge_by, goal)


def _blamed(what: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    try:
        return carry_out(function, *given, **named)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what[0].upper()}{what[1:]} raised {reason(error)}.", remedy_of(error)) from error
