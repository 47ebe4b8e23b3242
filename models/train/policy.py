"""The model under training as a policy for many situations at once (DAgger rollouts, quick evaluation)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rtcontrol.models.call import Call
from rtcontrol.models.domain import MAX_CLOSED
from rtcontrol.models.plan import ANY_TOOL
from rtcontrol.models.schema import ABSENT
from rtcontrol.models.train.loss import label_logits
from rtcontrol.models.train.packing import pack_nodes
from rtcontrol.models.train.rows import Row, RowEncoder
from rtcontrol.models.walk import HeadState, Walker, leaf_value

BATCH = 64


class TreePolicy:
    """Decides for batches of (instruction, observation) in packed trees; closed schemas without null heads only."""

    def __init__(self, model: Any, encoder: RowEncoder) -> None:
        plan = encoder.plan
        if plan.allow_null or any(
            h.free or max((g.count for g in h.grids.values()), default=0) > MAX_CLOSED for h in plan.heads
        ):
            raise ValueError("TreePolicy needs a closed schema and no null function head")
        self._model, self._encoder, self._walker = model, encoder, Walker(plan)
        self._nodes: list[tuple[int, int]] = []  # (token, parent's index) of every node that a walk may ask for
        self._named: list[tuple[int, int]] = []  # (head, trie node), in the same order
        for k, head in enumerate(plan.heads):
            index: dict[int, int] = {}
            for node in head.trie.needed(1 << ANY_TOOL if k == 0 else plan.all_tools):
                index[node] = len(self._nodes)
                self._nodes.append((head.trie.tokens[node], index.get(head.trie.parents[node], -1)))
                self._named.append((k, node))
        self._columns = torch.tensor(self._walker.columns)

    def __call__(self, situations: Sequence[tuple[str, str]]) -> list[Call]:
        """One call for each (instruction, observation text)."""
        calls: list[Call] = []
        training = self._model.training
        self._model.eval()
        with torch.no_grad():
            for i in range(0, len(situations), BATCH):
                calls += self._decide(situations[i : i + BATCH])
        self._model.train(training)
        return calls

    def _decide(self, situations: Sequence[tuple[str, str]]) -> list[Call]:
        rows = [self._encoder.suffix(Row(instruction, text, None)) for instruction, text in situations]
        order = sorted(range(len(rows)), key=lambda i: rows[i])
        batch = pack_nodes(self._encoder.prefix, [rows[i] for i in order], self._nodes)
        logits = label_logits(self._model, batch)[:, self._columns].float().tolist()
        calls: dict[int, Call] = {}
        for place, i in enumerate(order):
            states = [HeadState() for _ in self._encoder.plan.heads]
            for j, (k, node) in enumerate(self._named):
                states[k].rows[node] = logits[place * len(self._nodes) + j]
            calls[i] = self._walk(states)
        return [calls[i] for i in range(len(rows))]

    def _walk(self, states: Sequence[HeadState]) -> Call:
        plan = self._encoder.plan
        tool = leaf_value(plan.function, self._walker.walk(0, states[0], 1 << ANY_TOOL).node, ANY_TOOL)
        arguments: dict[str, Any] = {}
        for k, slot in enumerate(plan.slots[tool], start=1):
            value = leaf_value(plan.heads[k], self._walker.walk(k, states[k], 1 << tool).node, tool)
            if value is not ABSENT:
                arguments |= slot.arguments(value)
        return Call(plan.tools[tool].name, arguments)
