"""The base recipe: look things up first, then reason about what is found; each stage ends where it reaches its bar.

A base reads any tools: they are drawn anew with every few rows. Its stages are runs of their own in numbered folders,
each from the last one's weights; a run that is stopped goes on where it last saved, to the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer

from rtcontrol.agents.spoken import shown
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.adopt import export
from rtcontrol.models.train.prepared import prepare
from rtcontrol.models.train.probes import with_word_probes
from rtcontrol.models.train.rows import LossWeights, Row, ToolsEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.tasks import names
from rtcontrol.models.train.tasks.check import Checked, SyntheticTask, check
from rtcontrol.models.train.tasks.names import Variety, compare, count, if_then, look_up, nearest, towards
from rtcontrol.models.train.trainer import (
    Progress,
    TrainConfig,
    Trainer,
    first_process_says,
    process_rank,
    run_processes,
)
from rtcontrol.models.train.vocabulary import build_subwords, number_words
from rtcontrol.training.base_worlds import RECIPES, Worlds, WorldsRun, learnt
from rtcontrol.training.gate import ROWS
from rtcontrol.training.word_vectors import SCHEMA_PHRASES, common_words, give_meaning, whole_words

Tasks = Callable[[Random, int, bool], Iterator[SyntheticTask]]
TOKENS = 7_000
# Beside the bundled agents' own: what stands between the words of these tasks' tools.
PHRASES = (
    *SCHEMA_PHRASES,
    '.", "parameters": {"type": "object", "properties": {"',
    '", "parameters": {"type": "object", "properties": {"',
    '": {"type": "string"}',
    '": {"type": "integer", "minimum": ',
    ', "maximum": ',
)
HELD_OUT = 300  # tasks of a check


@dataclass(frozen=True)
class Stage:
    """`tasks` with their shares, of one of `things` things each; over when `bar` of the swapped pairs are right, with
    names never trained where `unseen`; given up after `limit` samples, over which the learning rate falls from `rate`.
    """

    name: str
    tasks: Sequence[tuple[float, Tasks]]
    things: tuple[int, ...]
    limit: int
    bar: float = 0.9
    unseen: bool = True
    rate: float = 1e-3

    def draw(self, rng: Random, unseen: bool = False) -> Iterator[SyntheticTask]:
        """Tasks of one set of tools."""
        tasks = rng.choices([t for _, t in self.tasks], [share for share, _ in self.tasks])[0]
        return tasks(rng, rng.choice(self.things), unseen)

    def rows(self, rng: Random, count: int) -> list[Row]:
        """Rows with word probes."""
        found: list[Row] = []
        while len(found) < count:
            for task in self.draw(rng):
                found += task.rows()
        return [*with_word_probes(found[:count], rng, 1)]

    def held_out(self, count: int) -> list[SyntheticTask]:
        """Tasks that training never shows, and where `unseen`, names."""
        rng, found = Random(f"held out {self.name}"), list[SyntheticTask]()
        while len(found) < count:
            found += self.draw(rng, self.unseen)
        return found[:count]


def _look_up(**simpler: Any) -> Tasks:
    return partial(look_up, variety=Variety(**simpler))


PLAIN = {"sentences": 4, "layouts": 4, "several_tools": 0.0, "unasked": 0.0}
STAGES = (
    # A hundred words as names make the heads find each other; with names of any spelling at once they take far longer.
    Stage("words", [(1.0, _look_up(names=(1, 0, 0, 0, 0), **PLAIN))], (2, 3, 3), 60_000, 0.85, unseen=False),
    # At a steady rate it stays at 0.7; where it falls, 0.85 is soon reached.
    Stage("spelt", [(1.0, _look_up(names=(1, 2, 2, 0, 2), **PLAIN))], (2, 3, 3), 100_000, 0.85),
    Stage("names", [(1.0, _look_up())], (1, 2, 3, 3), 120_000, rate=7e-4),
    Stage("six", [(1.0, _look_up())], (1, 3, 4, 6), 48_000, 0.85, rate=5e-4),
    Stage(
        "relations",
        [
            (0.35, _look_up()),
            (0.20, compare),
            (0.10, nearest),
            (0.10, count),
            (0.12, towards),
            (0.13, if_then),
        ],
        (2, 3, 3, 4),
        160_000,
        0.85,
        rate=5e-4,
    ),
)


class StageRun(Trainer):
    """One stage's run: it is enough at the bar. `checked` is the last check."""

    def __init__(self, model: Any, encoder: ToolsEncoder, stage: Stage, recipe: BaseRecipe, out: Path) -> None:
        self.stage, self.checked = stage, Checked(0.0, 0.0, 0, 0)
        self._held_out = stage.held_out(HELD_OUT)
        self._encoder = encoder
        config = TrainConfig(
            samples=stage.limit,
            seed=recipe.seed,
            group=36,
            run=6,
            learning_rate=stage.rate,
            final_rate=0.05,
            warmup=min(0.02, 1_000 / stage.limit),
            forced_share=recipe.forced_share,
            bf16=True,
        )

        def source(chunk: int) -> list[Row]:
            return stage.rows(Random(f"{recipe.seed}/{stage.name}/{chunk}"), recipe.chunk)

        super().__init__(model, encoder, source, config, out)

    def enough(self) -> bool:
        self.checked = check(self.model, self._encoder, self._held_out)
        if process_rank():
            return self.checked.swapped >= self.stage.bar
        with (self.out / "checks.jsonl").open("a") as log:
            log.write(json.dumps({"samples": self.samples, **asdict(self.checked)}) + "\n")
        return self.checked.swapped >= self.stage.bar


