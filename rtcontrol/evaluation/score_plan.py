"""What is told and judged: each of a skill's goals, and the goal that is told in its place to see who ignores it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.envs.evaluate import LONGEST_S, Case, evaluate
from rtcontrol.envs.skill import Skill
from rtcontrol.evaluation.phrasings import Saying
from rtcontrol.evaluation.policies import SCRIPTED
from rtcontrol.models.errors import UserError
from rtcontrol.run.skills import UserSkill

FIRST_SEED, PHRASING_SEED = 2000, 4000  # recipes train on seeds below 1000, `fit` in a world from a million on
ALL, MOST_GOALS = "all", 1_000  # for every goal there is
LISTENED_S = 1.0  # of a world's time: shows whether a sentence is understood
TRIED = 3  # seeds on which the expert, told another goal, must not do the judged one


@dataclass(frozen=True)
class Subject:
    """A line of the table: `goals` are spread over the seeds, `others` told in their place (empty: there is none that
    the expert itself, told it, would not do the judged one by)."""

    title: str
    goals: Sequence[Any]
    others: Sequence[Any] = ()

    def cases(self, seeds: Sequence[int], other: bool = False) -> list[Case]:
        """What is told (canonically; `other`: the goals in their place), judged by the goals, on these seeds."""
        told = self.others if other else self.goals
        return [Case(told[i % len(told)].text(), self.goals[i % len(self.goals)], seed) for i, seed in enumerate(seeds)]


def subjects(skill: Skill, hz: float, named: Sequence[str] = ()) -> list[Subject]:
    """The skill's goals (`named`: those that these instructions name), each with the one to tell in its place: its
    opposite where it has one, else the next one in the list that the expert, told it, never does this one by.
    UserError for a skill without goals, and for an instruction that names none."""
    if list(named) == [ALL] and skill.recognise(ALL) is None:
        named, goals = (), list(skill.all_goals.spread(MOST_GOALS) if isinstance(skill, UserSkill) else skill.goals)
    else:
        goals = [_goal(skill, text) for text in named] or list(skill.goals)
    if not goals:
        raise UserError(f"{skill.name} has no list of goals to score.", "Name them with --goal.")
    found = []
    for goal in dict.fromkeys(goals):
        listed = [*skill.goals, *(g for g in goals if g not in skill.goals)]
        i = listed.index(goal)
        others = [skill.opposite[goal]] if goal in skill.opposite else [*listed[i + 1 :], *listed[:i]]
        other = next((o for o in others if _tells_apart(skill, goal, o, hz)), None)
        found.append(Subject(goal.text(), (goal,), () if other is None else (other,)))
    for title, spread in () if named else skill.mixed.items():
        found.append(Subject(title, spread, (*spread[1:], spread[0]) if len(spread) > 1 else ()))
    return found


def _goal(skill: Skill, text: str) -> Any:
    if (goal := skill.recognise(text)) is None:
        known = ", ".join(repr(goal.text()) for goal in skill.goals)
        raise UserError(f"--goal {text!r} names no goal of {skill.name}.", f"Such as: {known}.")
    return goal


def _tells_apart(skill: Skill, goal: Any, other: Any, hz: float) -> bool:
    told = [Case(other.text(), goal, FIRST_SEED + i) for i in range(TRIED)]
    return not any(episode.success for episode in evaluate(skill, skill.expert_policy, told, hz))


@dataclass(frozen=True)
class Settings:
    """What a score is of; everything here decides its figures, so what was measured with others is never mixed. `hz` 0:
    the rate that the first model learnt; no `gates`: what the checkpoints say;
    `contents` are digests of the files that it names."""

    env: str
    agent: str
    models: tuple[str, ...]
    hz: float
    seeds: int
    goals: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    phrasings: str | None = None
    engine: str = "torch"
    goal_file: str | None = None
    contents: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """`part` of the document: goals, other (told another goal), phrasings, canonical, nonsense."""

    part: str
    title: str
    by: str
    cases: Sequence[Case] = field(repr=False)
    hz: float
    longest_s: float = LONGEST_S

    @property
    def key(self) -> str:
        return f"{self.part} | {self.title} | {self.by}"


def plan(settings: Settings, told: Sequence[Subject], lines: Sequence[Saying]) -> list[Cell]:
    """All cells: the model's first, so that what they cost is known early."""
    seeds = range(FIRST_SEED, FIRST_SEED + settings.seeds)
    hz, models = settings.hz, settings.models
    found: list[Cell] = []
    for subject in told:
        for by in (*models, *(s for s in SCRIPTED if s not in models)):
            found.append(Cell("goals", subject.title, by, subject.cases(seeds), hz))
        if subject.others:
            for by in (*models, "expert"):
                found.append(Cell("other", subject.title, by, subject.cases(seeds, other=True), hz))
    return [*found, *_said(settings, told, lines)]


def _said(settings: Settings, told: Sequence[Subject], lines: Sequence[Saying]) -> Iterator[Cell]:
    meant = [(PHRASING_SEED + i, line) for i, line in enumerate(lines) if line.means is not None]
    # What means nothing is told in the worlds of the first goal: nobody judges by it.
    nonsense = [
        Case(line.say, told[0].goals[0], PHRASING_SEED + i) for i, line in enumerate(lines) if line.means is None
    ]
    said = [Case(line.say, line.goal, seed) for seed, line in meant]
    canonical = [Case(line.goal.text(), line.goal, seed) for seed, line in meant]
    for model in settings.models:
        for part, cases, longest_s in (
            ("phrasings", said, LONGEST_S),
            ("canonical", canonical, LONGEST_S),
            ("nonsense", nonsense, LISTENED_S),
        ):
            if cases:
                yield Cell(part, "all", model, cases, settings.hz, longest_s=longest_s)
