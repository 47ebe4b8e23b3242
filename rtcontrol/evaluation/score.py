"""One score: what is told and judged (goals, other goals in their place, what people say), played and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rtcontrol.agents.phrasing import nonsense
from rtcontrol.envs import registry
from rtcontrol.envs.evaluate import LONGEST_S, Case, Played, evaluate, play
from rtcontrol.envs.skill import Skill
from rtcontrol.evaluation.policies import SCRIPTED, Flyer, ModelFlyer, scripted
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.data.row import json_lines
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import replace_file
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import gate_of, learnt_of, model_for, rate_mismatch, shown, training_notice
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.telemetry.run_folder import describe

SCHEMA = 4
FIRST_SEED, PHRASING_SEED = 2000, 4000  # recipes train on seeds below 1000, `fit` in a world from a million on
MOST = 10_000  # lines of a list, each on its own seed, below those of training
FORM = 'Write {"say": "...", "means": "<canonical instruction>"}, with null in its place for what means nothing.'
ALL, MOST_GOALS = "all", 1_000  # for every goal there is
LISTENED_S = 1.0  # of a world's time: shows whether a sentence is understood
TRIED = 3  # seeds on which the expert, told another goal, must not do the judged one
NONSENSE = 50  # sentences of the project's own list, where a list of phrasings has none
NOT_MODELS = {"noop": "no-op"}
CHUNK = 32  # cases; what is interrupted loses at most these
Progress = Callable[[int, int], None]  # episodes done, of


@dataclass(frozen=True)
class Settings:
    """What a score is of. `hz` 0: the rate that the first model learnt. `gates`: what the checkpoints name, one for
    each model (0: none)."""

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
    made = []
    for goal in dict.fromkeys(goals):
        listed = [*skill.goals, *(g for g in goals if g not in skill.goals)]
        i = listed.index(goal)
        others = [skill.opposite[goal]] if goal in skill.opposite else [*listed[i + 1 :], *listed[:i]]
        other = next((o for o in others if _tells_apart(skill, goal, o, hz)), None)
        made.append(Subject(goal.text(), (goal,), () if other is None else (other,)))
    for title, spread in () if named else skill.mixed.items():
        made.append(Subject(title, spread, (*spread[1:], spread[0]) if len(spread) > 1 else ()))
    return made


def _goal(skill: Skill, text: str) -> Any:
    if (goal := skill.recognise(text)) is None:
        known = ", ".join(repr(goal.text()) for goal in skill.goals)
        raise UserError(f"--goal {text!r} names no goal of {skill.name}.", f"Such as: {known}.")
    return goal


def _tells_apart(skill: Skill, goal: Any, other: Any, hz: float) -> bool:
    told = [Case(other.text(), goal, FIRST_SEED + i) for i in range(TRIED)]
    return not any(episode.success for episode in evaluate(skill, skill.expert_policy, told, hz))


# -- what people say --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saying:
    """What somebody says, and the goal that it asks for; `means` is its canonical instruction (None: nothing)."""

    say: str
    means: str | None
    goal: Any = None


def sayings(skill: Skill, given: str, names: Sequence[str]) -> list[Saying]:
    """The lines of a file (JSONL, or that in gzip), without those whose `env` is none of `names`; or one of the skill's
    own lists, by its name. Raises UserError with the line's number."""
    if given in skill.phrasings:
        listed = [one for kind in skill.kinds for one in skill.phrasings[given](kind)]
        made = [Saying(say, goal.text(), goal) for say, goal in listed]
    else:
        read = (_line(skill, value, names, f"{given}, line {number}") for number, value in json_lines(Path(given)))
        made = [line for line in read if line is not None]
    if not 0 < len(made) <= MOST:
        raise UserError(f"--phrasings {given} has {len(made)} sentences for {skill.name}.", f"Give 1 to {MOST}. {FORM}")
    means: dict[str, str | None] = {}
    for one in made:
        if means.setdefault(one.say, one.means) != one.means:
            raise UserError(f'{given}: "{one.say}" means {one.means!r}, and {means[one.say]!r}.', "Leave one out.")
    return made


