"""The protocol between a decision and the runner that evaluates the decision's trees (design, section 4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

ROUNDS = 5  # how often a pass is measured


@dataclass(frozen=True)
class PassCost:
    """The cost of a forward pass: `fixed_ms` + `token_ms` * tokens, and `choice_ms` for each token that asks for the
    best successor of the whole vocabulary."""

    fixed_ms: float
    token_ms: float
    choice_ms: float = 0.0

    def of(self, passes: int, tokens: int) -> float:
        """Return the milliseconds that `passes` take which have `tokens` tokens in all."""
        return passes * self.fixed_ms + tokens * self.token_ms

    def worth(self, choosing: bool = True) -> int:
        """Return how many guessed nodes cost as much as a pass of one node; `choosing` among the whole vocabulary, or
        few ids."""
        one = max(self.token_ms + self.choice_ms * choosing, 1e-3)
        return int((self.fixed_ms + one) / one)


def measured(pass_of: Callable[[int], None], prepare: Callable[[int], object], sizes: Sequence[int]) -> PassCost:
    """Measure passes of these sizes ROUNDS times, each after `prepare`, and return the cost."""
    best = dict.fromkeys(sizes, float("inf"))
    for _ in range(ROUNDS):
        for size in sizes:
            prepare(size)
            began = time.perf_counter()
            pass_of(size)
            best[size] = min(best[size], (time.perf_counter() - began) * 1e3)
    counts, ms = np.array(list(best), float), np.array(list(best.values()))
    token = max(float(np.polyfit(counts, ms, 1)[0]), 0.0)
    return PassCost(max(float(ms.mean()) - token * float(counts.mean()), 0.0), token)


@dataclass(frozen=True, slots=True)
class Ask:
    """A question about `nodes` (indices in the tree). The answer is a row of the scores of `ids` for each node; or,
    with `masks` [nodes, vocabulary] of legal ids, the `Best` of each node."""

    nodes: Sequence[int]
    ids: Sequence[int] = ()
    masks: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of nodes to evaluate, parents before children. `parents` number all nodes of the decision in the order of
    evaluation; -1 is the prompt's end. A node of depth 0 follows the prompt's last token."""

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    asks: Sequence[Ask]


class Cancelled(Exception):
    """The decision was cancelled between two forward passes."""


class DecodeError(Exception):
    """No legal call could be decoded, for example because a free value did not end or does not parse."""


class NotFinite(DecodeError):
    """The scores of a model are NaN or infinite."""

    def __init__(self) -> None:
        super().__init__("the model's scores are not finite numbers: its weights are damaged, or overflow")


@dataclass(frozen=True)
class Budget:
    """The number of trie nodes that a pass may evaluate: per head (head token included) and in all. One node per head
    is ordinary constrained decoding. `function_first`: argument heads wait for the function. `forced`: tokens that must
    follow are evaluated too (the baseline: one token a pass). `paths`: the nodes that lead to a wanted node are
    evaluated too, beyond the budget and without an answer."""

    per_head: int = 64
    total: int = 128
    function_first: bool = False
    forced: bool = False
    paths: bool = False

    def __post_init__(self) -> None:
        if self.per_head < 1 or self.total < 1:
            raise ValueError(f"budget {self}: at least one node per head and in all")


@dataclass(frozen=True)
class PrefixInfo:
    """The origin of a prefix's KV: `source` is computed, disk or memory (another session); `note` is why the copy on
    disk was refused."""

    tokens: int
    source: str
    note: str | None = None


@dataclass(frozen=True)
class Caps:
    """The capabilities of a runner. `tree`: a pass may hold branches, otherwise one node per head; `batch`: the most
    decisions in one pass; `exact`: scores do not depend on how they are requested, except for rounding; `weights`: how
    quantised weights are used."""

    engine: str
    device: str
    dtype: str
    tree: bool
    batch: int
    exact: bool
    parameters: int
    vocabulary: int
    weights: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for the report."""
        return {k: v for k, v in asdict(self).items() if k != "vocabulary" and v is not None}


@dataclass(frozen=True, slots=True)
class Work:
    """A work item: the next tree of a decision, after the prompt that its handle was started with. Setting `stop`
    cancels the item, so that the answers may be Cancelled."""

    handle: Any
    tree: Tree
    stop: threading.Event | None = None


class Runner(Protocol):
    """A model with many handles, each of which has a prompt and the nodes of the current decision. A handle has `slots`
    (tokens that it can hold), `fresh` (prompt tokens that are not computed yet), `start(prompt, reserve)` (start a
    decision; returns the number of cached tokens; raises UserError if prompt and nodes do not fit) and `forget()`.

    Not thread-safe. It may have `figures` for the report. `slots` is the number of tokens that a handle holds.
    """

    caps: Caps
    slots: int

    def open(self, prefix: Sequence[int]) -> tuple[Any, PrefixInfo]:
        """Compute the KV of `prefix`; return a handle for prompts that start with `prefix`."""

    def copy(self, handle: Any, prefix: Sequence[int]) -> Any:
        """Return another handle for the same prefix."""

    def cost(self, handle: Any) -> PassCost:
        """Return the cost of a pass after the prompt of a handle, measured once for prompts of about this length."""

    def prefill(self, handle: Any, count: int) -> None:
        """Compute the next `count` tokens of the handle's prompt, and no node."""

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """Evaluate at most `caps.batch` work items of different handles in one pass; return, for each, the answers to
        the asks of its tree, in order. Prompt tokens that are not computed yet are part of the pass."""
