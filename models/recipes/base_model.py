"""Train the base: a small model that reads any tools, to start other models from.

Four stages of look-ups, then the three bundled worlds with their tools under random names. Each stage continues from
the weights of the one before, in its own folder, and ends after as many rows as that of the bundled base had; the first
two ended at their bar, before the end of their schedule. The bundled base had a stage more before the worlds, of
questions that compare, count and decide (docs/base.md).

  python models/recipes/base_model.py      days on one core: runs/base/checkpoint
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import base_tasks as tasks
import torch
from bundled_world import RECIPES, WorldRecipe
from shared import options, printed, run
from tokenizers import Tokenizer
from word_meanings import common_words, give_meaning, whole_words

from rtcontrol.agents.phrasing import shown
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.data.row import Row
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.models.train.encode import LossWeights, ToolsEncoder, with_word_probes
from rtcontrol.models.train.export import export
from rtcontrol.models.train.policy import TreeDecider, TreePolicy
from rtcontrol.models.train.scratch import SCHEMA_PHRASES, ModelShape, new_model, prepare
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_subwords, number_words
from rtcontrol.training.gate import ROWS, confidences, gate_between

SHAPE = ModelShape(hidden=256, layers=4, heads=4, kv_heads=4, intermediate=512)
TOKENS = 7_000
CHUNK, WORLDS_CHUNK = 4_096, 8_192
WORLDS, KEPT, PARALLEL, WAYS = 600_000, 0.3, 48, 12  # rows; share of the stages before; episodes and tool sets a chunk
PHRASES = (
    *SCHEMA_PHRASES,
    '.", "parameters": {"type": "object", "properties": {"',
    '", "parameters": {"type": "object", "properties": {"',
    '": {"type": "string"}',
    '": {"type": "integer", "minimum": ',
    ', "maximum": ',
)
# Other names of the worlds' tools, parameters and words.
SYNONYMS: Mapping[str, Sequence[str]] = {
    "engines": ("thrusters", "thrust", "set_engines", "burn", "jets"),
    "move": ("move_paddle", "slide", "shift", "set_velocity", "steer"),
    "set_speed": ("drive_at", "cruise", "speed", "go_at"),
    "change_lane": ("switch_lane", "lane_change", "merge", "move_over"),
    "follow": ("keep_distance", "tail", "stay_behind", "trail"),
    "brake": ("slow_down", "decelerate", "apply_brakes"),
    "turn": ("take_turn", "choose_way", "route", "turn_off"),
    "stop": ("halt", "full_stop", "stand"),
    "main": ("main_engine", "up", "lift", "bottom", "vertical"),
    "side": ("side_engine", "lateral", "sideways", "sides"),
    "velocity": ("speed", "v", "rate", "steps"),
    "kmh": ("speed", "km_per_hour", "target_speed", "limit"),
    "direction": ("side", "to", "which", "lane_side"),
    "gap": ("distance", "metres", "headway", "gap_m"),
    "level": ("strength", "percent", "force", "amount"),
    "at_next_junction": ("direction", "way", "next_junction", "where"),
    "straight": ("ahead", "onward", "forward"),
    "left": ("lefthand",),
    "right": ("righthand",),
}


@dataclass(frozen=True)
class Stage:
    """Look-ups of this variety, among one of `things` things each. The learning rate falls from `rate` over `limit`
    rows; the stage ends after `rows`."""

    name: str
    variety: tasks.Variety
    things: tuple[int, ...]
    limit: int
    rows: int
    rate: float = 1e-3

    def sampled(self, rng: Random, count: int) -> list[Row]:
        """Return rows with word probes."""
        rows: list[Row] = []
        while len(rows) < count:
            rows += tasks.look_up(rng, rng.choice(self.things), self.variety)
        return [*with_word_probes(rows[:count], rng, 1)]


STAGES = (
    # A hundred words as names make the heads find each other; with names of any spelling at once they take far longer.
    Stage("words", tasks.Variety((1, 0, 0, 0, 0), 4, 4, 0.0, 0.0), (2, 3, 3), 60_000, 20_480),
    Stage("spelt", tasks.Variety((1, 2, 2, 0, 2), 4, 4, 0.0, 0.0), (2, 3, 3), 100_000, 61_440),
    Stage("names", tasks.Variety(), (1, 2, 3, 3), 120_000, 120_000, 7e-4),
    Stage("six", tasks.Variety(), (1, 3, 4, 6), 48_000, 48_000, 5e-4),
)


@dataclass(frozen=True)
class Dressed:
    """`tools` under other names; `call` returns a call under these names."""

    tools: tuple[ToolSchema, ...]
    names: Mapping[str, tuple[str, Mapping[str, tuple[str, Mapping[Any, Any]]]]]

    def call(self, call: Call) -> Call:
        name, parameters = self.names[call.name]
        arguments = {}
        for key, value in call.arguments.items():
            written, words = parameters[key]
            arguments[written] = words.get(value, value)
        tool = next(tool for tool in self.tools if tool.name == name)
        return Call(name, {p.name: arguments[p.name] for p in tool.parameters if p.name in arguments})


def dressed(rng: Random, tools: Sequence[ToolSchema], synonyms: float = 0.5, distracting: int = 3) -> Dressed:
    """Return the tools and up to `distracting` others in any order, with their parameters and words in any order, each
    name a synonym with this probability."""

    def another(name: str) -> str:
        return rng.choice(SYNONYMS[name]) if name in SYNONYMS and rng.random() < synonyms else name

    renamed, names = [], {}
    for tool in tools:
        name, properties, written = another(tool.name), dict[str, Any](), dict[str, tuple[str, dict[Any, Any]]]()
        for parameter in rng.sample(tool.parameters, len(tool.parameters)):
            values = parameter.schema.get("enum")
            words = {value: another(value) for value in values or () if value in SYNONYMS}
            listed = [words.get(value, value) for value in values or ()]
            other = another(parameter.name)
            properties[other] = {**parameter.schema, **({"enum": rng.sample(listed, len(listed))} if listed else {})}
            written[parameter.name] = other, words
        shape = {"type": "object", "properties": properties, "required": list(properties)}
        about = rng.choice((tool.description, ""))
        renamed.append(ToolSchema.from_openai({"name": name, "description": about, "parameters": shape}))
        names[tool.name] = name, written
    taken = {tool.name for tool in renamed} | {*tasks.VERBS["move"][0]}  # to move may be asked for
    for verb in [verb for verb in tasks.verbs_of(rng, rng.randint(0, distracting)) if verb not in taken]:
        way = {"way": tasks.choice(rng, rng.choice(tasks.WAYS))} if rng.random() < 0.7 else {}
        renamed.append(tasks.a_tool(rng, verb, way)[0])
    return Dressed(tuple(rng.sample(renamed, len(renamed))), names)


def plain(tools: Sequence[ToolSchema]) -> Dressed:
    """Return the tools under their own names."""
    return Dressed(tuple(tools), {t.name: (t.name, {p.name: (p.name, {}) for p in t.parameters}) for t in tools})


def base_tokenizer() -> Tokenizer:
    """Return the subwords: everyday English, words of tools, the bundled agents' sentences, and syllables of names."""
    common = common_words()
    capitals = " ".join(word.capitalize() for word in common.split())
    things = " ".join(tasks.COLOURS + tasks.OBJECTS)
    texts = [common, common, capitals, things, things, *[" ".join(tasks.SYLLABLES)] * 6]
    sentences = [text for recipe in RECIPES.values() for text in shown(recipe.world.name)]
    whole = [*number_words(200, 1.0), *dict.fromkeys([*tasks.FIRST, *whole_words(())])]
    return build_subwords([*texts, *sentences], TOKENS, whole, PHRASES)


