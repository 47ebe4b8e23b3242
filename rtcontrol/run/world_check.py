"""What is wrong with a world, for its author: everything at once, before anything flies in it."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rtcontrol.agents import Agent, Goal
from rtcontrol.agents.signatures import carry_out
from rtcontrol.envs import registry
from rtcontrol.envs.base import Observation
from rtcontrol.envs.thread import CLOSE_S, WorldThread
from rtcontrol.envs.user_world import UserWorld
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import random_call
from rtcontrol.run import assembly
from rtcontrol.run.check import FINITE, LONGEST_S, SHORTEST_S, infinite, misfits, unfit, unkept
from rtcontrol.run.skills import ENDS, GOALS, LIMIT_S, BlamedWorld, ExpertFlights
from rtcontrol.run.tools_only_agent import render
from rtcontrol.run.user_code import load_module
from rtcontrol.run.user_module import holds_agent, is_gym, user_world
from rtcontrol.telemetry.encoder import plain
from rtcontrol_client.console import printable

STEPS = 200
SHOWN = 400  # characters of what is shown

END_S = 2.0  # so long an end of the episode is waited for, where none came within the steps


@dataclass
class WorldCheck:
    """What a check gave: what is `wrong`, what `may` be meant as it is, what was `tried`, and what was not (`note`).
    `begins` shows the first observation as a world gives it and as a model reads it, and a call of each tool."""

    wrong: list[UserError] = field(default_factory=list)
    begins: dict[str, str] = field(default_factory=dict)
    may: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    note: str = ""


def check_world(
    world: str, agent: str | None = None, goals: Path | None = None, *, steps: int = STEPS, seed: int = 0
) -> list[UserError]:
    """All that is found wrong with a world (`gym:ID`, a .py file, or a bundled one), with `what` and `remedy` each;
    empty where nothing is. What may be meant as it is (episodes without an end, a `step_s` of 50 s) is warned of
    (`warnings`).

    One instance is made on a thread of its own, reset twice to the same `seed`, flown by the expert of its `agent` (a
    bundled name or a .py file; None: its own, and where it has none it is stepped without calls) for each goal (of the
    file `goals`, where one is given) and from several seeds as far as some seconds allow, called at random for so many
    `steps` with the agent's tools, and closed.
    """
    checked = check(world, agent, goals, steps=steps, seed=seed)
    for line in checked.may:
        warnings.warn(line, stacklevel=2)
    return checked.wrong


def check(world: str, agent: str | None = None, goals: Path | None = None, *, steps: int, seed: int) -> WorldCheck:
    """`check_world`, with what may be meant and what was tried."""
    checked = WorldCheck()
    found = checked.wrong
    with closing(WorldThread(world)) as thread:
        try:  # here: what files and modules set up once may be for the main thread alone
            if world.endswith(".py"):
                load_module(world, "--env")
        except UserError as error:
            return WorldCheck([error])
        chosen = _tried(found, lambda: _agent(world, agent, goals, thread))
        if not found or not is_gym(world) or thread.world is not None:
            failed = bool(found)
            found += thread.do(lambda: list(_findings(world, chosen, failed, steps, seed, thread, checked)))
        thread.close()
        if thread.fault:
            remedy = f"Correct its close(): it ends, with the step under way, within {CLOSE_S:g} s, and raises nothing."
            found.append(UserError(thread.fault, remedy))
    checked.wrong = list({str(one): one for one in found}.values())
    return checked


def _findings(
    env: str, chosen: Agent | None, failed: bool, steps: int, seed: int, thread: WorldThread, checked: WorldCheck
) -> Iterator[UserError]:
    """`failed`: there is an agent, and it cannot be read."""
    found: list[UserError] = []
    tried = partial(_tried, found)
    made: UserWorld | None = tried(lambda: _made(env, chosen, thread))
    yield from found
    if made is None:
        return
    found.clear()
    if not SHORTEST_S <= made.step_s <= LONGEST_S:
        checked.may.append(_odd_step(env, made.step_s))
    if chosen is None and made.untold:  # whatever it raises may follow from that
        missing = "correct its agent first" if failed else "give its agent, --agent FILE.py"
        checked.note = f"it was not played, as nobody can tell it a goal: {missing}"
        return
    if chosen is None and not failed:
        checked.note = "it was stepped without calls, as no --agent has tools for it"
    looked = BlamedWorld(env, made, None if chosen is None else chosen.tools, set())
    tried(lambda: _told(looked, chosen))
    if (seen := tried(lambda: _begun(looked, seed))) is not None:
        again = tried(lambda: _begun(looked, seed))
        if again is not None and plain(seen) != plain(again):
            what = f"The world {env}: two resets to the seed {seed} are not the same ({_differing(seen, again)})."
            yield UserError(what, "Draw all that is random from the seed, anew in each reset.")
        place: Any = SimpleNamespace(name=env, bindings=looked.functions)
        wrong = [*(unkept(env, seen) if chosen is None else misfits(chosen, place, Observation(0, 0, 0, seen)))]
        yield from wrong
        if not wrong:
            checked.begins = _begins(seen, chosen)
            played = _Played(env, looked, chosen, checked)
            played.fly(seed)
            tried(lambda: played.at_random(steps, seed))
            yield from played.wrong
    yield from found


def _odd_step(env: str, step_s: float) -> str:
    if step_s > LONGEST_S:
        hz = f"{1 / step_s:.3g}"
        how = f"decisions of 16 Hz are {16 * step_s:.3g} to a step. Where that is meant, run it with --hz {hz}"
    else:
        how = f"a decision of 16 Hz has {1 / 16 / step_s:.3g} steps. Where that is meant, run it with --clock lockstep"
    return f"The world {env} has step_s = {step_s:g}, the seconds of one step() (0.02, say): {how}."


def _tried(found: list[UserError], act: Callable[[], Any]) -> Any:
    try:
        return act()
    except UserError as error:
        found.append(error)
        return None


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


def _told(world: BlamedWorld, chosen: Agent | None) -> None:
    if chosen is None:
        return
    world.instruct(chosen.instruction)
    if chosen.goals is not None:
        for goal in chosen.goals.spread(GOALS):
            world.judge_by(goal)


def _begun(world: BlamedWorld, seed: int) -> Any:
    world.reset(seed)
    seen = world.observe()
    world.outcome()
    return dict(seen)


def _begins(seen: dict[str, Any], chosen: Agent | None) -> dict[str, str]:
    shown = {"seen at the start": printable(repr(seen), SHOWN)}
    if chosen is not None:
        calls = [random_call([tool], random.Random(0)).text() for tool in chosen.tools.schemas]
        shown["which is read as"] = printable(str(chosen.observe(seen)), SHOWN)
        shown["calls such as"] = printable(", ".join(calls), SHOWN)
    return shown


def _differing(seen: dict[str, Any], again: dict[str, Any]) -> str:
    names = [str(name) for name in {**seen, **again} if plain(seen.get(name)) != plain(again.get(name))]
    return f"they differ in {', '.join(names[:8])}"


class _Played:
    """One world, played: `wrong` is what is found. A world that raises is left: what follows may follow from that."""

    def __init__(self, env: str, world: BlamedWorld, chosen: Agent | None, checked: WorldCheck) -> None:
        self._env, self._world, self._chosen, self._checked = env, world, chosen, checked
        self._flights = None if chosen is None or chosen.goals is None else ExpertFlights(env, chosen, world)
        self.wrong: list[UserError] = []

    def fly(self, seed: int) -> None:
        """By the agent's own expert, as far as some seconds allow."""
        flights = self._flights
        if flights is not None and flights.expert is not None:
            flights.fly(seed, self._look)
            self._checked.tried.append(flights.message())
            self.wrong += flights.wrong

    def at_random(self, steps: int, seed: int) -> None:
        """Random calls (without an agent none), episode after episode, and the expert is asked beside them."""
        rng, ended, world = random.Random(seed), 0, self._world
        goal = None if self._flights is None else self._flights.goal(0)
        self._begin(seed, goal)
        for _ in range(steps):
            if self._chosen is not None:
                call = random_call(self._chosen.tools.schemas, rng)
                carry_out(world.bindings[call.name], **call.arguments)
            world.step()
            seen = dict(world.observe())
            self._look(seen)
            if self._flights is not None and goal is not None:
                self.wrong += self._flights.ask(seen, goal)
            if world.outcome() is not None:
                ended += 1
                goal = None if self._flights is None else self._flights.goal(ended)
                self._begin(seed + ended, goal)
        calls = "steps without calls" if self._chosen is None else "random calls"
        self._checked.tried.append(f"{steps} {calls}, in which {ended or 'no'} episode{'s' * (ended > 1)} ended")
        if steps and self._env.endswith(".py"):
            self._idle(seed)

    def _begin(self, seed: int, goal: Goal | None) -> None:
        if goal is not None:
            self._world.judge_by(goal)
        self._world.reset(seed)

    def _idle(self, seed: int) -> None:
        """The safe call alone, for each kind of goal as far as the time lasts: an episode must end, too, where nothing
        succeeds."""
        until, world, chosen = time.monotonic() + END_S, self._world, self._chosen
        still = None if chosen is None else chosen.fallback.safe_call
        for goal in [None] if self._flights is None else self._flights.kinds:
            self._begin(seed, goal)
            if still is not None:
                carry_out(world.bindings[still.name], **still.arguments)
            for steps in count(1):
                world.step()
                if time.monotonic() > until or world.outcome() is not None:
                    break
                if steps * world.step_s >= LIMIT_S:
                    calls = "no calls" if still is None else f"{still.text()} alone"
                    told = "" if goal is None else f'told "{goal.text()}", '
                    what = f"{told}an episode of {calls} has not ended after {LIMIT_S:g} s of its own time"
                    self._endless(f"The world {self._env}: {what} ({steps} steps).")
                    return

    def _endless(self, what: str) -> None:
        if self._flights is not None and self._flights.expert is not None:
            self.wrong.append(UserError(what, ENDS))
        else:
            self._checked.may.append(f"{what} A run goes on until it is stopped. {ENDS}")

    def _look(self, seen: dict[str, Any]) -> None:
        """Whether it can be read, and recorded."""
        if self.wrong:
            return
        env, chosen = self._env, self._chosen
        self.wrong.extend(unkept(env, seen) if chosen is None else unfit(chosen, env, Observation(0, 0, 0, seen)))
        odd = next(infinite(seen), None)
        if self.wrong or odd is None or is_gym(env):
            return
        what = f"The environment {env}: what observe() gave holds {odd}"
        if chosen is None or chosen.observe is render:
            self.wrong.append(UserError(f"{what}.", FINITE))
        elif not any("holds" in line for line in self._checked.may):
            self._checked.may.append(f"{what}, which the agent {chosen.name} reads; a record gives back a text for it.")
