"""Train the model of a bundled world: lander, paddle or driver.

The model learns to imitate the scripted expert in disturbed episodes. After 30 % of the samples, the model plays the
episodes of every second chunk of rows, and the expert labels them (DAgger).

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
from shared import CALL_SHAPE, MARKS, base_parser, progress_printer, run_script
from tokenizers import Tokenizer
from word_meanings import common_words, set_embeddings, whole_words

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
from rtcontrol.models.numbers import known_numbers
from rtcontrol.models.train.encode import RowEncoder
from rtcontrol.models.train.export import export
from rtcontrol.models.train.policy import TreeDecider, TreePolicy
from rtcontrol.models.train.scratch import SCHEMA_PHRASES, Learner, initialise_weights, new_model
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_subwords, number_words
from rtcontrol.training.gate import ROWS, Nonsense, fit_gate, with_nonsense

TOKENS = 4_096  # tokens of the vocabulary, without the added whole words
EPISODES = 64  # number of episodes that are played in parallel for each chunk of rows
DAGGER_FROM, EXPERT_SHARE = 0.3, 0.3
CANONICAL_SHARE = 0.15  # the first 15 % of samples use only canonical sentences, if the world has any
NONSENSE_SHARE = 0.12  # share of rows with a meaningless instruction; their call is null
SENTENCES = 20_000  # number of sampled training sentences whose numbers and units become known
MAX_UNKNOWN_WORDS = 2  # an instruction with more unknown words is refused (docs/evaluation.md)


class WorldRecipe:
    """The training recipe of one world. Its tokenizer has one token for each word with a word vector, and splits other
    words into pieces."""

    def __init__(self, world: BundledWorld) -> None:
        self.world, self.plan, self.agent, phrasings = world, world.plan(), world.controller(), world.phrasings()
        common = (common_words(), MARKS, "don't") if self.plan.common_words else ()
        numbers = (NUMBER_WORDS,) if self.plan.number_words else ()
        self.texts = (" ".join(sorted(phrasings.vocabulary())), self.plan.observed, *common, *numbers)
        self.sentences = training_lines(world.name)
        self.nonsense = Nonsense(world.name, phrasings.recognise)

    def new_learner(self, seed: int) -> Learner:
        tools = self.agent.tools.schemas
        texts = [tools_text(tools), *self.texts, CALL_SHAPE]
        spoken = {form for text in texts for word in split_words(text) for form in (word, word.capitalize())}
        known = whole_words(self.sentences)
        marks = sorted({piece for text in texts for piece in text.split() if not re.search(r"\w", piece)})
        whole_tokens = [*number_words(), *sorted(word for word in spoken if word.isalpha()), *known, *marks]
        size = TOKENS + 2 * len({*known} - spoken)  # two tokens per word: with and without a leading space
        phrases = SCHEMA_PHRASES if self.plan.schema_phrases else ()
        tokenizer: Tokenizer = build_subwords([*texts, *self.sentences], size, whole_tokens, phrases)
        wrapped = STTokenizer(tokenizer)
        template = PromptTemplate(COMPACT, wrapped, "the compact profile")
        encoder = RowEncoder(template, wrapped, compile_plan(tools, wrapped, True, template.overflow))
        model = new_model(self.plan.shape, tokenizer, seed)
        set_embeddings(model, tokenizer)
        return Learner(initialise_weights(model, tokenizer), tokenizer, encoder, dict(COMPACT))

    def train(self, out: Path, config: TrainConfig) -> Path:
        """Train (or resume in `out`), export to `out/checkpoint`, and return that folder."""
        learner = self.new_learner(config.seed)
        model, encoder = learner.model, learner.encoder
        plan = compile_plan(self.agent.tools.schemas, encoder.tokenizer)  # this plan has no null call
        policy, chunk_size = TreePolicy(model, encoder.with_plan(plan)), self.plan.chunk

        def source(chunk: int) -> Sequence[Row]:
            done = chunk * chunk_size / config.samples
            dagger = done >= DAGGER_FROM and chunk % 2 == 1
            early = self.is_early(done)
            played = self.episodes(config.seed * 1_000_003 + chunk, EPISODES, policy if dagger else None, early)
            rows = [
                Row(r.instruction, r.observation, r.call, meant=r.goal.text())
                for r in itertools.islice(played, min(chunk_size, config.samples))
            ]
            return self.add_nonsense(rows, random.Random(f"nonsense {config.seed} {chunk}"), early)

        Trainer(model, encoder, source, config, out).run(progress_printer(self.agent.name))
        model.to(torch.bfloat16).float()  # round to the checkpoint's bf16, for which the gate is fitted
        metadata = self.build_metadata(TreeDecider(model, encoder), config)
        export(model, learner.tokenizer, learner.template, out / "checkpoint", torch.bfloat16, learner.end)
        metadata.write(out / "checkpoint")
        return out / "checkpoint"

    def is_early(self, done: float) -> bool:
        """Return whether rows have only canonical sentences when the share `done` of the samples is done."""
        return self.plan.early is not None and done < CANONICAL_SHARE

    def episodes(self, seed: int, parallel: int, policy: Policy | None, early: bool) -> Iterator[Demonstration]:
        """Yield labelled steps of `parallel` episodes at a time, played by `policy` (None: by the expert)."""
        play = self.plan.early if early and self.plan.early is not None else self.plan.demonstrations
        return play(seed, parallel, policy=policy, beta=0.0 if policy is None else EXPERT_SHARE)

    def add_nonsense(self, rows: list[Row], rng: random.Random, early: bool) -> list[Row]:
        """Return `rows`, some with a meaningless instruction and a null call. If `early`, return them unchanged,
        because the model would otherwise learn that all sentences but canonical ones are meaningless."""
        return rows if early else with_nonsense(rows, self.nonsense, NONSENSE_SHARE, rng)

    def canonical_rows(self, seed: int, count: int) -> list[Row]:
        """Return `count` rows with canonical sentences, from which the confidence gate is fitted."""
        steps: Iterable[Demonstration] = itertools.islice(self.plan.demonstrations(seed, min(count, 64)), count)
        return [Row(step.goal.text(), step.observation, None) for step in steps]

    def trained_words(self) -> str:
        """Return all known words, separated by spaces: the words of training sentences, including meaningless ones, and
        all words whose initial embedding is a word vector."""
        sentences = [*self.texts, *self.sentences, *nonsense(held_out=False)]
        return " ".join(sorted({*words(" ".join(sentences)), *whole_words(()), *FILLERS}))

    def trained_numbers(self) -> dict[str, list[str]]:
        """Return the numbers and units of training sentences, without meaningless sentences."""
        rng, phrasings = random.Random(0), self.world.phrasings()
        goals = [*phrasings.named_goals(), *(phrasings.sample_goal(rng) for _ in range(SENTENCES))]
        spoken = [
            phrasings.with_values(rng, p, goal) for goal in {*goals} for p in phrasings.spoken_patterns(goal, False)
        ]
        return known_numbers([*spoken, *(phrasings.training_instruction(rng, goal) for goal in goals)])

    def build_metadata(self, decide: TreeDecider, config: TrainConfig) -> TrainingMetadata:
        """Return the metadata of the new checkpoint, with a confidence gate that is fitted to `decide`."""
        seed = -1 - config.seed  # this negative seed is never used in training
        rows = self.canonical_rows(seed, min(ROWS, config.samples))
        return replace(
            TrainingMetadata.load(ZOO / self.agent.name) or TrainingMetadata(()),
            tool_sets=(tuple(self.agent.tools.openai()),),
            history=self.agent.history,
            words=self.trained_words(),
            numbers=self.trained_numbers(),
            unknown_words=MAX_UNKNOWN_WORDS,
            any_tools=False,
            allow_null=True,
            gate=fit_gate(decide, rows, self.nonsense.held_out, seed),
        )


RECIPES = {world.agent: WorldRecipe(world) for world in registry.WORLDS.values()}


def train(args: argparse.Namespace) -> str:
    """Run the recipe that the command line names, and return a message."""
    recipe = RECIPES[args.model]
    config: Any = replace(recipe.plan.config, seed=args.seed)
    config = replace(config, samples=args.samples or config.samples)
    folder = recipe.train(args.out / args.model, config)
    return f"Model: {folder}\nTry it: rtcontrol run --env {recipe.world.name} --model {folder}"


if __name__ == "__main__":
    parser = base_parser(__doc__, "runs")
    parser.add_argument("model", choices=[*RECIPES], help="which model")
    parser.add_argument("--samples", type=int, help="rows of training (default: the recipe's)")
    run_script(parser, train)
