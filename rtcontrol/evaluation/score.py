"""One score from its settings to its document."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.agents.spoken import nonsense
from rtcontrol.envs import registry
from rtcontrol.envs.base import Episode
from rtcontrol.envs.evaluate import Case, Played, play
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.envs.skill import Judged, Skill
from rtcontrol.evaluation.phrasings import Saying, lines
from rtcontrol.evaluation.policies import OPEN, SCRIPTED, Flyer, ModelFlyer, ScoringGate, SteadyFlyer, scripted
from rtcontrol.evaluation.score_document import Document
from rtcontrol.evaluation.score_plan import DELAYS, RATES, Cell, Settings, plan, subjects
from rtcontrol.hosts.deciders import ExpertSource
from rtcontrol.hosts.protocol import DeciderSource
from rtcontrol.loop.config import RunConfig, check_hysteresis
from rtcontrol.loop.loop import ControlLoop, LoopOptions
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.run import assembly
from rtcontrol.run.fingerprint import contents
from rtcontrol.run.model_compatibility import (
    gate_of,
    hysteresis_for,
    learnt_of,
    model_for,
    rate_mismatch,
    shown,
    training_notice,
)
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.telemetry import report
from rtcontrol.telemetry.recorder import Recorder

STARTING_S = 30.0  # beside what the episodes may take
# What is kept of a report.
COUNTS = ("releases", "misses", "skipped_releases")
FIGURES = ("miss_rate", "misses_by_cause", "latency_ms", "steadiness")


def expert_source(skill: Skill) -> DeciderSource:
    """The skill's expert, as whatever decides in a loop."""
    return ExpertSource(lambda request: skill.expert_policy([(request.instruction, request.observation)])[0])


def fly_wall(
    skill: Skill,
    agent: Agent,
    config: RunConfig,
    source: DeciderSource,
    cases: Sequence[Case],
    longest_s: float,
) -> tuple[list[Played], dict[str, Any]]:
    """These cases of one goal, told one thing, on consecutive seeds, in one run at the config's rate; its counts.

    UserError where the world breaks down, or no decoder can be had."""
    first = cases[0]
    assert all((case.instruction, case.seed) == (first.instruction, first.seed + i) for i, case in enumerate(cases))

    def judged() -> Judged:
        world = skill.make()
        world.judge_by(first.goal)
        return world

    env = PacedEnvironment.of(skill.name, judged)
    with closing(env), tempfile.TemporaryDirectory(prefix="rtcontrol-score-") as folder:
        host = assembly.host(config, source, config.model or "", agent)
        recorder = Recorder(Path(folder) / "record.mcap", config.header(agent.fallback.hold_ms, agent))
        loop = ControlLoop(config, agent, env, host, recorder, LoopOptions(sample=env.preview(first.seed)))
        try:
            loop.run()
        finally:
            recorder.close()
    if failed := loop.failure or env.thread.fault:
        raise UserError(failed, "Correct it there.")
    made = report.build(loop.account, "record.mcap", ended_by=loop.ended_by)
    done = {episode.seed: episode for episode in env.episodes}
    missing = {"end": "no end"}
    flown = [done.get(case.seed, Episode(case.seed, 0.0, False, longest_s, missing)) for case in cases]
    if loop.ended_by == "host":
        raise UserError("The decoder was lost for good.", "Give the same command again: with --json it goes on there.")
    figures = {name: made[name] for name in (*COUNTS, *FIGURES)}
    return [Played(case, episode, {}) for case, episode in zip(cases, flown, strict=True)], figures


def wall_config(
    env: str,
    agent: Agent,
    model: str,
    engine: str,
    hz: float,
    gate: ScoringGate,
    cases: Sequence[Case],
    longest_s: float,
    hysteresis: str | None = None,
) -> RunConfig:
    """The settings of such a run; it decides in this process."""
    return RunConfig(
        env=env,
        agent=agent.name,
        model=model,
        engine=engine,
        hz=hz,
        host="inprocess",
        instruction=cases[0].instruction,
        seed=cases[0].seed,
        episodes=len(cases),
        duration_s=STARTING_S + longest_s * len(cases),
        min_confidence={gate.head: gate.least},
        record_observations="no",
        hysteresis=hysteresis,
    )


NONSENSE = 50  # sentences of the project's own list, where a list of phrasings has none
NOT_MODELS = {"noop": "no-op"}

