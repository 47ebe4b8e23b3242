"""Score policies in a lockstep world: with the judged goal as the instruction, with another goal, and by phrasings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rtcontrol.agents.phrasing import nonsense
from rtcontrol.envs.evaluate import LONGEST_S, Case, CaseResult, evaluate, run_cases
from rtcontrol.envs.skill import Skill
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.data.row import read_json_lines
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import write_output
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import adapt, gate_of, metadata_of, model_for, rate_mismatch, training_notice
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.score.policies import SCRIPTED, BatchPolicy, ModelPolicy, scripted_policy
from rtcontrol.telemetry.run_folder import describe_machine

SCHEMA = 4
FIRST_SEED, PHRASING_SEED = 2000, 4000  # training uses seeds below 1,000 (recipes) and from a million on (`fit`)
MOST = 10_000  # maximum lines in a list of phrasings, each of which gets a seed
FORM = 'Write {"say": "...", "means": "<canonical instruction>"}, or "means": null for a sentence without a meaning.'
ALL, MOST_GOALS = "all", 1_000  # score.goals may be "all"; maximum number of goals
LISTENED_S = 1.0  # episodes with nonsense sentences take this number of simulated seconds
TRIED = 3  # number of seeds on which an expert with another goal must not reach the judged goal
NONSENSE = 50  # this number of nonsense sentences is added to a list without nonsense
CHUNK = 32  # results are saved after this number of cases; an interrupt loses at most these
Progress = Callable[[int, int], None]  # arguments: number of finished episodes, number of all episodes


@dataclass(frozen=True)
class Settings:
    """The settings of a score. If `hz` is 0, use the tick rate of the first model's training. `gates`: the minimum
    confidence of each model's calls (0: none). `seeds`: episodes per goal."""

    env: str
    agent: str
    models: tuple[str, ...]
    hz: float
    seeds: int
    goals: tuple[str, ...] = ()
    phrasings: str | None = None
    engine: str = "torch"
    gates: tuple[float, ...] = ()


# -- goals ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GoalRow:
    """A row of the table of goals. Its episodes are judged by one of `goals` in turn. `others`: the goals to instruct
    instead in the part "other" (empty if the expert with another goal would also reach the judged goal)."""

    title: str
    goals: Sequence[Any]
    others: Sequence[Any] = ()

    def cases(self, seeds: Sequence[int], other: bool = False) -> list[Case]:
        """Return a case for each seed, judged by one of `goals`, and instructed with this goal or one of `others`."""
        named = self.others if other else self.goals
        return [
            Case(named[i % len(named)].text(), self.goals[i % len(self.goals)], seed) for i, seed in enumerate(seeds)
        ]


def goal_rows(skill: Skill, hz: float, named: Sequence[str] = ()) -> list[GoalRow]:
    """Return a row for each goal of the skill, or for each goal that an instruction in `named` means. The other goal of
    a row is the opposite goal, or the next goal with which the expert does not reach the judged goal.

    Raises UserError if the skill has no goals, or if an instruction names no goal."""
    if list(named) == [ALL] and skill.recognise(ALL) is None:
        named, goals = (), list(skill.all_goals.spread(MOST_GOALS) if isinstance(skill, UserSkill) else skill.goals)
    else:
        goals = [_recognised_goal(skill, text) for text in named] or list(skill.goals)
    if not goals:
        raise UserError(f"{skill.name} has no list of goals to score.", "List goals: --set score.goals=...")
    lines = []
    for goal in dict.fromkeys(goals):
        listed = [*skill.goals, *(g for g in goals if g not in skill.goals)]
        i = listed.index(goal)
        others = [skill.opposite[goal]] if goal in skill.opposite else [*listed[i + 1 :], *listed[:i]]
        other = next((other for other in others if _is_distinguishable(skill, goal, other, hz)), None)
        lines.append(GoalRow(goal.text(), (goal,), () if other is None else (other,)))
    for title, spread in () if named else skill.mixed.items():
        lines.append(GoalRow(title, spread, (*spread[1:], spread[0]) if len(spread) > 1 else ()))
    return lines


