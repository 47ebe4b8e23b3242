"""One score from its settings to its document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rtcontrol.envs import registry
from rtcontrol.envs.evaluate import Case, Played
from rtcontrol.envs.skill import Skill
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.errors import UserError
from rtcontrol.run import assemble, worlds
from rtcontrol.run.skills import skill_of
from rtcontrol.run.trained import model_for, said_of
from rtcontrol.scoring.document import Document
from rtcontrol.scoring.flyers import SCRIPTED, Flyer, ModelFlyer, scripted
from rtcontrol.scoring.measure import Progress, measure
from rtcontrol.scoring.phrasings import Saying, lines
from rtcontrol.scoring.plan import DELAYS, RATES, Cell, Settings, plan
from rtcontrol.scoring.subjects import subjects
from rtcontrol.scoring.wall import expert_source, fly_wall, wall_config

NOT_MODELS = {"noop": "no-op"}


class Scoring:
    """Everything that a score needs, looked over before anything is flown. UserError for what does not go together."""

    def __init__(self, settings: Settings, json_file: Path | None = None) -> None:
        file = None if settings.goal_file is None else Path(settings.goal_file)
        self.skill = _skill(settings.env, settings.agent, file)
        self.agent = assemble.agent(settings.agent or assemble.default_agent(settings.env), file)
        models = tuple(dict.fromkeys(settings.models)) or (self.agent.model,)
        if not models[0]:
            raise UserError(f"The agent {self.agent.name} names no model to score.", "Give one with --model.")
        plain = [name for name in models if NOT_MODELS.get(name, name) in SCRIPTED]
        if plain:
            raise UserError(f"--model {plain[0]} stands in the table anyway.", "Name models or endpoints alone.")
        for name in models:
            model_for(self.agent.tools.schemas, name)
        self.warnings = [said for name in models if (said := said_of(self.agent.tools.schemas, name))]
        gates = settings.gates or (0.0,)
        if len(gates) not in (1, len(models)) or not all(0 <= gate <= 1 for gate in gates):
            raise UserError("--gate is a probability for all models, or one for each.", "Give such as --gate 0.6.")
        self.settings = replace(
            settings, agent=self.agent.name, models=models, gates=gates * (len(models) // len(gates))
        )
        self.said: list[Saying] = []
        if settings.phrasings is not None:
            self.said = lines(self.skill, settings.phrasings, (self.skill.name, settings.env, self.agent.name))
        self._told = subjects(self.skill, self.settings.hz, self.settings.goals)
        self.document = Document(self.settings, json_file)
        self.document.lines(self.said)

    def run(self, progress: Progress, built: Callable[[str], None] = lambda name: None) -> Document:
        """Fly everything that the document has not yet. UserError; what was flown until then is in the document."""
        flyers: dict[str, Flyer] = {name: scripted(self.skill, name) for name in SCRIPTED}
        for name in self.settings.models:
            built(name)
            flyers[name] = self._flyer(name)
        cells = plan(self.settings, self._told, self.said)
        known = {cell.key for cell in cells}
        full = plan(replace(self.settings, delays=DELAYS, rates=RATES), self._told, self.said)
        more = [cell for cell in full if cell.key not in known]
        measure(self.skill, cells, flyers, self.document, progress, self._in_real_time, more)
        return self.document

    def _gate(self, model: str) -> float:
        return self.settings.gates[self.settings.models.index(model)]

    def _flyer(self, model: str) -> ModelFlyer:
        settings, agent = self.settings, self.agent
        config = RunConfig(env=settings.env, engine=settings.engine, hz=settings.hz, clock="lockstep")
        return ModelFlyer(self.skill, agent, assemble.decider(config, agent, model), settings.hz, self._gate(model))

    def _in_real_time(self, cell: Cell, cases: Sequence[Case]) -> tuple[list[Played], dict[str, Any]]:
        settings, agent, expert = self.settings, self.agent, cell.by == "expert"
        gate = 0.0 if expert else self._gate(cell.by)
        config = wall_config(settings.env, agent, cell.by, settings.engine, cell.hz, gate, cases, cell.longest_s)
        source = expert_source(self.skill) if expert else assemble.decider(config, agent, cell.by)
        return fly_wall(self.skill, agent, config, source, cases, cell.longest_s)


def _skill(env: str, agent: str, goals: Path | None) -> Skill:
    if env in worlds.JOINED or env.endswith(assemble.RECORDED):
        raise UserError(
            f"{env} has no goals with a judge and an expert, so nothing to score by.",
            f"Score one of {', '.join(registry.known())}, or a world of your own (.py).",
        )
    return skill_of(env, agent or None, goals)
