"""Train the model of a bundled world: lander, paddle or driver.

The scripted expert is imitated on disturbed episodes; from 30 % of the samples on, every second chunk of rows comes
from episodes that the model itself plays, with the expert's labels (DAgger).

  python models/recipes/bundled_world.py lander                    an hour on one core: runs/lander/checkpoint
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from shared import CALL_SHAPE, MARKS, options, printed, run
from tokenizers import Tokenizer
from word_meanings import common_words, give_meaning, whole_words

from rtcontrol.agents.phrasing import FILLERS, NUMBER_WORDS, nonsense, split_words, training_lines
from rtcontrol.envs import registry
from rtcontrol.envs.registry import BundledWorld
from rtcontrol.envs.skill import Demonstration, Policy
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata, words
from rtcontrol.models.data.row import Row
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.train.encode import RowEncoder
from rtcontrol.models.train.export import export
from rtcontrol.models.train.policy import TreeDecider, TreePolicy
from rtcontrol.models.train.scratch import SCHEMA_PHRASES, Learner, new_model, prepare
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_subwords, number_words
from rtcontrol.training.gate import ROWS, Nonsense, fit_gate, with_nonsense

TOKENS = 4_096  # next to whole words
PARALLEL = 64  # episodes of a chunk
DAGGER_FROM, EXPERT_SHARE = 0.3, 0.3
EARLY = 0.15  # share of the samples with canonical sentences, if the world's plan has them
NONSENSE_SHARE = 0.12  # share of the rows with a meaningless instruction, whose call is null
UNKNOWN = 2  # untrained words that a sentence may have (docs/evaluation.md)


class WorldRecipe:
    """The training recipe of one world. Its tokenizer has a token for each word with a vector, and splits other
    words."""

    def __init__(self, world: BundledWorld) -> None:
        self.world, self.plan, self.agent, phrasings = world, world.plan(), world.controller(), world.phrasings()
        common = (common_words(), MARKS, "don't") if self.plan.common_words else ()
        numbers = (NUMBER_WORDS,) if self.plan.number_words else ()
        self.texts = (" ".join(sorted(phrasings.vocabulary())), self.plan.observed, *common, *numbers)
        self.sentences = training_lines(world.name)
        self.nonsense = Nonsense(world.name, phrasings.recognise)

    def build(self, seed: int) -> Learner:
        """Return a new, prepared model with its tokenizer and row encoder."""
        tools = self.agent.tools.schemas
        texts = [tools_text(tools), *self.texts, CALL_SHAPE]
        spoken = {form for text in texts for word in split_words(text) for form in (word, word.capitalize())}
        known = whole_words(self.sentences)
        marks = sorted({piece for text in texts for piece in text.split() if not re.search(r"\w", piece)})
        kept = [*number_words(), *sorted(word for word in spoken if word.isalpha()), *known, *marks]
        size = TOKENS + 2 * len({*known} - spoken)  # with and without a space
        phrases = SCHEMA_PHRASES if self.plan.schema_phrases else ()
        tokenizer: Tokenizer = build_subwords([*texts, *self.sentences], size, kept, phrases)
        wrapped = STTokenizer(tokenizer)
        template = PromptTemplate(COMPACT, wrapped, "the compact profile")
        encoder = RowEncoder(template, wrapped, compile_plan(tools, wrapped, True, template.overflow))
        model = new_model(self.plan.shape, tokenizer, seed)
        give_meaning(model, tokenizer)
        return Learner(prepare(model, tokenizer), tokenizer, encoder, dict(COMPACT))

    def train(self, out: Path, config: TrainConfig) -> Path:
        """Train (or resume in `out`), export to `out/checkpoint`, and return that folder."""
        learner = self.build(config.seed)
        model, encoder = learner.model, learner.encoder
        acting = encoder.of(compile_plan(self.agent.tools.schemas, encoder.tokenizer))  # a player must act
        policy, chunk_size = TreePolicy(model, acting), self.plan.chunk

        def source(chunk: int) -> Sequence[Row]:
            done = chunk * chunk_size / config.samples
            dagger = done >= DAGGER_FROM and chunk % 2 == 1
            early = self.early(done)
            played = self.episodes(config.seed * 1_000_003 + chunk, PARALLEL, policy if dagger else None, early)
            rows = [
                Row(r.instruction, r.observation, r.call, meant=r.goal.text())
                for r in itertools.islice(played, min(chunk_size, config.samples))
            ]
            return self.mixed(rows, random.Random(f"nonsense {config.seed} {chunk}"), early)

        Trainer(model, encoder, source, config, out).run(printed(self.agent.name))
        model.to(torch.bfloat16).float()  # rounded as in the checkpoint, so that the gate fits the checkpoint
        learnt = self.learnt(TreeDecider(model, encoder), config)
        export(model, learner.tokenizer, learner.template, out / "checkpoint", torch.bfloat16, learner.end)
        learnt.write(out / "checkpoint")
        return out / "checkpoint"

    def early(self, done: float) -> bool:
        """Return whether rows have only canonical sentences, after this share of the samples."""
        return self.plan.early is not None and done < EARLY

    def episodes(self, seed: int, parallel: int, policy: Policy | None, early: bool) -> Iterator[Demonstration]:
        """Yield the expert's labels in its own episodes, or in those that `policy` plays."""
        play = self.plan.early if early and self.plan.early is not None else self.plan.demonstrations
        return play(seed, parallel, policy=policy, beta=0.0 if policy is None else EXPERT_SHARE)

    def mixed(self, rows: list[Row], rng: random.Random, early: bool) -> list[Row]:
        """Return rows with some nonsense instructions, except early on, when other sentences than canonical ones would
        look like nonsense."""
        return rows if early else with_nonsense(rows, self.nonsense, NONSENSE_SHARE, rng)

    def canonical(self, seed: int, count: int) -> list[Row]:
        """Return rows with canonical sentences, for a gate."""
        played: Iterable[Demonstration] = itertools.islice(self.plan.demonstrations(seed, min(count, 64)), count)
        return [Row(each.goal.text(), each.observation, None) for each in played]

    def trained_words(self) -> str:
        """Return the words of all training sentences, including nonsense, and the words whose embeddings start from a
        vector."""
        sentences = [*self.texts, *self.sentences, *nonsense(held_out=False)]
        return " ".join(sorted({*words(" ".join(sentences)), *whole_words(()), *FILLERS}))

    def learnt(self, decide: TreeDecider, config: TrainConfig) -> TrainingMetadata:
        """Return the metadata of the bundled checkpoint with the gate of the new one."""
        seed = -1 - config.seed  # training seeds are not negative
        rows = self.canonical(seed, min(ROWS, config.samples))
        return replace(
            TrainingMetadata.of(ZOO / self.agent.name) or TrainingMetadata(()),
            tool_sets=(tuple(self.agent.tools.openai()),),
            history=self.agent.history,
            words=self.trained_words(),
            unknown_words=UNKNOWN,
            any_tools=False,
            allow_null=True,
            gate=fit_gate(decide, rows, self.nonsense.held_out, seed),
        )


RECIPES = {world.agent: WorldRecipe(world) for world in registry.WORLDS.values()}


def train(args: argparse.Namespace) -> str:
    """Run the recipe of the command line."""
    recipe = RECIPES[args.model]
    config: Any = replace(recipe.plan.config, seed=args.seed)
    config = replace(config, samples=args.samples or config.samples)
    folder = recipe.train(args.out / args.model, config)
    return f"Model: {folder}\nTry it: rtcontrol run --env {recipe.world.name} --model {folder}"


if __name__ == "__main__":
    parser = options(__doc__, "runs")
    parser.add_argument("model", choices=[*RECIPES], help="which model")
    parser.add_argument("--samples", type=int, help="rows of training (default: the recipe's)")
    run(parser, train)
