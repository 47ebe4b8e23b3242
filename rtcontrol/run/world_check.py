"""Find what is wrong with a world, for its author: everything at once, before a run."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rtcontrol.agents import Agent, Goal
from rtcontrol.agents.signatures import carry_out
from rtcontrol.envs import registry
from rtcontrol.envs.base import Observation
from rtcontrol.envs.skill import StepCarry
from rtcontrol.envs.thread import CLOSE_S, WorldThread
from rtcontrol.envs.user_world import UserWorld
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import random_call
from rtcontrol.run import assembly
from rtcontrol.run.check import FINITE, LONGEST_S, SHORTEST_S, infinite, misfits, unfit, unkept
from rtcontrol.run.skills import LIMIT_S, BlamedWorld, expert_call
from rtcontrol.run.user_code import load_module
from rtcontrol.run.user_module import UserExpert, holds_agent, is_gym, render, user_world
from rtcontrol.telemetry.encoder import plain
from rtcontrol_client.console import printable

SEEDS, GOALS = 3, 1_000  # of the expert's episodes, at most
FLOWN_S = 7.0  # the expert plays so long
SHOWN = 400  # characters of what is shown
PERIOD_NS = round(1e9 / 16)


@dataclass
class WorldCheck:
    """What is `wrong`, what `may` be meant as it is, what was `tried`, and what was not (`note`). `begins` shows the
    first observation as a world gives it and as a model reads it, and a call of each tool."""

    wrong: list[UserError] = field(default_factory=list)
    begins: dict[str, str] = field(default_factory=dict)
    may: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    note: str = ""

    def add(self, error: UserError) -> None:
        """Add an error once: of an expert's errors one for each line of its code."""
        if _place(error) not in map(_place, self.wrong):
            self.wrong.append(error)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Add a UserError that is raised meanwhile."""
        try:
            yield
        except UserError as error:
            self.add(error)


def check(world: str, agent: str | None = None, goals: Path | None = None, *, steps: int, seed: int) -> WorldCheck:
    """Find what is wrong with a world (`gym:ID`, a .py file, or a bundled one).

    One instance is made on its own thread, reset twice to the same `seed`, played by the expert of its `agent` (a
    bundled name or a .py file; None: its own, and where it has none it is stepped without calls) for each goal (of the
    file `goals`, where one is given) and from several seeds as far as some seconds allow, called at random for so many
    `steps` with the agent's tools, and closed.
    """
    checked, chosen = WorldCheck(), None
    with closing(WorldThread(world)) as thread:
        with checked.collecting():  # on this thread: what files set up once may be for the main thread alone
            if world.endswith(".py"):
                load_module(world, "--env")
        if checked.wrong:
            return checked
        with checked.collecting():
            chosen = _agent(world, agent, goals, thread)
        if not checked.wrong or not is_gym(world) or thread.world is not None:
            with checked.collecting():
                thread.do(lambda: _play(world, chosen, steps, seed, thread, checked))
        thread.close()
        if thread.fault:
            remedy = f"Correct its close(): it ends, with the step under way, within {CLOSE_S:g} s, and raises nothing."
            checked.add(UserError(thread.fault, remedy))
    return checked


def _play(env: str, chosen: Agent | None, steps: int, seed: int, thread: WorldThread, checked: WorldCheck) -> None:
    """Make the world, look it over and play it. Raises UserError for what is wrong with the world itself."""
    made, failed = _made(env, chosen, thread), bool(checked.wrong)
    if not SHORTEST_S <= made.step_s <= LONGEST_S:
        what = f"The world {env} has step_s = {made.step_s:g}, the seconds of one step() (0.02, say)."
        checked.may.append(f"{what} Where that is meant, give --hz: a call lasts for a whole number of steps.")
    if chosen is None and made.untold:  # whatever it raises may follow from that
        missing = "correct its agent first" if failed else "give its agent, --agent FILE.py"
        checked.note = f"it was not played, as no agent gives it a goal: {missing}"
        return
    if chosen is None and not failed:
        checked.note = "it was stepped without calls, as no --agent has tools for it"
    world = BlamedWorld(env, made, None if chosen is None else chosen.tools, set())
    if chosen is not None:
        world.instruct(chosen.instruction)
    seen, again = _begin(world, seed), _begin(world, seed)
    if plain(seen) != plain(again):
        names = [str(name) for name in {**seen, **again} if plain(seen.get(name)) != plain(again.get(name))]
        what = f"The world {env}: two resets to the seed {seed} are not the same (they differ in {', '.join(names)})."
        checked.add(UserError(what, "Draw all that is random from the seed, anew in each reset."))
    place: Any = SimpleNamespace(name=env, bindings=world.functions)
    wrong = [*(unkept(env, seen) if chosen is None else misfits(chosen, place, Observation(0, 0, 0, seen)))]
    for error in wrong:
        checked.add(error)
    if wrong:
        return
    checked.begins = _begins(seen, chosen)
    goals: list[Goal | None] = [None]
    if chosen is not None and chosen.goals is not None:
        goals = [*_in_turn(chosen.goals.spread(GOALS))]
        if chosen.expert is not None:
            _by_expert(env, world, chosen, goals, seed, checked)
    _at_random(env, world, chosen, goals, steps, seed, checked)


def _agent(env: str, agent: str | None, goals: Path | None, thread: WorldThread) -> Agent | None:
    if env in assembly.JOINED:
        known = ", ".join(registry.WORLDS)
        raise UserError(f"{env} is no world of this process.", f"Check one of {known}, gym:ID, or a .py file.")
    if agent is None and env.endswith(".py") and not holds_agent(load_module(env, "--env")):
        if goals is not None:
            raise UserError(f"--goals {goals}: they are an agent's, and there is none.", "Give --agent FILE.py, too.")
        return None
    return assembly.agent(agent or assembly.default_agent(env), goals, env, thread)


def _made(env: str, chosen: Agent | None, thread: WorldThread) -> UserWorld:
    goals, tools = (None, ()) if chosen is None else (chosen.goals, [tool.name for tool in chosen.tools])
    if env.endswith(".py") or is_gym(env):
        thread.world = user_world(env, goals, None, tools, thread.world)
    else:
        bundled = registry.skill(env)
        if bundled is None:
            raise assembly.unknown(env)
        thread.world = UserWorld(bundled.make(), env)
    made: UserWorld = thread.world
    return made


def _begin(world: BlamedWorld, seed: int, goal: Goal | None = None) -> dict[str, Any]:
    if goal is not None:
        world.judge_by(goal)
    world.reset(seed)
    seen = dict(world.observe())
    world.outcome()
    return seen


def _begins(seen: dict[str, Any], chosen: Agent | None) -> dict[str, str]:
    shown = {"seen at the start": printable(repr(seen), SHOWN)}
    if chosen is not None:
        calls = [random_call([tool], random.Random(0)).text() for tool in chosen.tools.schemas]
        shown["which is read as"] = printable(str(chosen.observe(seen)), SHOWN)
        shown["calls such as"] = printable(", ".join(calls), SHOWN)
    return shown


def _by_expert(
    env: str, world: BlamedWorld, chosen: Agent, goals: list[Goal | None], seed: int, checked: WorldCheck
) -> None:
    """Play episodes by the agent's expert, goal after goal from each seed, as far as the time allows."""
    until, ended, succeeded, expert = time.monotonic() + FLOWN_S, 0, 0, UserExpert(chosen)
    for one, goal in ((one, goal) for one in range(seed, seed + SEEDS) for goal in goals):
        assert goal is not None, "an agent with an expert has goals"
        seen, carry, steps, outcome = _begin(world, one, goal), StepCarry(world.step_s), 0, None
        while time.monotonic() < until and outcome is None:
            if _unseen(env, seen, chosen, checked):
                return
            try:
                call = expert_call(expert, seen, goal)
            except UserError as error:
                checked.add(error)
                break
            world.bindings[call.name](**call.arguments)
            for _ in range(carry.steps(PERIOD_NS)):
                world.step()
                steps += 1
                if (outcome := world.outcome()) is not None:
                    ended += 1
                    succeeded += bool(outcome.success)
                    break
            seen = dict(world.observe())
            if steps * world.step_s >= LIMIT_S:
                what = f'The world {env}: with "{goal.text()}", the expert\'s episode of seed {one} has not ended'
                remedy = "Return True or False from outcome() by then: fit and score need each episode to end."
                checked.add(UserError(f"{what} after {LIMIT_S:g} s of its own time ({steps} steps).", remedy))
                return
    done = f"its expert played {ended} of {SEEDS * len(goals)} episodes to their end"
    checked.tried.append(f"{done} ({succeeded} succeeded)")


