"""Schemas drawn anew: the corpus' tools in any order, their required parameters too, each parameter under one of two
names. A head knows its place alone, so what `<arg1>` means has to be read in the prompt."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from rtcontrol.evaluation.experiments import corpus
from rtcontrol.evaluation.experiments.corpus import ACTIONS, Action, CorpusOptions, CorpusSample
from rtcontrol.evaluation.experiments.forms import FormEncoder
from rtcontrol.evaluation.experiments.judging import HELD, JUDGED, free
from rtcontrol.evaluation.experiments.kept import KeptRun
from rtcontrol.evaluation.experiments.training import (
    CHUNK,
    GROUP,
    MEASURED,
    FormLearner,
    Setting,
    learner,
    loaded,
    taken,
    tokens_a_row,
    vocabulary,
)
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.models.train.rows import Row, ToolsEncoder
from rtcontrol.models.train.trainer import TrainConfig, Trainer

OTHER = {
    "seconds": "time",
    "x": "east",
    "y": "north",
    "thing": "item",
    "hand": "side",
    "force": "grip_force",
    "care": "manner",
    "speed": "pace",
    "colour": "paint",
    "coats": "layers",
    "gloss": "shine",
    "hours": "drying",
    "room": "place",
    "text": "words",
    "copies": "amount",
    "size": "letters",
    "tray": "source",
    "width": "breadth",
}
TOGETHER = 8  # rows of one schema
PLAINLY = CorpusOptions()


@dataclass(frozen=True)
class Drawn:
    """Tools, and what each parameter is called."""

    tools: tuple[ToolSchema, ...]
    names: Mapping[str, str]

    def row(self, sample: CorpusSample) -> Row:
        """The sample under these tools."""
        return Row(sample.instruction, sample.observation, self.call(sample.call), tools=self.tools)

    def call(self, call: Call) -> Call:
        """In the order in which the tool lists its parameters."""
        tool = next(tool for tool in self.tools if tool.name == call.name)
        own = {self.names[name]: value for name, value in call.arguments.items()}
        return Call(call.name, {p.name: own[p.name] for p in tool.parameters if p.name in own})


def draw(rng: Random, held_out: bool = False) -> Drawn:
    """Of the choices of names an eighth is held out."""
    while True:
        names = {name: rng.choice((name, other)) for name, other in OTHER.items()}
        if (zlib.crc32(" ".join(names.values()).encode()) % 8 == 0) == held_out:
            break
    made = tuple(_tool(action, tuple(rng.sample(list(action.required), len(action.required))), names)
                 for action in rng.sample(ACTIONS, len(ACTIONS)))  # fmt: skip
    return Drawn(made, names)


def _tool(action: Action, order: tuple[str, ...], names: Mapping[str, str]) -> ToolSchema:
    own = corpus.definition(action)
    properties: Mapping[str, Any] = own["parameters"]["properties"]
    renamed = {names[name]: properties[name] for name in (*order, *action.optional)}
    return _schema(json.dumps([action.name, action.about, renamed, [names[name] for name in order]]))


@lru_cache(4_096)
def _schema(said: str) -> ToolSchema:
    # To check a schema costs more than to train a row of it.
    name, about, properties, required = json.loads(said)
    parameters = {"type": "object", "properties": properties, "required": required}
    return tool_schemas([{"name": name, "description": about, "parameters": parameters}])[0]


def rows(seed: int, options: CorpusOptions = PLAINLY) -> Iterator[Row]:
    """For ever, `TOGETHER` of each schema."""
    rng, samples = Random(f"schemas {seed} {options.held_out}"), corpus.samples(seed, options)
    while True:
        drawn = draw(rng, options.held_out)
        for _ in range(TOGETHER):
            yield drawn.row(next(samples))


def run(setting: Setting, seed: int, folder: Path) -> dict[str, Any]:
    """Train on as many rows as the setting has of the one schema, all of schemas drawn anew, and judge."""
    made = learner(setting, seed, vocabulary(setting.form))
    count = round(setting.tokens / tokens_a_row(made.encoder, taken(corpus.samples(-1), MEASURED)))
    encoder = _encoder(made, setting)

    def source(chunk: int) -> list[Row]:
        return list(itertools.islice(rows(seed * 1_000_003 + chunk), CHUNK))

    config = TrainConfig(count, seed, GROUP, TOGETHER, setting.rate, forced_share=1.0, bf16=True)
    trainer = Trainer(made.model, encoder, source, config, folder)  # type: ignore[arg-type]
    trainer.run()
    some = list(itertools.islice(rows(-1), MEASURED))
    told = {"rows": trainer.samples, "tokens_a_row": round(tokens_a_row(encoder, some), 1)}
    return {"setting": asdict(setting), "seed": seed, "trained": told, **_judged(made.model, encoder)}


def judge(one: KeptRun, setting: Setting, folder: Path) -> dict[str, Any]:
    """A model that was trained on the one schema."""
    made = loaded(setting, one.checkpoint())
    known = one.result()
    assert known is not None, "it has a checkpoint"
    return {"trained": known["trained"], **_judged(made.model, _encoder(made, setting))}


def _encoder(made: FormLearner, setting: Setting) -> FormEncoder:
    template = PromptTemplate(COMPACT, made.heads.tokenizer, "the compact profile")
    own = ToolsEncoder(template, made.heads.tokenizer, setting.weights)
    return FormEncoder(own, setting.form, punctuation=setting.weights.end)


def _judged(model: Any, encoder: FormEncoder) -> dict[str, Any]:
    """Of held-out rows those decoded freely that are right, under the one schema and under schemas drawn anew, which
    training never has."""
    held, one = CorpusOptions(held_out=True), tool_schemas(corpus.tools())
    judged = {
        "one schema": taken(corpus.samples(HELD, held), JUDGED, one),
        "drawn": list(itertools.islice(rows(HELD, held), JUDGED)),
    }
    right = {name: sum(free(model, encoder, [[row] for row in some])) for name, some in judged.items()}
    return {"right": right, "of": JUDGED}
