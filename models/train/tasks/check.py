"""The swapped-name check: where one word of the instruction changes the right call, does the model's change with it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from rtcontrol.models.call import Call
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.models.train.loss import label_logits
from rtcontrol.models.train.packing import pack
from rtcontrol.models.train.rows import Row, ToolsEncoder


@dataclass(frozen=True, slots=True)
class Directive:
    """One instruction, and what is right under it."""

    instruction: str
    call: Call


@dataclass(frozen=True, slots=True)
class SyntheticTask:
    """One observation under one set of tools. What is `told` differs in what it names alone: the swapped-name check
    asks for the call under each."""

    tools: tuple[ToolSchema, ...]
    observation: str
    told: tuple[Directive, ...]

    def rows(self) -> list[Row]:
        """A row for each instruction."""
        return [Row(told.instruction, self.observation, told.call, tools=self.tools) for told in self.told]


AT_ONCE = 16  # tasks


@dataclass(frozen=True)
class Checked:
    """Of held-out tasks: the share of calls that are wholly right, and of pairs of instructions of one observation that
    ask for different calls, the share where both are right."""

    right: float
    swapped: float
    calls: int
    pairs: int


def check(model: Any, encoder: ToolsEncoder, tasks: Sequence[SyntheticTask]) -> Checked:
    """A call is right where the model's first choice among all tokens is right at every token that a constrained walk
    asks for, given those before: no constrained walk does worse. Leaves the model in training mode."""
    model.eval()
    right = calls = both = pairs = 0
    for at in range(0, len(tasks), AT_ONCE):
        some = tasks[at : at + AT_ONCE]
        verdicts = iter(_verdicts(model, encoder, some))
        for task in some:
            told = [(t.call, next(verdicts)) for t in task.told]
            right += sum(ok for _, ok in told)
            calls += len(told)
            two = [(a and b) for (x, a), (y, b) in pairwise(told) if x != y]
            both += sum(two)
            pairs += len(two)
    model.train()
    return Checked(right / max(1, calls), both / max(1, pairs), calls, pairs)


def _verdicts(model: Any, encoder: ToolsEncoder, tasks: Sequence[SyntheticTask]) -> list[bool]:
    encoded = [encoder.encode(replace(row, quotes=()), forced=False) for task in tasks for row in task.rows()]
    batch = pack(encoder.prefix, encoded)
    with torch.no_grad():
        ok = label_logits(model, batch).argmax(-1) == batch.labels
    counts = [sum(bool(w) for head in row.heads for w in head.weights) for row in encoded]
    return [bool(part.all()) for part in ok.split(counts)]
