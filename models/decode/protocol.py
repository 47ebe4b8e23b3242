"""Define the interface between decisions, which need scores of token trees, and runners, which compute them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

ROUNDS = 5  # number of measurements; the shortest is used


@dataclass(frozen=True)
class PassCost:
    """The time of a forward pass: `fixed_ms` + `token_ms` * tokens, plus `choice_ms` for each node at which the best
    token of the whole vocabulary is chosen."""

    fixed_ms: float
    token_ms: float
    choice_ms: float = 0.0

    def total_ms(self, passes: int, tokens: int) -> float:
        """Return the milliseconds that `passes` passes with `tokens` tokens in all take."""
        return passes * self.fixed_ms + tokens * self.token_ms

    def break_even_nodes(self, choosing: bool = True) -> int:
        """Return how many guessed nodes in a pass take as long as an additional pass. With `choosing`, each node needs
        the best token of the whole vocabulary."""
        node_ms = max(self.token_ms + self.choice_ms * choosing, 1e-3)
        return int((self.fixed_ms + node_ms) / node_ms)


def measure_pass_cost(
    run_pass: Callable[[int], None], prepare: Callable[[int], object], sizes: Sequence[int]
) -> PassCost:
    """Time `run_pass(size)` ROUNDS times for each size, after `prepare(size)`. Return the cost that fits these
    times."""
    best = dict.fromkeys(sizes, float("inf"))
    for _ in range(ROUNDS):
        for size in sizes:
            prepare(size)
            started = time.perf_counter()
            run_pass(size)
            best[size] = min(best[size], (time.perf_counter() - started) * 1e3)
    counts, ms = np.array(list(best), float), np.array(list(best.values()))
    token = max(float(np.polyfit(counts, ms, 1)[0]), 0.0)
    return PassCost(max(float(ms.mean()) - token * float(counts.mean()), 0.0), token)


@dataclass(frozen=True, slots=True)
class ScoreQuery:
    """A request for scores at `nodes` (indices in the tree). For each node the answer has the scores of the tokens
    `ids`, or, with legal-token `masks` [nodes, vocabulary], the best legal token and its probability."""

    nodes: Sequence[int]
    ids: Sequence[int] = ()
    masks: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of tokens to evaluate after the prompt, parents before children. `parents` are node numbers, which are
    counted over all trees of the decision (-1: the prompt's end). A node of depth 0 follows the prompt's last token."""

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    queries: Sequence[ScoreQuery]


class Cancelled(Exception):
    """The decision was cancelled."""


class DecodeError(Exception):
    """No legal call could be decoded, for example because a value did not end within its limit."""


class NotFinite(DecodeError):
    """The model's scores are NaN or infinite."""

    def __init__(self) -> None:
        super().__init__("the model's scores are NaN or infinite: its weights are damaged, or overflow in this dtype")


@dataclass(frozen=True)
class Budget:
    """The limits for the trie nodes of a pass: `per_head` (including the head token) and in `total`. One node per head
    is ordinary constrained decoding. With `function_first`, argument heads are evaluated only after the function is
    decided. With `forced`, tokens without an alternative are evaluated too, one per pass (a baseline for benchmarks).
    With `paths`, all ancestors of a node are evaluated in the same pass as the node, regardless of the limits."""

    per_head: int = 64
    total: int = 128
    function_first: bool = False
    forced: bool = False
    paths: bool = False

    def __post_init__(self) -> None:
        if self.per_head < 1 or self.total < 1:
            raise ValueError(f"{self}: a budget needs at least one node per head and in total")


@dataclass(frozen=True)
class PrefixInfo:
    """How the KV cache of a prompt prefix was obtained. `source` is "computed", "disk" or "memory" (copied from another
    session). `note` is the reason why a copy on disk was not used or not written."""

    tokens: int
    source: str
    note: str | None = None


@dataclass(frozen=True)
class Caps:
    """The capabilities of a runner. With `tree` a pass may evaluate a tree of tokens, otherwise one node per head.
    `batch` is the maximum number of decisions in one pass. With `exact` scores do not depend on how nodes are batched,
    except for rounding. `parameters` is the model's size, `weights` the format of quantised weights."""

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
        """Return the capabilities for the report, without unknown ones."""
        return {k: v for k, v in asdict(self).items() if k != "vocabulary" and v is not None}


@dataclass(frozen=True, slots=True)
class WorkItem:
    """An item of a batch: the next tree of a decision, to be evaluated after the prompt of its `handle`. Setting `stop`
    cancels the decision; the runner may then return Cancelled instead of answers."""

    handle: Any
    tree: Tree
    stop: threading.Event | None = None


class Runner(Protocol):
    """A loaded model with many handles. A handle has a cached prompt, followed by the nodes of the current decision
    (see `runners.handle.Handle`). `slots` is the maximum number of tokens of a handle.

    Runners are not thread-safe. If a runner has a dict `figures`, it is added to the report.
    """

    caps: Caps
    slots: int

    def open(self, prefix: Sequence[int]) -> tuple[Any, PrefixInfo]:
        """Compute the KV of `prefix`; return a handle for prompts that start with `prefix`."""

    def copy(self, handle: Any, prefix: Sequence[int]) -> Any:
        """Return another handle for the same prefix."""

    def cost(self, handle: Any) -> PassCost:
        """Return the measured cost of a pass after a prompt of about the handle's length."""

    def prefill(self, handle: Any, count: int) -> None:
        """Compute the next `count` tokens of the handle's prompt."""

    def run(self, batch: Sequence[WorkItem]) -> list[list[Any]]:
        """Evaluate at most `caps.batch` work items of different handles in one pass, with the prompt tokens that are
        not computed yet. Return for each item the answers to its tree's queries, in their order."""