def _recognised_goal(skill: Skill, text: str) -> Any:
    if (goal := skill.recognise(text)) is None:
        known = ", ".join(repr(goal.text()) for goal in skill.goals)
        raise UserError(f"score.goals={text!r} names no goal of {skill.name}.", f"Such as: {known}.")
    return goal


def _is_distinguishable(skill: Skill, goal: Any, other: Any, hz: float) -> bool:
    """Return whether the expert never reaches `goal` if its instruction is the goal `other`."""
    cases = [Case(other.text(), goal, FIRST_SEED + i) for i in range(TRIED)]
    return not any(episode.success for episode in evaluate(skill, skill.expert_policy, cases, hz))


# -- phrasings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phrasing:
    """A sentence `say` and its goal. `means` is the canonical instruction, or None if the sentence names no goal."""

    say: str
    means: str | None
    goal: Any = None


def load_phrasings(skill: Skill, source: str, names: Sequence[str]) -> list[Phrasing]:
    """Return the phrasings of the skill's list `source`, or of the file `source` (JSONL, also gzip), except for lines
    whose `env` is not in `names`. Raises UserError with the number of an invalid line."""
    if source in skill.phrasings:
        listed = [pair for kind in skill.kinds for pair in skill.phrasings[source](kind)]
        lines = [Phrasing(say, goal.text(), goal) for say, goal in listed]
    else:
        read = (
            _parse_phrasing(skill, value, names, f"{source}, line {n}") for n, value in read_json_lines(Path(source))
        )
        lines = [line for line in read if line is not None]
    if not 0 < len(lines) <= MOST:
        message = f"score.phrasings={source} has {len(lines)} sentences for {skill.name}."
        raise UserError(message, f"Use 1 to {MOST} sentences. {FORM}")
    means: dict[str, str | None] = {}
    for line in lines:
        if means.setdefault(line.say, line.means) != line.means:
            raise UserError(
                f'{source}: "{line.say}" means {line.means!r} and {means[line.say]!r}.', "Remove one of them."
            )
    return lines


def _parse_phrasing(skill: Skill, value: Any, names: Sequence[str], where: str) -> Phrasing | None:
    """Return the phrasing of a line, or None if the line is for another world. Raises UserError."""
    say, means = (value.get("say"), value.get("means", 0)) if isinstance(value, dict) else (None, None)
    if not isinstance(say, str) or not say.strip() or not isinstance(means, str | None):
        raise UserError(f"{where}: the line needs `say` (a text) and `means` (a text or null).", FORM)
    if value.get("env", names[0]) not in names:
        return None
    goal = None if means is None else skill.recognise(means)
    if means is not None and goal is None:
        raise UserError(f"{where}: `means` is {means!r}, which names no goal of {skill.name}.", FORM)
    return Phrasing(say, goal and goal.text(), goal)