def _line(skill: Skill, value: Any, names: Sequence[str], where: str) -> Saying | None:
    """Return a line's sentence, None where it is for another world. Raises UserError."""
    if not isinstance(value, dict) or not {"say", "means"} <= value.keys():
        raise UserError(f"{where}: no object with `say` and `means`.", FORM)
    say, means = value["say"], value["means"]
    if not isinstance(say, str) or not say.strip() or not isinstance(means, str | None):
        raise UserError(f"{where}: `say` is no text, or `means` is neither a text nor null.", FORM)
    if value.get("env", names[0]) not in names:
        return None
    if means is None:
        return Saying(say, None)
    if (goal := skill.recognise(means)) is None:
        raise UserError(f"{where}: `means` is {means!r}, which names no goal of {skill.name}.", FORM)
    return Saying(say, goal.text(), goal)


# -- cells ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """`part` of the document: goals, other (told another goal), phrasings, canonical, nonsense."""

    part: str
    title: str
    by: str
    cases: Sequence[Case] = field(repr=False)
    longest_s: float = LONGEST_S

    @property
    def key(self) -> str:
        return f"{self.part} | {self.title} | {self.by}"


def plan(settings: Settings, told: Sequence[Subject], said: Sequence[Saying]) -> list[Cell]:
    """All cells: the model's first, so that what they cost is known early."""
    seeds = range(FIRST_SEED, FIRST_SEED + settings.seeds)
    models = settings.models
    cells: list[Cell] = []
    for subject in told:
        for by in (*models, *(s for s in SCRIPTED if s not in models)):
            cells.append(Cell("goals", subject.title, by, subject.cases(seeds)))
        if subject.others:
            for by in (*models, "expert"):
                cells.append(Cell("other", subject.title, by, subject.cases(seeds, other=True)))
    return [*cells, *_said(settings, told, said)]


def _said(settings: Settings, told: Sequence[Subject], said: Sequence[Saying]) -> Iterator[Cell]:
    meant = [(PHRASING_SEED + i, line) for i, line in enumerate(said) if line.means is not None]
    phrased = [Case(line.say, line.goal, seed) for seed, line in meant]
    canonical = [Case(line.goal.text(), line.goal, seed) for seed, line in meant]
    # What means nothing is told in the worlds of the first goal: nobody judges by it.
    nothing = [Case(line.say, told[0].goals[0], PHRASING_SEED + i) for i, line in enumerate(said) if line.means is None]
    parts = (("phrasings", phrased, LONGEST_S), ("canonical", canonical, LONGEST_S), ("nonsense", nothing, LISTENED_S))
    for model in settings.models:
        for part, cases, longest_s in parts:
            if cases:
                yield Cell(part, "all", model, cases, longest_s)


# -- the score --------------------------------------------------------------------------------------------------------


