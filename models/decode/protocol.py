"""What answers a decision's questions: the runner's protocol (design, section 4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

ROUNDS = 5  # that a pass is measured


@dataclass(frozen=True)
class PassCost:
    """Milliseconds of a forward pass: `fixed_ms` + `token_ms` * tokens, and `choice_ms` for each of them that is asked
    for the best of the whole vocabulary."""

    fixed_ms: float
    token_ms: float
    choice_ms: float = 0.0

    def of(self, passes: int, tokens: int) -> float:
        """Milliseconds of `passes` that carry `tokens` in all."""
        return passes * self.fixed_ms + tokens * self.token_ms

    def worth(self, choosing: bool = True) -> int:
        """So many guessed nodes cost what a pass of one costs; `choosing` among the whole vocabulary, or few ids."""
        one = max(self.token_ms + self.choice_ms * choosing, 1e-3)
        return int((self.fixed_ms + one) / one)


def measured(pass_of: Callable[[int], None], prepare: Callable[[int], object], sizes: Sequence[int]) -> PassCost:
    """Measure a pass of each of these many nodes, ROUNDS times, each after what prepares it."""
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
    """What is wanted at `nodes` (places in the tree's lists): the scores of `ids`, a row a node; or with `masks`
    [nodes, vocabulary] of legal ids the `Best` of each."""

    nodes: Sequence[int]
    ids: Sequence[int] = ()
    masks: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes to evaluate, parents before children. `parents` count all nodes of the decision in the order in which they
    were evaluated, -1 is the prompt's end; a node of depth 0 follows the prompt's last token."""

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    asks: Sequence[Ask]


class Cancelled(Exception):
    """The decision was cancelled between two forward passes."""


class DecodeError(Exception):
    """No legal call could be decoded (a free value that never ended or does not parse)."""


class NotFinite(DecodeError):
    """Scores that decide, or tell of confidence, are NaN or infinite."""

    def __init__(self) -> None:
        super().__init__("the model's scores are no finite numbers: its weights are damaged, or overflow")


@dataclass(frozen=True)
class Budget:
    """How many trie nodes a pass may carry: for each head (its head token included) and in all. 1 per head is
    ordinary constrained parallel decoding. With `function_first` the argument heads wait for the function; with
    `forced` tokens that must follow are evaluated, too (the baseline: one token a pass). With `paths` those that only
    lead to a node come with it, beyond the budget, and nothing is asked of them."""

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
    """How the prefix came there: `source` is computed, disk or memory (another session's); `note` says why a disk copy
    was refused."""

    tokens: int
    source: str
    note: str | None = None


@dataclass(frozen=True)
class Caps:
    """What a runner can do. `tree`: whether a pass may hold branches, else one node a head; `batch`: decisions of one
    pass; `exact`: whether all ways of asking give the same scores but for rounding; `weights`: how those of a
    quantised checkpoint are run."""

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
        """For the report and for people."""
        return {k: v for k, v in asdict(self).items() if k != "vocabulary" and v is not None}


@dataclass(frozen=True, slots=True)
class Work:
    """The next tree of a decision whose prompt its handle was started with. Once `stop` is set nobody waits for it: a
    pass of several steps may end early, with Cancelled in the answers' place."""

    handle: Any
    tree: Tree
    stop: threading.Event | None = None


class Runner(Protocol):
    """One model, many handles, each a prompt and behind it the nodes of the decision at hand. A handle has `slots`
    (tokens that it can hold), `fresh` (tokens of its prompt that are not computed yet), `start(prompt, reserve)` (begin
    a decision; gives how many tokens are cached, raises UserError when they do not fit) and `forget()`.

    Not thread-safe. It may have `figures`
    to be told. `slots`: so many tokens a handle holds."""

    caps: Caps
    slots: int

    def open(self, prefix: Sequence[int]) -> tuple[Any, PrefixInfo]:
        """A handle whose prompts begin with `prefix`, which is computed."""

    def copy(self, handle: Any, prefix: Sequence[int]) -> Any:
        """Another handle for the same prefix."""

    def cost(self, handle: Any) -> PassCost:
        """What a pass behind the handle's prompt costs, measured once for prompts of about its length."""

    def prefill(self, handle: Any, count: int) -> None:
        """Compute the next `count` tokens of its prompt, and no node."""

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """One pass for at most `caps.batch` works of different handles: of each what its tree's asks ask for, in their
        order. What of the prompts is not computed yet shares the pass."""
