"""What the recipes share: imitation of a scripted expert on disturbed episodes, then DAgger on the model's own."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from rtcontrol.agents.agent import Agent
from rtcontrol.agents.phrasing import FILLERS, split_words
from rtcontrol.agents.spoken import NUMBER_WORDS, nonsense, shown
from rtcontrol.envs import registry
from rtcontrol.envs.registry import BundledWorld
from rtcontrol.envs.skill import Demonstration, Policy
from rtcontrol.models.checkpoint.checkpoint import ZOO, Checkpoint
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata, words
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.train.adopt import export
from rtcontrol.models.train.finetune.checkpoints import base_digest
from rtcontrol.models.train.policy import TreeDecider, TreePolicy
from rtcontrol.models.train.prepared import prepare
from rtcontrol.models.train.rows import Row, RowEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.seen_vocabulary import whole
from rtcontrol.models.train.trainer import Progress, TrainConfig, Trainer, last_line
from rtcontrol.models.train.vocabulary import build_subwords, build_tokenizer, number_words
from rtcontrol.training.card import shape_of, skill_card, write_card
from rtcontrol.training.gate import ROWS, fit_gate
from rtcontrol.training.model_size import Learner, from_base
from rtcontrol.training.out_of_scope import Nonsense, with_nonsense
from rtcontrol.training.tool_randomization import DISTRACTING, MANY, STRANGERS, FieldNames, dressed, plain
from rtcontrol.training.word_vectors import MARKS, SCHEMA_PHRASES, common_words, give_meaning, whole_words

# A model whose words begin with vectors reads most that it was never taught: so many in a sentence are believed
# (docs/strangers.md).
UNKNOWN = 2
CALL_SHAPE = '{"name": "", "arguments": {}}'


class SkillRun(Trainer):
    """A skill's run; `began` is what it goes on from, which a run that goes on must share."""

    def __init__(self, *given: Any) -> None:
        *others, began = given
        self._began: Mapping[str, Any] = began
        super().__init__(*others)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **self._began}


