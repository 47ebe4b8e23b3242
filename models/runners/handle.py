"""A session's handle of a runner: its prompt, and the evaluated nodes of the current decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtcontrol.models.decode.core import common_start
from rtcontrol.models.decode.protocol import Ask, PassCost, Runner, Tree, Work, measured
from rtcontrol.models.errors import too_long


class Handle:
    """The first `done` tokens of the `prompt` are computed, `fresh` are not; it can hold `slots` tokens.

    `paths` are the nodes that lead to each evaluated node of the decision, itself included as the last.
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
        """Start a decision; return how many tokens of its prompt are cached, the longest common prefix with the last
        prompt. Raises UserError where prompt and `reserve` nodes do not fit."""
        if len(prompt) + reserve > self.slots:
            raise too_long(self.slots, len(prompt))
        # A decision without any branching node runs no pass, so not all of the last prompt need be there.
        self.done = self.keep(common_start(self.prompt[: self.done], prompt), len(prompt) + reserve)
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
        return PassCost(1.0, 0.0)  # where there is no room to measure, passes count

    def prepare(size: int) -> None:
        handle.start(prompt, size)
        if handle.fresh:
            runner.prefill(handle, handle.fresh)

    def pass_of(size: int) -> None:  # its answers are on the CPU: a GPU was waited for
        runner.run([Work(handle, Tree([0] * size, [-1] * size, [0] * size, [Ask(range(size), (0,))]))])

    cost = measured(pass_of, prepare, sizes)
    handle.start(prompt, 0)
    return cost