# -- cells ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """The episodes of the policy `by` in a part of the document: goals, other (the instruction names another goal),
    phrasings, canonical or nonsense. `longest_s`: maximum simulated time of an episode."""

    part: str
    title: str
    by: str
    cases: Sequence[Case] = field(repr=False)
    longest_s: float = LONGEST_S

    @property
    def key(self) -> str:
        return f"{self.part} | {self.title} | {self.by}"


def plan_cells(settings: Settings, goals: Sequence[GoalRow], lines: Sequence[Phrasing]) -> list[Cell]:
    """Return all cells of a score, with the models first."""
    seeds = range(FIRST_SEED, FIRST_SEED + settings.seeds)
    cells: list[Cell] = []
    for subject in goals:
        for by in (*settings.models, *(name for name in SCRIPTED if name not in settings.models)):
            cells.append(Cell("goals", subject.title, by, subject.cases(seeds)))
        if subject.others:
            for by in (*settings.models, "expert"):
                cells.append(Cell("other", subject.title, by, subject.cases(seeds, other=True)))
    return [*cells, *_phrasing_cells(settings, goals, lines)]


def _phrasing_cells(settings: Settings, goals: Sequence[GoalRow], lines: Sequence[Phrasing]) -> Iterator[Cell]:
    """Yield each model's cells of the phrasings, of the same goals in canonical words, and of nonsense."""
    numbered = list(enumerate(lines, PHRASING_SEED))
    meant = [(seed, line) for seed, line in numbered if line.means is not None]
    phrased = [Case(line.say, line.goal, seed) for seed, line in meant]
    canonical = [Case(line.goal.text(), line.goal, seed) for seed, line in meant]
    # Sentences of nonsense are played in worlds of the first goal. The outcomes of these episodes do not count.
    nothing = [Case(line.say, goals[0].goals[0], seed) for seed, line in numbered if line.means is None]
    parts = (("phrasings", phrased, LONGEST_S), ("canonical", canonical, LONGEST_S), ("nonsense", nothing, LISTENED_S))
    for model in settings.models:
        for part, cases, longest_s in parts:
            if cases:
                yield Cell(part, "all", model, cases, longest_s)


# -- the score --------------------------------------------------------------------------------------------------------


class ScoreDocument:
    """The results of a score, as JSON values in `data`. If `path` is not None, each `add` writes the file. Raises
    UserError if the file cannot be written."""

    def __init__(self, settings: Settings, lines: Sequence[Phrasing], path: Path | None) -> None:
        self._path = path and path.resolve()  # if the path is a link, its target is written
        self._listened = max(1, round(LISTENED_S * settings.hz))
        self.cells: dict[str, dict[str, Any]] = {}
        self.data: dict[str, Any] = {
            "score": SCHEMA,
            "settings": json.loads(json.dumps(asdict(settings))),
            "complete": False,
            "cells": self.cells,
        }
        if lines:
            self.data["lines"] = [{"say": line.say, "means": line.means} for line in lines]

    def add(self, cell: Cell, played: Sequence[CaseResult]) -> None:
        """Add the results of the next episodes of a cell."""
        if (results := self.cells.get(cell.key)) is None:
            self.cells[cell.key] = results = {"part": cell.part, "title": cell.title, "by": cell.by}
            results |= {name: [] for name in ("seeds", "outcomes", "returns", "seconds", "ends")}
            results |= {"held": 0, "lost": 0, "unfamiliar": 0}
        for case in played:
            results["seeds"].append(case.case.seed)
            results["outcomes"].append(int(bool(case.episode.success)))
            results["returns"].append(round(float(case.episode.ret), 3))
            results["seconds"].append(round(case.episode.seconds, 3))
            results["ends"].append(str(case.episode.detail.get("end")))
            if "idle" in case.policy_data:  # the first second shows if the sentence is understood
                idle = case.policy_data["idle"][: self._listened]
                results.setdefault("unsure", []).append(int(2 * sum(idle) > len(idle)))
            for name in ("held", "lost", "unfamiliar"):
                results[name] += case.policy_data.get(name, 0)
            if "example" in case.policy_data:
                results.setdefault("example", case.policy_data["example"])
        self.write()

    def write(self) -> None:
        if self._path is None:
            return
        try:
            write_output(self._path, json.dumps({**self.data, "machine": describe_machine()}, indent=1) + "\n")
        except OSError as error:
            message = f"{self._path} cannot be written ({error.strerror}); the previous content is intact."
            raise UserError(message, "Free some space.") from None


