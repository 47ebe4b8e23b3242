"""Use the model in training as a policy for many situations at once (DAgger rollouts, quick evaluation)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.data.row import Row
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.protocol import Budget, Caps, DecodeError, PassCost, PrefixInfo, Work
from rtcontrol.models.in_flight import Decoding
from rtcontrol.models.runners.packed import answered
from rtcontrol.models.train.encode import RowEncoder
from rtcontrol.models.train.packing import label_logits, pack_nodes

BATCH = 64
EVERYTHING = Budget(1 << 30, 1 << 30)  # a second pass would compute the tokens of the first pass again


class TrainingSequence:
    """A handle without a cache: the whole sequence goes through the model in every pass."""

    slots = 1 << 30

    def __init__(self) -> None:
        self.prompt: Sequence[int] = ()
        self.nodes: list[tuple[int, int]] = []  # (token, parent's index) of every node of the decision

    @property
    def fresh(self) -> int:
        """Return the length of the prompt: no token is cached."""
        return len(self.prompt)

    def start(self, prompt: Sequence[int], reserve: int) -> int:
        """Start a decision; no token is cached."""
        self.prompt, self.nodes = prompt, []
        return 0

    def forget(self) -> None:
        """Do nothing: no token is cached."""


class TrainingRunner:
    """A runner over the packed forward of a model in training: prompts with a common start share its tokens."""

    def __init__(self, model: Any) -> None:
        self._model, self._prefix = model, 0
        size = model.config.vocab_size
        self.slots = TrainingSequence.slots
        self.caps = Caps("training", "cpu", "fp32", True, BATCH, True, model.num_parameters(), size)

    def open(self, prefix: Sequence[int]) -> tuple[TrainingSequence, PrefixInfo]:
        """Return a handle; all handles of a runner have one prefix."""
        self._prefix = len(prefix)
        return TrainingSequence(), PrefixInfo(len(prefix), "computed")

    def copy(self, handle: TrainingSequence, prefix: Sequence[int]) -> TrainingSequence:
        """Return another handle for the same prefix."""
        return TrainingSequence()

    def cost(self, handle: TrainingSequence) -> PassCost:
        """Return a constant: only the number of passes matters."""
        return PassCost(1.0, 0.0)

    def prefill(self, handle: TrainingSequence, count: int) -> None:
        """Do nothing: no token is cached."""

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """Run one packed forward for all, with equal starts next to each other."""
        for work in batch:
            work.handle.nodes += zip(work.tree.tokens, work.tree.parents, strict=True)
        order = sorted(range(len(batch)), key=lambda i: batch[i].handle.prompt)
        each = [(batch[i].handle.prompt[self._prefix :], batch[i].handle.nodes) for i in order]
        with torch.no_grad():
            logits = label_logits(self._model, pack_nodes(batch[0].handle.prompt[: self._prefix], each)).float()
        columns: dict[tuple[int, ...], torch.Tensor] = {}

        def rows(first: int, nodes: Sequence[int], ids: Sequence[int] | None) -> torch.Tensor:
            places: Any = [first + n for n in nodes]
            if isinstance(nodes, range):
                places = slice(first + nodes.start, first + nodes.stop)
            if ids is None:
                return logits[places]
            if (key := tuple(ids)) not in columns:  # one gather for all, since closed heads ask for the same ids
                columns[key] = logits[:, list(key)]
            return columns[key][places]

        requests, end = [], 0
        for i in order:
            end += len(batch[i].handle.nodes)
            requests.append((batch[i].tree.asks, partial(rows, end - len(batch[i].tree.tokens))))
        answers = dict(zip(order, answered(requests), strict=True))
        return [answers[i] for i in range(len(batch))]


class TreeDecider:
    """A decider for many rows at once in packed trees, with any schema."""

    def __init__(self, model: Any, encoder: RowEncoder) -> None:
        self._model, self._encoder, runner = model, encoder, TrainingRunner(model)
        core = DecoderCore(encoder.plan, encoder.tokenizer, runner.caps.vocabulary)
        self._decoding = Decoding(runner, core, encoder.prefix, EVERYTHING)

    def __call__(self, rows: Sequence[Row]) -> list[Call | DecodeError | None]:
        """Return for each row the decided call, None if the active call stays, or the error. The call in the row is
        ignored."""
        return [each if isinstance(each, DecodeError) else each.call for each in self.decisions(rows)]

    def decisions(self, rows: Sequence[Row]) -> list[Decision | DecodeError]:
        """Return for each row the decision with its confidence, or the error."""
        training = self._model.training
        self._model.eval()
        decoded = self._decoding.decide_all([self._encoder.suffix(row) for row in rows])
        self._model.train(training)
        decisions: list[Decision | DecodeError] = []
        for each in decoded:
            try:
                decisions.append(each.decision())
            except DecodeError as error:
                decisions.append(error)
        return decisions


class TreePolicy:
    """A policy that decides for batches of (instruction, observation) in packed trees, only for closed schemas without
    null heads."""

    def __init__(self, model: Any, encoder: RowEncoder) -> None:
        self._decide = TreeDecider(model, encoder)

    def __call__(self, situations: Sequence[tuple[str, str]]) -> list[Call]:
        """Return one call for each (instruction, observation text)."""
        calls = self._decide([Row(instruction, text, None) for instruction, text in situations])
        return [call for call in calls if isinstance(call, Call)]