@dataclass(frozen=True)
class Recipe:
    """One skill's recipe.

    `texts` are what the tokenizer knows word by word, beside tools and numbers; `phrases` it knows whole. With what
    people `said` words with a vector are whole, too, and begin with their meaning; beside them it has at most `tokens`:
    other words are whole if said often, else spelt in pieces that words share.
    `demonstrations` takes (seed, parallel, policy=, beta=). Chunks of `chunk` samples come from `parallel` worlds each;
    from `dagger_from` of the samples on, every `dagger_every`-th chunk is the model's own, `beta` of its ticks the
    expert's. `early`, where given, stands in for `demonstrations` during the first `early_until` of the samples. Where
    it draws `nonsense`, so much of the rows (`nonsense_share`) is told that, the function head learns to answer null,
    and the checkpoint says by which gate that is noticed. `prepared` models begin at the scales of
    models/train/prepared.py.
    """

    agent: Agent
    texts: tuple[str, ...]
    demonstrations: Callable[..., Iterator[Demonstration]]
    config: TrainConfig
    shape: ModelShape = field(default_factory=ModelShape)
    chunk: int = 16_384
    parallel: int = 64
    dagger_from: float = 0.3
    dagger_every: int = 2
    beta: float = 0.3
    early: Callable[..., Iterator[Demonstration]] | None = None
    early_until: float = 0.15
    phrases: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    tokens: int = 4096
    nonsense: Nonsense | None = None
    nonsense_share: float = 0.12
    prepared: bool = False

    def learner(self, seed: int, base: str | None = None) -> Learner:
        """A new model, or the checkpoint `base` to go on with. Raises UserError for one in another format."""
        if base is not None:
            return from_base(base, self.agent.tools, self.agent.allow_null or self.nonsense is not None)
        return Learner(*self.build(seed), dict(COMPACT))

    def build(self, seed: int) -> tuple[Any, Tokenizer, RowEncoder]:
        """A new model, its tokenizer and the row encoder."""
        tools = self.agent.tools.schemas
        texts = [tools_text(tools), *self.texts, CALL_SHAPE]
        if self.said:
            words = {form for text in texts for word in split_words(text) for form in (word, word.capitalize())}
            known = whole_words(self.said)
            marks = sorted({piece for text in texts for piece in text.split() if not re.search(r"\w", piece)})
            whole = [*number_words(), *sorted(word for word in words if word.isalpha()), *known, *marks]
            size = self.tokens + 2 * len({*known} - words)  # with and without a space
            tokenizer = build_subwords([*texts, *self.said], size, whole, self.phrases)
        else:
            tokenizer = build_tokenizer(texts, number_words(), self.phrases)
        wrapped = STTokenizer(tokenizer)
        template = PromptTemplate(COMPACT, wrapped, "the compact profile")
        plan = compile_plan(tools, wrapped, self.agent.allow_null or self.nonsense is not None, template.overflow)
        model = new_model(self.shape, tokenizer, seed)
        if self.said:
            give_meaning(model, tokenizer)
        return prepare(model, tokenizer) if self.prepared else model, tokenizer, RowEncoder(template, wrapped, plan)

    def train(
        self,
        out: Path,
        config: TrainConfig,
        progress: Progress | None = None,
        base: str | None = None,
        ways: int = 0,
        teacher: str | None = None,
    ) -> Path:
        """Train (or go on with the run in `out`) and export to `out/checkpoint`; returns that folder. `base` is what it
        goes on from; where there are `ways`, half of the episodes have tools of so many a chunk (`dressed_rows`); the
        checkpoint `teacher` is imitated, too (`TrainConfig.distil`)."""
        one = self.learner(config.seed, base)
        thinks = None if teacher is None else self.learner(config.seed, teacher).model
        model, encoder = one.model, one.encoder
        # Who plays must act, whatever is said.
        acting = compile_plan(self.agent.tools.schemas, encoder.tokenizer)
        policy = TreePolicy(model, encoder if self.nonsense is None else encoder.of(acting))

        def source(chunk: int) -> Sequence[Row]:
            dagger = chunk * self.chunk >= self.dagger_from * config.samples and chunk % self.dagger_every == 1
            early = self.early is not None and chunk * self.chunk < self.early_until * config.samples
            shown = self.episodes(config.seed * 1_000_003 + chunk, self.parallel, policy if dagger else None, early)
            some = itertools.islice(shown, min(self.chunk, config.samples))
            if ways:
                rows = self.dressed_rows(
                    some, self.parallel, ways, random.Random(f"tools {config.seed} {chunk}"), far=True
                )
            else:
                rows = [Row(r.instruction, r.observation, r.call, meant=r.goal.text()) for r in some]
            return self.mixed(rows, random.Random(f"nonsense {config.seed} {chunk}"), early)

        reader = encoder.any_tools() if ways else encoder
        others = {"base": base, "teacher": teacher}
        began: dict[str, Any] = {
            name: base_digest(Checkpoint.open(one).folder) for name, one in others.items() if one is not None
        }
        began |= {"ways": ways} if base is not None else {}
        SkillRun(model, reader, source, config, out, thinks, began).run(progress)
        model.to(torch.bfloat16).float()  # as it is stored, so that the gate is that of the checkpoint
        learnt = replace(self._learnt(TreeDecider(model, encoder), config), any_tools=bool(ways))
        whole(model)
        export(model, one.tokenizer, one.template, out / "checkpoint", torch.bfloat16, one.end)
        learnt.write(out / "checkpoint")
        write_card(out / "checkpoint", self._card(model, {role: one for role, one in others.items() if one}, out))
        return out / "checkpoint"

    def _card(self, model: Any, began: Mapping[str, str], out: Path) -> str:
        how = f"rtcontrol score --env {registry.by_agent()[self.agent.name].name} --model FOLDER"
        return skill_card(self.agent.name, self.agent.tools.schemas, began, shape_of(model), last_line(out), how)

    def episodes(self, seed: int, parallel: int, policy: Policy | None, early: bool) -> Iterator[Demonstration]:
        """The expert's labels in its own episodes, or in those that the learner's `policy` plays."""
        play = self.early if early and self.early is not None else self.demonstrations
        return play(seed, parallel, policy=policy, beta=0.0 if policy is None else self.beta)

    def dressed_rows(
        self, shown: Iterable[Demonstration], parallel: int, ways: int, rng: random.Random, far: bool = False
    ) -> list[Row]:
        """Rows of so many `parallel` episodes: half of these under the tools' own names, since those are what the model
        will be asked with, the others under one of so many `ways`. Where it goes `far`, half of the ways have many
        tools more, most of these of other trades, and half of them other names of what is observed."""
        tools = self.agent.tools.schemas
        more = [MANY if far and number % 2 else DISTRACTING for number in range(ways)]
        strangers = STRANGERS if far else 0.0
        drawn = [plain(tools), *(dressed(rng, tools, distracting=most, strangers=strangers) for most in more)]
        fields = [
            None,
            *(FieldNames(rng.getrandbits(32)) if far and number // 2 % 2 else None for number in range(ways)),
        ]
        mine = [0 if episode % 2 else 1 + episode // 2 % ways for episode in range(parallel)]
        rows = []
        for number, one in enumerate(shown):
            way, renamed = drawn[mine[number % parallel]], fields[mine[number % parallel]]
            seen, meant = one.observation if renamed is None else renamed(one.observation), one.goal.text()
            rows.append(Row(one.instruction, seen, way.call(one.call), tools=way.tools, meant=meant))
        return rows

    def mixed(self, rows: list[Row], rng: random.Random, early: bool) -> list[Row]:
        """The rows, a share of them told nonsense; early on all but the canonical sentences would pass for that."""
        if early or self.nonsense is None:
            return rows
        return with_nonsense(rows, self.nonsense, self.nonsense_share, rng)

    def canonical(self, seed: int, count: int) -> list[Row]:
        """So many situations, told canonically, for a gate."""
        shown = itertools.islice(self.demonstrations(seed, min(count, 64)), count)
        return [Row(one.goal.text(), one.observation, None) for one in shown]

    def taught(self) -> str:
        """The words that a sentence of training can hold, nonsense too, and those that begin with their meaning."""
        told = [*self.texts, *self.said, *nonsense(kept=False)]
        meant = whole_words(()) if self.said else ()
        return " ".join(sorted({*words(" ".join(told)), *meant, *FILLERS}))

    def _learnt(self, decide: TreeDecider, config: TrainConfig) -> TrainingMetadata:
        """What the bundled checkpoint, where there is one, says of itself, with the gate of this one."""
        known = TrainingMetadata.of(ZOO / self.agent.name) or TrainingMetadata(())
        made = replace(
            known,
            tool_sets=(tuple(self.agent.tools.openai()),),
            history=self.agent.history,
            words=self.taught(),
            unknown_words=UNKNOWN if self.said else 0,
        )
        if self.nonsense is None:
            return made
        seed = -1 - config.seed  # training's chunks have seeds from 0 on
        rows = self.canonical(seed, min(ROWS, config.samples))
        return replace(made, allow_null=True, gate=fit_gate(decide, rows, self.nonsense.held_out, seed))


def recipe_for(world: BundledWorld) -> Recipe:
    """The recipe of a bundled world's own model: imitation of its scripted expert, then DAgger."""
    plan, phrasings = world.plan(), world.phrasings()
    common = (common_words(), MARKS, "don't") if plan.common_words else ()
    numbers = (NUMBER_WORDS,) if plan.number_words else ()
    return Recipe(
        world.controller(),
        texts=(" ".join(sorted(phrasings.vocabulary())), plan.observed, *common, *numbers),
        said=shown(world.name),
        nonsense=Nonsense(world.name, phrasings.recognise),
        demonstrations=plan.demonstrations,
        config=plan.config,
        shape=plan.shape,
        chunk=plan.chunk,
        early=plan.early,
        phrases=SCHEMA_PHRASES if plan.schema_phrases else (),
        prepared=True,
    )