class Document:
    """`data` is all that was measured; with a `path` it is in that file after each `add`. Raises UserError where that
    cannot be written."""

    def __init__(self, settings: Settings, said: Sequence[Saying], path: Path | None) -> None:
        self._path = path and path.resolve()  # what a link stands for is written, not the link
        self._hz = settings.hz
        self.cells: dict[str, dict[str, Any]] = {}
        self.data: dict[str, Any] = {
            "score": SCHEMA,
            "settings": json.loads(json.dumps(asdict(settings))),
            "complete": False,
            "cells": self.cells,
        }
        if said:
            self.data["lines"] = [{"say": one.say, "means": one.means} for one in said]

    def add(self, cell: Cell, flown: Sequence[Played]) -> None:
        """What came of the cell's next cases."""
        if (kept := self.cells.get(cell.key)) is None:
            told = list(dict.fromkeys(case.instruction for case in cell.cases))[:8]
            self.cells[cell.key] = kept = {"part": cell.part, "title": cell.title, "by": cell.by, "told": told}
            kept |= {"seeds": [], "outcomes": [], "returns": [], "seconds": [], "ends": [], "held": 0, "lost": 0}
        listened = max(1, round(LISTENED_S * self._hz))
        for one in flown:
            kept["seeds"].append(one.case.seed)
            kept["outcomes"].append(int(bool(one.episode.success)))
            kept["returns"].append(round(float(one.episode.ret), 3))
            kept["seconds"].append(round(one.episode.seconds, 3))
            kept["ends"].append(str(one.episode.detail.get("end")))
            if (sure := one.kept.get("sure")) or one.kept.get("lost"):
                # The median of the first second: a sentence is understood, or not, before much has happened. Who never
                # decides is never sure.
                first = sorted((sure or [0.0])[:listened])
                kept.setdefault("sure", []).append(round(first[len(first) // 2], 4))
                idle = one.kept["idle"][:listened]
                kept.setdefault("unsure", []).append(int(2 * sum(idle) > len(idle)))
            for name in ("held", "lost"):
                kept[name] += one.kept.get(name, 0)
        self.write()

    def write(self) -> None:
        if self._path is None:
            return
        try:
            replace_file(self._path, json.dumps({**self.data, "machine": describe()}, indent=1) + "\n")
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written ({error.strerror}); what it holds is whole, as of before.",
                "Make room.",
            ) from None


def measure(
    skill: Skill, cells: Sequence[Cell], flyers: Mapping[str, Flyer], document: Document, hz: float, progress: Progress
) -> None:
    """Play all cells. Raises UserError; what was played until then is in the document."""
    total, done = sum(len(cell.cases) for cell in cells), 0
    for cell in cells:
        flyer = flyers[cell.by]
        parallel = flyer.parallel if isinstance(flyer, ModelFlyer) else CHUNK
        for first in range(0, len(cell.cases), CHUNK):
            cases = cell.cases[first : first + CHUNK]
            progress(done, total)
            document.add(cell, play(skill, flyer, cases, hz, parallel, longest_s=cell.longest_s))
            done += len(cases)
    document.data["complete"] = True
    document.write()


class Scoring:
    """Everything that a score needs, looked over before anything is played. UserError for what does not go together."""

    def __init__(self, settings: Settings, json_file: Path | None = None) -> None:
        self.skill = skill_for(settings.env, settings.agent)
        if isinstance(self.skill, UserSkill):
            self.agent = self.skill.agent
        else:
            self.agent = assembly.agent(settings.agent or assembly.default_agent(settings.env), settings.env)
        tools, models = self.agent.tools.schemas, self._models(settings)
        for name in models:
            model_for(tools, name)
        learnt = learnt_of(models[0]) if models else None
        rate = (learnt.rate_hz if learnt is not None else None) or RunConfig(env="").hz
        self.settings = replace(
            settings,
            agent=self.agent.name,
            models=models,
            gates=tuple(gate_of(name, tools) or 0.0 for name in models),
            hz=settings.hz or rate,
        )
        notices = [training_notice(tools, name) for name in models]
        notices += [rate_mismatch(name, self.settings.hz) for name in models]
        self.warnings = [notice for notice in notices if notice]
        self.said: list[Saying] = []
        if settings.phrasings is not None:
            self.said = sayings(self.skill, settings.phrasings, (self.skill.name, settings.env, self.agent.name))
            if all(one.means is not None for one in self.said):
                kept = nonsense(kept=True)  # no recipe teaches these
                self.said += [Saying(say, None) for say in kept[:: len(kept) // NONSENSE][:NONSENSE]]
        self._subjects = subjects(self.skill, self.settings.hz, self.settings.goals)
        self.document = Document(self.settings, self.said, json_file)

    def _models(self, settings: Settings) -> tuple[str, ...]:
        models = tuple(dict.fromkeys(settings.models)) or tuple(filter(None, (self.agent.model,)))
        if self.agent.model in SCRIPTED:  # it has no model of its own, and the table has the script anyway
            models = tuple(name for name in models if name != self.agent.model)
        if plain := [name for name in models if NOT_MODELS.get(name, name) in SCRIPTED]:
            raise UserError(f"--model {plain[0]} stands in the table anyway.", "Leave it out.")
        if not models and settings.phrasings is not None:
            what = f"--phrasings is about a model, and {self.agent.name} names none."
            raise UserError(what, "Give one with --model.")
        return models

    def run(self, progress: Progress) -> Document:
        """Play everything. UserError; what was played until then is in the document."""
        settings = self.settings
        flyers: dict[str, Flyer] = {name: scripted(self.skill, name) for name in SCRIPTED}
        flyers |= {name: self._flyer(name, gate) for name, gate in zip(settings.models, settings.gates, strict=True)}
        cells = plan(settings, self._subjects, self.said)
        measure(self.skill, cells, flyers, self.document, settings.hz, progress)
        return self.document

    def _flyer(self, model: str, gate: float) -> ModelFlyer:
        settings, agent = self.settings, shown(self.agent, model)
        config = RunConfig(env=settings.env, engine=settings.engine, hz=settings.hz, clock="lockstep")
        return ModelFlyer(agent, assembly.decider(config, agent, model), settings.hz, gate)


def skill_for(env: str, agent: str) -> Skill:
    if env in assembly.JOINED:
        raise UserError(
            f"{env} has no goals with a judge and an expert, so nothing to score by.",
            f"Score one of {', '.join(registry.WORLDS)}, or a world of your own (.py).",
        )
    return skill_of(env, agent or None)
