"""One score from its settings to its document."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rtcontrol.agents.phrasing import nonsense
from rtcontrol.envs import registry
from rtcontrol.envs.evaluate import Played, play
from rtcontrol.envs.skill import Skill
from rtcontrol.evaluation.phrasings import Saying, lines
from rtcontrol.evaluation.policies import SCRIPTED, Flyer, ModelFlyer, ScoringGate, scripted
from rtcontrol.evaluation.score_plan import LISTENED_S, Cell, Settings, plan, subjects
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import replace_file
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import gate_of, learnt_of, model_for, rate_mismatch, shown, training_notice
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.run.user_code import contents
from rtcontrol.telemetry.run_folder import describe

SCHEMA = 3
NONSENSE = 50  # sentences of the project's own list, where a list of phrasings has none
NOT_MODELS = {"noop": "no-op"}
CHUNK = 32  # cases; what is interrupted loses at most these
Progress = Callable[[int, int], None]  # episodes done, of


class Document:
    """`data` is all that was measured; with a `path` it is in that file after each `add`. UserError where the file
    holds something else, or cannot be written."""

    def __init__(self, settings: Settings, path: Path | None) -> None:
        self._path = path = path and path.resolve()  # what a link stands for is written, not the link
        told = json.loads(json.dumps(asdict(settings)))
        self.data: dict[str, Any] = {"score": SCHEMA, "settings": told, "complete": False, "cells": {}}
        if path is not None and path.is_file() and path.stat().st_size:
            self.data = _read(path, told)
        self.cells: dict[str, dict[str, Any]] = self.data["cells"]

    @property
    def begun(self) -> bool:
        """Whether there is something of an earlier run."""
        return bool(self.cells)

    def done(self, cell: Cell) -> int:
        """How many of its cases were flown."""
        return len(self.cells[cell.key]["outcomes"]) if cell.key in self.cells else 0

    def add(self, cell: Cell, flown: Sequence[Played]) -> None:
        """What came of the cell's next cases."""
        if (kept := self.cells.get(cell.key)) is None:
            told = list(dict.fromkeys(case.instruction for case in cell.cases))[:8]
            self.cells[cell.key] = kept = {"part": cell.part, "title": cell.title, "by": cell.by, "told": told}
            kept |= {"seeds": [], "outcomes": [], "returns": [], "seconds": [], "ends": [], "held": 0, "lost": 0}
        listened = max(1, round(LISTENED_S * cell.hz))
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

    def lines(self, lines: Sequence[Saying]) -> None:
        """What was said, in the order of the cells' outcomes."""
        if lines:
            self.data["lines"] = [{"say": one.say, "means": one.means} for one in lines]

    def write(self) -> None:
        if self._path is None:
            return
        try:
            replace_file(self._path, json.dumps({**self.data, "machine": describe()}, indent=1) + "\n")
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written ({error.strerror}); what it holds is whole, as of before.",
                "Make room, and give the same command again: it goes on there.",
            ) from None


def _read(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    remedy = "Name another file, or remove this one."
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        found = None
    parts = ("settings", "cells")
    if (
        not isinstance(found, dict)
        or found.get("score") != SCHEMA
        or not all(isinstance(found.get(p), dict) for p in parts)
    ):
        raise UserError(f"--json {path} is there already, and holds no score.", remedy)
    held = found["settings"]
    if isinstance(was := held.get("contents"), dict):
        now = settings["contents"]
        if changed := [name for name in {**was, **now} if was.get(name) != now.get(name)]:
            raise UserError(f"--json {path} holds a score from before {changed[0]} changed.", remedy)
    if other := [name for name, value in settings.items() if held.get(name) != value]:
        name = other[0]
        raise UserError(
            f"--json {path} holds a score of other settings: {name} is {held.get(name)!r} there, {settings[name]!r} "
            "here.",
            remedy,
        )
    found["complete"] = False
    return dict(found)


def measure(
    skill: Skill, cells: Sequence[Cell], flyers: Mapping[str, Flyer], document: Document, progress: Progress
) -> None:
    """Fly what the document has not yet. Raises UserError; what was flown until then is in the document."""
    total = sum(len(cell.cases) for cell in cells)
    for cell in cells:
        flyer = flyers[cell.by]
        parallel = flyer.parallel if isinstance(flyer, ModelFlyer) else CHUNK
        while (first := document.done(cell)) < len(cell.cases):
            progress(sum(map(document.done, cells)), total)
            cases = cell.cases[first : first + CHUNK]
            document.add(cell, play(skill, flyer, cases, cell.hz, parallel, longest_s=cell.longest_s))
    document.data["complete"] = True
    document.write()


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
        self.document.lines(self.said)

    def run(self, progress: Progress) -> Document:
        """Fly everything that the document has not yet. UserError; what was flown until then is in the document."""
        flyers: dict[str, Flyer] = {name: scripted(self.skill, name) for name in SCRIPTED}
        flyers |= {name: self._flyer(name) for name in self.settings.models}
        measure(self.skill, plan(self.settings, self._told, self.said), flyers, self.document, progress)
        return self.document

    def _flyer(self, model: str) -> ModelFlyer:
        settings, agent = self.settings, shown(self.agent, model)
        config = RunConfig(env=settings.env, engine=settings.engine, hz=settings.hz, clock="lockstep")
        return ModelFlyer(agent, assembly.decider(config, agent, model), settings.hz, self.gates[model])


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
