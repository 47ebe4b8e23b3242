"""One score from its settings to its document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rtcontrol.agents import Agent
from rtcontrol.envs import registry
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
from rtcontrol.scoring.plan import Settings, plan
from rtcontrol.scoring.subjects import subjects

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
        for name, gate in zip(self.settings.models, self.settings.gates, strict=True):
            built(name)
            flyers[name] = _flyer(self.settings, self.skill, self.agent, name, gate)
        measure(self.skill, plan(self.settings, self._told, self.said), flyers, self.document, progress)
        return self.document


def _flyer(settings: Settings, skill: Skill, agent: Agent, model: str, gate: float) -> ModelFlyer:
    config = RunConfig(env=settings.env, engine=settings.engine, hz=settings.hz, clock="lockstep")
    return ModelFlyer(skill, agent, assemble.decider(config, agent, model), settings.hz, gate)


def _skill(env: str, agent: str, goals: Path | None) -> Skill:
    if env in worlds.JOINED or env.endswith(assemble.RECORDED):
        raise UserError(
            f"{env} has no goals with a judge and an expert, so nothing to score by.",
            f"Score one of {', '.join(registry.known())}, or a world of your own (.py).",
        )
    return skill_of(env, agent or None, goals)