class WorldRows:
    """Rows of the last stage: `KEPT` of them as the stages before, the rest in equal parts of each world."""

    def __init__(self, model: Any, acting: ToolsEncoder, seed: int, samples: int) -> None:
        self._seed, self._samples = seed, samples
        self._policies = {
            name: TreePolicy(model, acting.of(recipe.agent.tools.schemas)) for name, recipe in RECIPES.items()
        }

    def __call__(self, chunk: int) -> list[Row]:
        size = min(WORLDS_CHUNK, self._samples)
        rng, kept = Random(f"{self._seed}/worlds/{chunk}"), round(size * KEPT)
        rows = STAGES[-1].sampled(rng, kept)
        for number, (name, recipe) in enumerate(RECIPES.items()):
            rows += self._world(name, recipe, chunk, (size - kept + number) // len(RECIPES), rng)
        return rows

    def _world(self, name: str, recipe: WorldRecipe, chunk: int, count: int, rng: Random) -> list[Row]:
        """Half of the episodes have the world's own tools, the others one of `WAYS` random sets."""
        done = chunk * WORLDS_CHUNK / self._samples
        early, parallel = recipe.early(done), min(PARALLEL, count)
        policy = self._policies[name] if done >= 0.3 and chunk // 2 % 2 == 1 else None
        played = recipe.episodes(self._seed * 1_000_003 + chunk, parallel, policy, early)
        tools = recipe.agent.tools.schemas
        ways = [plain(tools), *(dressed(rng, tools) for _ in range(WAYS))]
        mine = [ways[0 if episode % 2 else 1 + episode // 2 % WAYS] for episode in range(parallel)]
        rows = []
        for number, each in enumerate(itertools.islice(played, count)):
            way = mine[number % parallel]
            call, meant = way.call(each.call), each.goal.text()
            rows.append(Row(each.instruction, each.observation, call, tools=way.tools, meant=meant))
        return recipe.mixed(rows, rng, early)


def learnt(model: Any, encoder: ToolsEncoder, seed: int, count: int) -> TrainingMetadata:
    """Return the metadata of the checkpoint, with the gate of all worlds together."""
    understood, nonsense = list[float](), list[float]()
    rng = Random(f"gate {seed}")
    for recipe in RECIPES.values():
        decide = TreeDecider(model, encoder.of(recipe.agent.tools.schemas))
        held, known = confidences(decide, recipe.canonical(-1 - seed, count), recipe.nonsense.held_out, rng)
        nonsense += held
        understood += known
    sets = tuple(tuple(recipe.agent.tools.openai()) for recipe in RECIPES.values())
    return TrainingMetadata(sets, history=0, allow_null=True, gate=gate_between(nonsense, understood), any_tools=True)


def train(args: argparse.Namespace) -> str:
    """Run all stages, each as far as it is not done; `--samples` is for a trial of the recipe."""
    out, seed = args.out, args.seed
    tokenizer = base_tokenizer()
    mine = STTokenizer(tokenizer)
    template, weights = PromptTemplate(COMPACT, mine, "the compact profile"), LossWeights(quote=0.3)
    encoder, nullable = (ToolsEncoder(template, mine, weights, allow_null) for allow_null in (False, True))
    model = new_model(SHAPE, tokenizer, seed)
    give_meaning(model, tokenizer)
    model = prepare(model, tokenizer)
    for number, stage in enumerate(STAGES, start=1):
        limit = args.samples or stage.limit
        more = {"group": 36, "run": 6, "final_rate": 0.05, "warmup": min(0.02, 1_000 / limit), "forced_share": 0.02}
        more |= {"bf16": True, "stop": stage.rows}
        config = TrainConfig(limit, seed, learning_rate=stage.rate, **more)  # type: ignore[arg-type]

        def source(chunk: int, stage: Stage = stage, size: int = min(CHUNK, limit)) -> list[Row]:
            return stage.sampled(Random(f"{seed}/{stage.name}/{chunk}"), size)

        Trainer(model, encoder, source, config, out / f"{number}-{stage.name}").run(printed(stage.name))
    samples = args.samples or WORLDS
    more = {"group": 48, "run": 8, "final_rate": 0.03, "warmup": 0.01, "forced_share": 0.02, "bf16": True}
    config = TrainConfig(samples, seed, learning_rate=5e-4, **more)  # type: ignore[arg-type]
    rows = WorldRows(model, encoder, seed, samples)
    Trainer(model, nullable, rows, config, out / "5-worlds").run(printed("worlds"))
    model.to(torch.bfloat16).float()  # as it is stored, so that the gate is that of the checkpoint
    export(model, tokenizer, COMPACT, out / "checkpoint", torch.bfloat16)
    learnt(model, nullable, seed, min(ROWS, samples)).write(out / "checkpoint")
    return f"Model: {out / 'checkpoint'}"


if __name__ == "__main__":
    parser = options(__doc__, "runs/base")
    parser.add_argument("--samples", type=int, help="rows of each stage (default: the recipe's)")
    run(parser, train)
