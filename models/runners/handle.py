"""The handle that a session has of a runner: the session's prompt, and the evaluated nodes of the current decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtcontrol.models.decode.core import common_prefix_length
from rtcontrol.models.decode.protocol import Ask, PassCost, Runner, Tree, Work, measure_pass_cost
from rtcontrol.models.errors import too_long


class Handle:
    """A prompt whose first `done` tokens are computed, while `fresh` are not. The handle can hold `slots` tokens.

    For each evaluated node of the decision, `paths` has the nodes that lead to that node, which is the last of them.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.prompt: list[int] = []
        self.paths: list[Any] = []
        self.done = 0

    @property
    def fresh(self) -> int:
        """Return how many tokens of the prompt are not computed yet."""
        return len(self.prompt) - self.done

    def start(self, prompt: Sequence[int], reserve: int) -> int:
        """Start a decision; return how many tokens are cached: the longest common prefix of this prompt and the last
        one. Raises UserError if the prompt and `reserve` nodes do not fit."""
        if len(prompt) + reserve > self.slots:
            raise too_long(self.slots, len(prompt))
        # A decision without any branching node runs no pass, so not all of the last prompt need be there.
        self.done = self.keep(common_prefix_length(self.prompt[: self.done], prompt), len(prompt) + reserve)
        self.prompt, self.paths = list(prompt), []
        return self.done

    def keep(self, count: int, total: int) -> int:
        """Keep the first `count` tokens for a decision of `total`; return how many are kept."""
        return count

    def forget(self) -> None:
        """Invalidate everything that is cached."""
        self.done = 0
        self.start([], 0)


def pass_cost(runner: Runner, handle: Handle, sizes: Sequence[int]) -> PassCost:
    """Measure passes of these sizes after the prompt of a handle, which stays cached."""
    prompt = list(handle.prompt)
    if len(prompt) + max(sizes) >= handle.slots:
        return PassCost(1.0, 0.0)  # without room to measure, only the number of passes counts

    def prepare(size: int) -> None:
        handle.start(prompt, size)
        if handle.fresh:
            runner.prefill(handle, handle.fresh)

    def pass_of(size: int) -> None:  # the answers are on the CPU, so the GPU has finished
        runner.run([Work(handle, Tree([0] * size, [-1] * size, [0] * size, [Ask(range(size), (0,))]))])

    cost = measure_pass_cost(pass_of, prepare, sizes)
    handle.start(prompt, 0)
    return cost