def _at_random(
    env: str,
    world: BlamedWorld,
    chosen: Agent | None,
    goals: list[Goal | None],
    steps: int,
    seed: int,
    checked: WorldCheck,
) -> None:
    """Step with random calls (without an agent with none), episode after episode."""
    rng, ended = random.Random(seed), 0
    _begin(world, seed, goals[0])
    for _ in range(steps):
        if chosen is not None:
            call = random_call(chosen.tools.schemas, rng)
            carry_out(world.bindings[call.name], **call.arguments)
        world.step()
        if _unseen(env, dict(world.observe()), chosen, checked):
            return
        if world.outcome() is not None:
            ended += 1
            _begin(world, seed + ended, goals[ended % len(goals)])
    calls = "steps without calls" if chosen is None else "random calls"
    checked.tried.append(f"{steps} {calls}, in which {ended or 'no'} episode{'s' * (ended > 1)} ended")


def _unseen(env: str, seen: dict[str, Any], chosen: Agent | None, checked: WorldCheck) -> bool:
    """Add what is wrong with an observation, and return whether anything is."""
    wrong = [*(unkept(env, seen) if chosen is None else unfit(chosen, env, Observation(0, 0, 0, seen)))]
    odd = next(infinite(seen), None)
    if not wrong and odd is not None and not is_gym(env) and (chosen is None or chosen.observe is render):
        wrong.append(UserError(f"The environment {env}: what observe() gave holds {odd}.", FINITE))
    for error in wrong:
        checked.add(error)
    return bool(wrong)


def _place(error: UserError) -> str:
    """Return the line of the expert's that an error is about, else its text."""
    return getattr(error.__cause__, "place", "") or str(error)


def _in_turn(goals: list[Goal]) -> list[Goal]:
    """Return one goal of each kind, then the next of each."""
    seen = Counter[str]()
    turns = []
    for goal in goals:
        turns.append((seen[goal.kind], goal))
        seen[goal.kind] += 1
    return [goal for _, goal in sorted(turns, key=lambda one: one[0])]