CHUNK, WALL_CHUNK = 32, 4  # cases; what is interrupted loses at most these
START_S = 2.0  # of a run in real time
GUESS_S = {"scripted": 0.05, "model": 0.5, "wall": 15.0}  # of an episode


@dataclass
class Estimate:
    """How long what is left takes, by what episodes of each kind took so far; in real time, by how long they last in
    the `document`."""

    document: Document
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))

    def learn(self, cell: Cell, count: int, seconds: float) -> None:
        one = self.took[_kind(cell)]
        one[0], one[1] = one[0] + seconds, one[1] + count

    def seconds(self, cell: Cell, count: int) -> float:
        if cell.wall:
            return START_S * -(-count // WALL_CHUNK) + count * self._lasts(cell)
        spent, flown = self.took.get(_kind(cell), (0.0, 0.0))
        return count * (spent / flown if flown else GUESS_S["scripted" if cell.by in SCRIPTED else "model"])

    def _lasts(self, cell: Cell) -> float:
        known = [
            second
            for flown in self.document.cells.values()
            if (flown["part"], flown["title"]) == ("goals", cell.title) and flown["by"] in (cell.by, "expert")
            for second in flown["seconds"]
        ]
        return sum(known) / len(known) if known else GUESS_S["wall"]


def _kind(cell: Cell) -> str:
    return f"{cell.by} {cell.wall} {cell.longest_s}"


# What is flown, cases done, of, seconds left, seconds that everything (`--full`) would take beside.
Progress = Callable[[str, int, int, float, float], None]
InRealTime = Callable[[Cell, Sequence[Case]], tuple[list[Played], dict[str, Any]]]


def measure(
    skill: Skill,
    cells: Sequence[Cell],
    flyers: Mapping[str, Flyer],
    document: Document,
    progress: Progress,
    wall: InRealTime | None = None,
    more: Sequence[Cell] = (),
) -> None:
    """Fly what the document has not yet, in real time by `wall`; how long `more` would take is told beside. Raises
    UserError; what was flown until then is in the document."""
    estimate, total = Estimate(document), sum(len(cell.cases) for cell in cells)
    left = {cell.key: len(cell.cases) - document.done(cell) for cell in cells}
    for cell in cells:
        while left[cell.key]:
            remaining = sum(estimate.seconds(c, left[c.key]) for c in cells)
            beside = sum(estimate.seconds(c, len(c.cases)) for c in more)
            progress(f"{cell.part}: {cell.title}, {cell.by}", total - sum(left.values()), total, remaining, beside)
            began, first, figures = time.perf_counter(), document.done(cell), None
            if cell.wall:
                assert wall is not None, "cells in real time are flown by a loop"
                flown, figures = wall(cell, cell.cases[first : first + WALL_CHUNK])
            else:
                watched = document.steadiness(cell)
                flown = fly(skill, cell, first, SteadyFlyer(flyers[cell.by], watched, cell.hz))
            estimate.learn(cell, len(flown), time.perf_counter() - began)
            document.add(cell, flown, figures, None if cell.wall else watched)
            left[cell.key] -= len(flown)
    document.data["complete"] = True
    document.write()


def fly(skill: Skill, cell: Cell, first: int, flyer: SteadyFlyer) -> list[Played]:
    """The cell's next cases, from the `first` on."""
    cases: Sequence[Case] = cell.cases[first : first + CHUNK]
    parallel = flyer.flyer.parallel if isinstance(flyer.flyer, ModelFlyer) else CHUNK
    return play(skill, flyer, cases, cell.hz, parallel, delay_ticks=cell.delay, longest_s=cell.longest_s)


class Scoring:
    """Everything that a score needs, looked over before anything is flown. UserError for what does not go together."""

    def __init__(self, settings: Settings, json_file: Path | None = None) -> None:
        file = None if settings.goal_file is None else Path(settings.goal_file)
        self.skill = skill_for(settings.env, settings.agent, file)
        if isinstance(self.skill, UserSkill):
            self.agent = self.skill.agent
        else:
            self.agent = assembly.agent(settings.agent or assembly.default_agent(settings.env), file, settings.env)
        models = tuple(dict.fromkeys(settings.models)) or tuple(filter(None, (self.agent.model,)))
        if self.agent.model in SCRIPTED:  # it has no model of its own, and the table has the script anyway
            models = tuple(name for name in models if name != self.agent.model)
        plain = [name for name in models if NOT_MODELS.get(name, name) in SCRIPTED]
        if plain:
            raise UserError(f"--model {plain[0]} stands in the table anyway.", "Leave it out.")
        if not models and (settings.phrasings is not None or settings.gates):
            option = "--gate" if settings.phrasings is None else "--phrasings"
            raise UserError(f"{option} is about a model, and {self.agent.name} names none.", "Give one with --model.")
        for name in models:
            model_for(self.agent.tools.schemas, name)
            hysteresis_for(settings.hysteresis, name)
        if not models:
            check_hysteresis(settings.hysteresis, 1)
        self.warnings = [said for name in models if (said := training_notice(self.agent.tools.schemas, name))]
        gates = settings.gates or tuple(_gate_of(name, self.agent.tools.schemas) for name in models)
        if models and len(gates) not in (1, len(models)):
            raise UserError(f"There are {len(gates)} --gate for {len(models)} models.", "Give one, or one for each.")
        self.gates = dict(zip(models, map(ScoringGate.parse, itertools.cycle(gates)), strict=False))
        learnt = learnt_of(models[0]) if models else None
        rate = (learnt.rate_hz if learnt is not None else None) or RunConfig(env="").hz
        self.settings = replace(
            settings,
            agent=self.agent.name,
            models=models,
            gates=tuple(map(str, self.gates.values())),
            hz=settings.hz or rate,
        )
        self.warnings += [said for name in models if (said := rate_mismatch(name, self.settings.hz))]
        self.said: list[Saying] = []
        if settings.phrasings is not None:
            self.said = lines(self.skill, settings.phrasings, (self.skill.name, settings.env, self.agent.name))
        if all(one.means is not None for one in self.said):
            kept = nonsense(kept=True)  # no recipe teaches these
            self.said += [Saying(say, None) for say in kept[:: len(kept) // NONSENSE][:NONSENSE]]
        goals = None if self.agent.goals is None else self.agent.goals.source
        phrasings = [(one.say, one.means) for one in self.said]
        digests = contents((settings.env, settings.agent, goals), models, phrasings)
        self.settings = replace(self.settings, contents=digests)
        self._told = subjects(self.skill, self.settings.hz, self.settings.goals)
        self.document = Document(self.settings, json_file)
        self.document.tools = self.agent.tools.openai()
        self.document.lines(self.said)

    def run(self, progress: Progress) -> Document:
        """Fly everything that the document has not yet. UserError; what was flown until then is in the document."""
        flyers: dict[str, Flyer] = {name: scripted(self.skill, name) for name in SCRIPTED}
        flyers |= {name: self._flyer(name) for name in self.settings.models}
        cells = plan(self.settings, self._told, self.said)
        known = {cell.key for cell in cells}
        full = plan(replace(self.settings, delays=DELAYS, rates=RATES), self._told, self.said)
        more = [cell for cell in full if cell.key not in known]
        measure(self.skill, cells, flyers, self.document, progress, self._in_real_time, more)
        return self.document

    def _flyer(self, model: str) -> ModelFlyer:
        settings, agent = self.settings, shown(self.agent, model)
        steady = settings.hysteresis
        config = RunConfig(
            env=settings.env, engine=settings.engine, hz=settings.hz, clock="lockstep", hysteresis=steady
        )
        source = assembly.decider(config, agent, model)
        return ModelFlyer(self.skill, agent, source, settings.hz, self.gates[model])

    def _in_real_time(self, cell: Cell, cases: Sequence[Case]) -> tuple[list[Played], dict[str, Any]]:
        settings, expert = self.settings, cell.by == "expert"
        agent = self.agent if expert else shown(self.agent, cell.by)
        gate = OPEN if expert else self.gates[cell.by]
        steady = None if expert else settings.hysteresis
        config = wall_config(
            settings.env, agent, cell.by, settings.engine, cell.hz, gate, cases, cell.longest_s, steady
        )
        source = expert_source(self.skill) if expert else assembly.decider(config, agent, cell.by)
        return fly_wall(self.skill, agent, config, source, cases, cell.longest_s)


def _gate_of(model: str, tools: Sequence[ToolSchema]) -> str:
    """What its checkpoint says of its function head for these tools; else none."""
    gate = gate_of(model, tools)
    return "0" if gate is None else str(ScoringGate(gate, "function"))


def skill_for(env: str, agent: str, goals: Path | None) -> Skill:
    if env in assembly.JOINED:
        raise UserError(
            f"{env} has no goals with a judge and an expert, so nothing to score by.",
            f"Score one of {', '.join(registry.WORLDS)}, or a world of your own (.py).",
        )
    return skill_of(env, agent or None, goals)
