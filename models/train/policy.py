"""Decide many situations at once with a model in training, for DAgger rollouts and quick evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.data.row import Row
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.protocol import Budget, Caps, DecodeError, PassCost, PrefixInfo, WorkItem
from rtcontrol.models.in_flight import Decoding
from rtcontrol.models.runners.packed import compute_answers
from rtcontrol.models.train.encode import RowEncoder
from rtcontrol.models.train.packing import label_logits, pack_nodes

BATCH = 64
UNLIMITED = Budget(1 << 30, 1 << 30)  # no limit on nodes per pass, because each pass computes all tokens again


class TrainingSequence:
    """A sequence handle without a key-value cache. Every pass computes the whole sequence."""

    slots = 1 << 30

    def __init__(self) -> None:
        self.prompt: Sequence[int] = ()
        self.nodes: list[tuple[int, int]] = []  # (token, parent's index) of each node of the decision

    @property
    def uncomputed_count(self) -> int:
        """Return the length of the prompt, since no token is cached."""
        return len(self.prompt)

    def start(self, prompt: Sequence[int], reserve: int) -> int:
        """Start a decision, and return 0, since no token is cached."""
        self.prompt, self.nodes = prompt, []
        return 0

    def invalidate(self) -> None:
        """Do nothing, since no token is cached."""


class TrainingRunner:
    """A runner for a model in training. A pass is a packed tree, in which prompts share their common start."""

    def __init__(self, model: Any) -> None:
        self._model, self._prefix = model, 0
        size = model.config.vocab_size
        self.slots = TrainingSequence.slots
        self.caps = Caps("training", "cpu", "fp32", True, BATCH, True, model.num_parameters(), size)

    def open(self, prefix: Sequence[int]) -> tuple[TrainingSequence, PrefixInfo]:
        """Return a handle. All handles of a runner must have the same prefix."""
        self._prefix = len(prefix)
        return TrainingSequence(), PrefixInfo(len(prefix), "computed")

    def copy(self, handle: TrainingSequence, prefix: Sequence[int]) -> TrainingSequence:
        """Return another handle for the same prefix."""
        return TrainingSequence()

    def cost(self, handle: TrainingSequence) -> PassCost:
        """Return a constant cost, so that schedules depend only on the number of passes."""
        return PassCost(1.0, 0.0)

    def prefill(self, handle: TrainingSequence, count: int) -> None:
        """Do nothing, since no token is cached."""

    def run(self, batch: Sequence[WorkItem]) -> list[list[Any]]:
        """Evaluate all work items in one packed pass. Items are sorted by prompt, so that common starts are shared."""
        for work in batch:
            work.handle.nodes += zip(work.tree.tokens, work.tree.parents, strict=True)
        order = sorted(range(len(batch)), key=lambda i: batch[i].handle.prompt)
        sequences = [(batch[i].handle.prompt[self._prefix :], batch[i].handle.nodes) for i in order]
        with torch.no_grad():
            logits = label_logits(self._model, pack_nodes(batch[0].handle.prompt[: self._prefix], sequences)).float()
        columns: dict[tuple[int, ...], torch.Tensor] = {}

        def rows(first: int, nodes: Sequence[int], ids: Sequence[int] | None) -> torch.Tensor:
            places: Any = [first + n for n in nodes]
            if isinstance(nodes, range):
                places = slice(first + nodes.start, first + nodes.stop)
            if ids is None:
                return logits[places]
            if (key := tuple(ids)) not in columns:  # most queries have the same ids, so select them once
                columns[key] = logits[:, list(key)]
            return columns[key][places]

        requests, end = [], 0
        for i in order:
            end += len(batch[i].handle.nodes)
            requests.append((batch[i].tree.queries, partial(rows, end - len(batch[i].tree.tokens))))
        answers = dict(zip(order, compute_answers(requests), strict=True))
        return [answers[i] for i in range(len(batch))]


class TreeDecider:
    """Decides for many rows at once with a model in training, for any schema."""

    def __init__(self, model: Any, encoder: RowEncoder) -> None:
        self._model, self._encoder, runner = model, encoder, TrainingRunner(model)
        core = DecoderCore(encoder.plan, encoder.tokenizer, runner.caps.vocabulary)
        self._decoding = Decoding(runner, core, encoder.prefix, UNLIMITED)

    def __call__(self, rows: Sequence[Row]) -> list[Call | DecodeError | None]:
        """Return for each row the decided call, None to keep the active call, or the error. Calls of the rows are
        ignored."""
        return [each if isinstance(each, DecodeError) else each.call for each in self.decisions(rows)]

    def decisions(self, rows: Sequence[Row]) -> list[Decision | DecodeError]:
        """Return for each row the decision or the error."""
        training = self._model.training
        self._model.eval()
        decoded = self._decoding.decide_all([self._encoder.suffix(row) for row in rows])
        self._model.train(training)
        decisions: list[Decision | DecodeError] = []
        for decode in decoded:
            try:
                decisions.append(decode.decision())
            except DecodeError as error:
                decisions.append(error)
        return decisions


class TreePolicy:
    """A policy for episodes, which decides batches of (instruction, observation). The schemas must list all values,
    and must not allow the null call."""

    def __init__(self, model: Any, encoder: RowEncoder) -> None:
        self._decide = TreeDecider(model, encoder)

    def __call__(self, situations: Sequence[tuple[str, str]]) -> list[Call]:
        """Return one call for each (instruction, observation text)."""
        calls = self._decide([Row(instruction, text, None) for instruction, text in situations])
        return [call for call in calls if isinstance(call, Call)]
