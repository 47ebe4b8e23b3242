"""A world and an agent, bundled or of the user's own, as the skill that is trained and scored."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rtcontrol.agents import Agent, Goal, Goals, Tools
from rtcontrol.envs import registry
from rtcontrol.envs.base import Episode, Observation
from rtcontrol.envs.own import OwnWorld
from rtcontrol.envs.skill import Judged, Skill
from rtcontrol.models.call import Call
from rtcontrol.models.domain import ClosedDomain
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import ToolSchema
from rtcontrol.run import assemble
from rtcontrol.run.fit import fit
from rtcontrol.run.users import ExpertError, OwnExpert, is_gym, own_world, reason

# An episode of a world of one's own that lasts longer than this, in its own time, is taken for one that never ends.
LIMIT_S = 300.0
ASKED, ASKED_S = 40, 2.0  # goals that the expert is asked about before anything begins, and how long
REMEMBERED = 65_536  # observations: held-out rows are asked about long after they were seen
SCORED = 8  # goals, or one of each kind


@dataclass(frozen=True, kw_only=True)
class OwnSkill(Skill):
    """A skill whose goals and expert are the user's: whatever of theirs raises, or gives what it must not, is a
    UserError with their file and line. It is scored by a few of `all_goals`, and by the ways to say them that are held
    out."""

    agent: Agent
    all_goals: Goals


def skill_of(env: str, agent: str | None = None, goals: Path | None = None, limit_s: float = LIMIT_S) -> Skill:
    """The skill of a bundled environment, or of one's own: a world (a .py file, or a bundled one) and an agent's file
    with goals and expert, or goals from the file `goals`. UserError where something of it is missing."""
    chosen = assemble.agent(agent or assemble.default_agent(env), goals, env)
    if chosen.goals is None or chosen.expert is None:
        bundled = registry.skill(env)
        if bundled is not None and agent in (None, registry.known()[env].agent):
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
    make: Callable[[], Judged] = partial(_made, env, chosen, chosen.goals, limit_s)
    skill = OwnSkill(
        name=env if is_gym(env) else Path(env).stem,
        make=make,
        observe=words.observe,
        read_back=words.read_back,
        recognise=chosen.goals.recognise,
        expert=partial(_expert, OwnExpert(chosen)),
        still=still,
        any_call=partial(_any_call, chosen.tools.schemas),
        agent=chosen,
        all_goals=told,
        goals=scored,
        kinds=tuple(told.ways),
        phrasings={"unseen": lambda kind: [(said, g) for g in scored if g.kind == kind for said in told.held_out(g)]},
    )
    _look_over(skill)
    return skill


def _look_over(skill: OwnSkill) -> None:
    """What is wrong with it is told before anything begins."""
    world: Any = skill.make()
    place: Any = SimpleNamespace(name=skill.name, bindings=getattr(world, "functions", world.bindings))
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
                fit(skill.agent, place, Observation(0, 0, 0, seen[goal.kind]))
        skill.expert(seen[goal.kind], goal)
    for tool in skill.agent.tools.schemas:
        _any_call((tool,), random.Random(0))


def _made(env: str, agent: Agent, goals: Goals, limit_s: float) -> Judged:
    if not (env.endswith(".py") or is_gym(env)):
        bundled = registry.skill(env)
        if bundled is None:
            raise UserError(f"The world {env} cannot be trained in.", "Give a .py file, or a bundled environment.")
        return bundled.make()
    return BlamedWorld(env, own_world(env, goals, limit_s), agent.tools)


def _expert(expert: OwnExpert, data: Mapping[str, Any], goal: Goal) -> Call:
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


def _any_call(tools: Sequence[ToolSchema], rng: random.Random) -> Call:
    """Any call; each tool as often as the others. Values that are not listed are left out, or the smallest."""
    tool = rng.choice(tools)
    arguments = {}
    for parameter in tool.parameters:
        if isinstance(parameter.domain, ClosedDomain):
            arguments[parameter.name] = rng.choice(parameter.domain.values)
        elif (grid := parameter.domain.grid) is not None:
            arguments[parameter.name] = grid.at(rng.randrange(grid.count))
        elif parameter.required:
            raise UserError(
                f"Tool {tool.name}, parameter {parameter.name}: no value of it can be made up.",
                "Give it an enum or bounds, or do not require it.",
            )
    return Call(tool.name, arguments)


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
    """Implements `Judged` over a world of the user's: what it raises is a UserError with its line."""

    def __init__(self, file: str, world: OwnWorld, tools: Tools) -> None:
        self._world, self._of, self._tools = world, f"The world {file}", tools
        self.step_s = world.step_s
        # As in a run: a tool that the world has no function for is executed by its own.
        self.functions = world.bindings
        functions = {tool.name: tool.function for tool in tools} | dict(world.bindings)
        self.bindings: Mapping[str, Callable[..., Any]] = {
            tool.name: partial(self._act, tool.name, functions[tool.name]) for tool in tools
        }

    def _act(self, name: str, function: Callable[..., Any], **arguments: Any) -> None:
        _blamed(f"{self._of}: {name}()", function, **self._tools.convert(Call(name, arguments)))

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

    def judge_by(self, goal: Any) -> None:
        _blamed(f'{self._of}: told "{goal.text()}"', self._world.judge_by, goal)


def _blamed(what: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    try:
        return function(*given, **named)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what[0].upper()}{what[1:]} raised {reason(error)}.", "Correct it there.") from error
