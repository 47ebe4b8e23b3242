"""What a decision under way has evaluated, and what it wants from the next pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rtcontrol.models.free import FreeValue
from rtcontrol.models.walk import HeadState


@dataclass
class FreeState:
    """A free head under way: its cursor, and the KV slots of its tokens so far (head token first)."""

    cursor: FreeValue
    slots: list[int]
    pending: int | None = None  # the token whose evaluation comes next
    value: Any = None
    done: bool = False


@dataclass
class Attempt:
    """All that one decision accumulates. `stem` are the KV slots between the cached prompt and the heads: empty when
    the prompt is cached whole, the suffix's own slots in a batch."""

    heads: list[HeadState]
    stem: tuple[int, ...] = ()
    hidden: list[torch.Tensor] = field(default_factory=list)  # one for each pass, [nodes, hidden]
    where: dict[int, tuple[int, int]] = field(default_factory=dict)  # KV slot -> (pass, row)
    free: dict[int, FreeState] = field(default_factory=dict)
    reused: int = 0
    tokens: int = 0

    def hidden_at(self, slot: int) -> torch.Tensor:
        """The hidden state [1, hidden] at a slot that this decision evaluated."""
        which, row = self.where[slot]
        return self.hidden[which][row : row + 1]


@dataclass(frozen=True)
class Wanted:
    """What one decision needs from the next pass: trie nodes as (head, node), and free heads' next tokens."""

    attempt: Attempt
    nodes: Sequence[tuple[int, int]]
    drafts: Sequence[FreeState]