@dataclass(frozen=True)
class BaseRecipe:
    """The whole recipe: one model through all stages."""

    shape: ModelShape = field(
        default_factory=lambda: ModelShape(hidden=256, layers=4, heads=4, kv_heads=4, intermediate=512)
    )
    stages: tuple[Stage, ...] = STAGES
    worlds: Worlds | None = field(default_factory=Worlds)
    seed: int = 0
    chunk: int = 4_096
    forced_share: float = 0.02

    def build(self, out: Path) -> tuple[Any, Tokenizer, ToolsEncoder]:
        """A prepared model, its tokenizer and the row encoder. The run in `out` keeps its tokenizer: words may be added
        to the lists that it is made of, and weights know their own ids."""
        if (out / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
        else:
            tokenizer = base_tokenizer()
            first_process_says(True)  # nobody reads what is half written
            if not process_rank():
                out.mkdir(parents=True, exist_ok=True)
                tokenizer.save(str(out / "tokenizer.json"))
        mine = STTokenizer(tokenizer)
        encoder = ToolsEncoder(PromptTemplate(COMPACT, mine, "the compact profile"), mine, LossWeights(quote=0.3))
        model = new_model(self.shape, tokenizer, self.seed)
        give_meaning(model, tokenizer)
        return prepare(model, tokenizer), tokenizer, encoder

    def train(self, out: Path, progress: Progress | None = None) -> Path:
        """Train all stages (or go on in `out`) and export bf16 weights to `out/checkpoint`; returns that folder. Raises
        UserError for a stage that ends below its bar; the next run in `out` goes on past it."""
        model, tokenizer, encoder = self.build(out)
        for number, stage in enumerate(self.stages, start=1):
            folder = out / f"{number}-{stage.name}"
            if (folder / "done.json").is_file():
                try:
                    model.load_state_dict(torch.load(folder / "state.pt", weights_only=True)["model"])
                except (OSError, RuntimeError) as error:
                    why = str(error).splitlines()[0]
                    raise UserError(
                        f"{folder} is of another recipe, or damaged ({why}).", "Give another --out."
                    ) from None
                continue
            run = StageRun(model, encoder, stage, self, folder)
            run.run(progress and partial(_tell, progress, run))
            run.save()
            reached = run.enough()
            if not process_rank():
                end = {"samples": run.samples, **asdict(run.checked), "bar": stage.bar}
                export(model, tokenizer, COMPACT, out / "checkpoint", torch.bfloat16)
                (folder / "done.json").write_text(json.dumps(end) + "\n")
            if not first_process_says(reached):
                raise UserError(
                    f"Stage {number} ({stage.name}) ends after {run.samples:,} samples at {run.checked.swapped:.2f} "
                    f"of the swapped pairs, below its bar of {stage.bar}: {folder}/checks.jsonl has the curve.",
                    "More samples do not mend a plateau: change the shape or the prepared start, with a new --out; or "
                    "go on from here to the next stage: run it again.",
                )
        if self.worlds is not None:
            self._all_worlds(model, tokenizer, encoder.nullable(), self.worlds, out, progress)
        return out / "checkpoint"

    def _all_worlds(
        self,
        model: Any,
        tokenizer: Tokenizer,
        encoder: ToolsEncoder,
        stage: Worlds,
        out: Path,
        progress: Progress | None,
    ) -> None:
        run = WorldsRun(model, encoder, stage, self.stages[-1].rows, self.seed, out / "worlds")
        run.run(progress and (lambda line: progress(line | {"stage": "worlds"})))
        if process_rank():
            return
        model.to(torch.bfloat16).float()  # as it is stored, so that the gate is that of the checkpoint
        export(model, tokenizer, COMPACT, out / "checkpoint", torch.bfloat16)
        learnt(model, encoder, self.seed, min(ROWS, stage.samples)).write(out / "checkpoint")


def base_tokenizer() -> Tokenizer:
    """The base's subwords: everyday English, words of tools, the bundled agents' sentences, and syllables of names."""
    common = common_words()
    capitals = " ".join(word.capitalize() for word in common.split())
    things = " ".join(names.COLOURS + names.OBJECTS)
    texts = [common, common, capitals, things, things, *[" ".join(names.SYLLABLES)] * 6]
    said = [text for agent in RECIPES for text in shown(agent)]
    whole = [*number_words(200, 1.0), *dict.fromkeys([*names.FIRST, *whole_words(())])]
    return build_subwords([*texts, *said], TOKENS, whole, PHRASES)


def _tell(progress: Progress, run: StageRun, line: dict[str, Any]) -> None:
    left = (run.config.samples - run.samples) / max(line["samples_per_s"], 1e-9)
    more = {"stage": run.stage.name, "swapped": round(run.checked.swapped, 3), "left_at_most_s": round(left)}
    progress(line | more)


RECIPE = BaseRecipe()


def train(out: str, processes: int = 1, progress: Progress | None = None) -> None:
    """The recipe in the folder `out`, by so many processes of one thread each (one alone is this one); `progress` is a
    function of a module. Raises UserError."""
    run_processes(processes, RECIPE.train, Path(out), progress)