def play_cells(
    skill: Skill,
    cells: Sequence[Cell],
    policies: Mapping[str, BatchPolicy],
    document: ScoreDocument,
    hz: float,
    progress: Progress,
) -> None:
    """Play the episodes of all cells, and add their results to the document. It keeps them if UserError is raised."""
    total, done = sum(len(cell.cases) for cell in cells), 0
    for cell in cells:
        policy = policies[cell.by]
        parallel = policy.parallel if isinstance(policy, ModelPolicy) else CHUNK
        for first in range(0, len(cell.cases), CHUNK):
            cases = cell.cases[first : first + CHUNK]
            progress(done, total)
            document.add(cell, run_cases(skill, policy, cases, hz, parallel, longest_s=cell.longest_s))
            done += len(cases)
    document.data["complete"] = True
    document.write()


class Scoring:
    """A score with checked settings, whose episodes `run` plays. Raises UserError for invalid settings."""

    def __init__(self, settings: Settings, json_file: Path | None = None) -> None:
        if settings.env in assembly.OTHER_ENVIRONMENTS:
            raise UserError(f"{settings.env} has no goals to score.", "Score a bundled world, or a .py file.")
        self.skill = skill_of(settings.env, settings.agent or None)
        if isinstance(self.skill, UserSkill):
            self.agent = self.skill.agent
        else:
            self.agent = assembly.load_agent(settings.agent or assembly.default_agent(settings.env), settings.env)
        tools, models = self.agent.tools.schemas, self._scored_models(settings)
        for name in models:
            model_for(tools, name)
        metadata = metadata_of(models[0]) if models else None
        rate = (metadata.rate_hz if metadata is not None else None) or RunConfig(env="").hz
        gates = tuple(gate_of(name, tools) or 0.0 for name in models)
        hz = settings.hz or rate
        self.settings = settings = replace(settings, agent=self.agent.name, models=models, gates=gates, hz=hz)
        notices = [training_notice(tools, name) for name in models] + [rate_mismatch(name, hz) for name in models]
        self.warnings = [notice for notice in notices if notice]
        self.lines: list[Phrasing] = []
        if settings.phrasings is not None:
            self.lines = load_phrasings(
                self.skill, settings.phrasings, (self.skill.name, settings.env, self.agent.name)
            )
            if all(line.means is not None for line in self.lines):
                kept = nonsense(held_out=True)  # sentences on which no recipe trains
                self.lines += [Phrasing(say, None) for say in kept[:: len(kept) // NONSENSE][:NONSENSE]]
        self._goal_rows = goal_rows(self.skill, hz, settings.goals)
        self.document = ScoreDocument(settings, self.lines, json_file)

    def _scored_models(self, settings: Settings) -> tuple[str, ...]:
        models = tuple(dict.fromkeys(settings.models)) or tuple(filter(None, (self.agent.model,)))
        if self.agent.model in SCRIPTED:  # the agent has only a script, which the table shows anyway
            models = tuple(name for name in models if name != self.agent.model)
        if scripts := {*models} & {*SCRIPTED, "noop"}:
            raise UserError(f"--model {min(scripts)} is always in the table.", "Remove it.")
        if not models and settings.phrasings is not None:
            message = f"score.phrasings needs a model, but the agent {self.agent.name} has no default model."
            raise UserError(message, "Name a model by --model.")
        return models

    def run(self, progress: Progress) -> ScoreDocument:
        """Play all episodes, and return the document. It keeps the finished episodes if UserError is raised."""
        settings = self.settings
        policies: dict[str, BatchPolicy] = {name: scripted_policy(self.skill, name) for name in SCRIPTED}
        for model, gate in zip(settings.models, settings.gates, strict=True):
            agent = adapt(self.agent, model)
            config = RunConfig(env=settings.env, engine=settings.engine, hz=settings.hz, clock="lockstep")
            policies[model] = ModelPolicy(agent, assembly.decider_source(config, agent, model), settings.hz, gate)
        cells = plan_cells(settings, self._goal_rows, self.lines)
        play_cells(self.skill, cells, policies, self.document, settings.hz, progress)
        return self.document
