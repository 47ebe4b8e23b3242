"""Define the base class of handles. A handle has a session's cached prompt and evaluated nodes in a runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtcontrol.models.decode.core import common_prefix_length
from rtcontrol.models.decode.protocol import PassCost, Runner, ScoreQuery, Tree, WorkItem, measure_pass_cost
from rtcontrol.models.errors import prompt_too_long


class Handle:
    """A cached prompt, and the nodes of its current decision, with at most `slots` tokens in all.

    The first `computed` tokens of the prompt are computed. `paths` has each evaluated node's path, ending with itself.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.prompt: list[int] = []
        self.paths: list[Any] = []
        self.computed = 0

    @property
    def uncomputed_count(self) -> int:
        """Return how many tokens of the prompt are not computed yet."""
        return len(self.prompt) - self.computed

    def start(self, prompt: Sequence[int], reserve: int) -> int:
        """Start a decision. Return how many tokens are cached: the longest common prefix of `prompt` and the previous
        prompt. Raises UserError if the prompt and `reserve` nodes do not fit."""
        if len(prompt) + reserve > self.slots:
            raise prompt_too_long(self.slots, len(prompt))
        # The previous prompt may be computed only in part, because a decision without a choice needs no forward pass.
        common = common_prefix_length(self.prompt[: self.computed], prompt)
        self.computed = self.keep_prefix(common, len(prompt) + reserve)
        self.prompt, self.paths = list(prompt), []
        return self.computed

    def keep_prefix(self, count: int, total: int) -> int:
        """Keep the first `count` cached tokens for a decision with `total` tokens; return how many are kept."""
        return count

    def invalidate(self) -> None:
        """Discard the cached tokens."""
        self.computed = 0
        self.start([], 0)


def pass_cost(runner: Runner, handle: Handle, sizes: Sequence[int]) -> PassCost:
    """Measure and return the cost of passes with `sizes` nodes after the handle's prompt, which stays cached."""
    prompt = list(handle.prompt)
    if len(prompt) + max(sizes) >= handle.slots:
        return PassCost(1.0, 0.0)  # the nodes do not fit, so assume that all passes cost the same

    def prepare(size: int) -> None:
        handle.start(prompt, size)
        if handle.uncomputed_count:
            runner.prefill(handle, handle.uncomputed_count)

    def run_pass(size: int) -> None:  # the answers are on the CPU, so this waits for the GPU
        runner.run([WorkItem(handle, Tree([0] * size, [-1] * size, [0] * size, [ScoreQuery(range(size), (0,))]))])

    cost = measure_pass_cost(run_pass, prepare, sizes)
    handle.start(prompt, 0)
    return cost
