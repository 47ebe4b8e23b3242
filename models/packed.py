"""One packed forward pass: uncached prompt tokens and tree nodes as one sequence on top of the cached tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rtcontrol.models.engines.lean import LeanModel
from rtcontrol.models.errors import UserError

MASKS_KEPT = 32
MASK_CELLS = 1 << 19  # larger masks (a long new prompt) are rare and would not stay small in memory


@dataclass(frozen=True, slots=True)
class Node:
    """A tree node to evaluate: `depth` 0 follows the prompt's last token; `ancestors` are KV slots counted from the
    prompt's end (its own nodes of this pass included)."""

    token: int
    depth: int
    ancestors: tuple[int, ...]


def common_start(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    stop = min(len(a), len(b))
    if a[:stop] == b[:stop]:
        return stop
    return next(i for i in range(stop) if a[i] != b[i])


def too_long(context: int, prompt: int | None = None) -> UserError:
    """The call does not fit behind the prompt."""
    which = "The prompt" if prompt is None else f"The prompt of {prompt} tokens"
    return UserError(
        f"{which} leaves no room for the call in the model's context of {context}.",
        "Shorten the instruction or the observation, or describe fewer tools.",
    )


class PackedSequence:
    """The KV cache's content: a prompt (prefix + suffix), then the nodes evaluated for the decision at hand."""

    def __init__(self, model: LeanModel) -> None:
        self.model = model
        self.prompt: list[int] = []
        self.nodes = 0
        self.forward_passes = self.tokens = 0
        self._done = 0
        self._masks: dict[tuple[int, int, int, tuple[tuple[int, ...], ...]], torch.Tensor] = {}

    def start(self, prompt: Sequence[int], reserve: int) -> tuple[list[int], int]:
        """Begin a decision: (uncached prompt tokens, reused tokens). The longest common prefix with the cached tokens
        is kept. Raises UserError when prompt and `reserve` nodes do not fit the context."""
        limit = min(self.model.slots, self.model.config.context)
        if len(prompt) + reserve > limit:
            raise too_long(limit, len(prompt))
        cached = self.prompt[: self._done]  # a decision without any branching node runs no pass
        common = common_start(cached, prompt)
        self.prompt = list(prompt)
        self.nodes = self.forward_passes = self.tokens = 0
        self._done = common
        return self.prompt[common:], common

    @property
    def room(self) -> int:
        """Slots behind the prompt."""
        return min(self.model.slots, self.model.config.context) - len(self.prompt)

    def restore(self, prompt: Sequence[int]) -> None:
        """The caller has written the KV of exactly these tokens into the model's cache."""
        self.prompt = list(prompt)
        self._done = len(self.prompt)
        self.nodes = 0

    def keep(self, tokens: int) -> None:
        """Only the first `tokens` of the cached prompt are reused from here on."""
        self.restore(self.prompt[: min(tokens, self._done)])

    def forget(self) -> None:
        """Nothing in the cache is to be reused."""
        self.restore([])

    @property
    def fresh(self) -> int:
        """Tokens of the prompt that are not cached yet."""
        return len(self.prompt) - self._done

    def prefill(self, count: int) -> None:
        """Compute the next `count` tokens of the prompt, and no node."""
        whole = self.prompt
        self.prompt = whole[: self._done + count]
        try:
            self.run(())
        finally:
            self.prompt = whole

    def run(self, nodes: Sequence[Node]) -> torch.Tensor:
        """Evaluate `nodes` together with whatever of the prompt is not cached yet; hidden states [nodes, hidden].

        The nodes take the next slots, in order.
        """
        fresh = self.prompt[self._done :]
        past = self._done + self.nodes
        key = (past, len(fresh), self.nodes, tuple([n.ancestors for n in nodes]))
        if past + len(fresh) + len(nodes) > self.model.slots:
            raise too_long(self.model.slots, len(self.prompt))
        mask = self._masks.get(key)
        if mask is None:
            mask = self._mask(past, len(fresh), nodes)
            if mask.numel() <= MASK_CELLS:
                if len(self._masks) >= MASKS_KEPT:
                    self._masks.pop(next(iter(self._masks)))
                self._masks[key] = mask
        end = len(self.prompt)
        tokens = torch.tensor(fresh + [n.token for n in nodes], device=self.model.device)
        places = [*range(self._done, end), *(end + n.depth for n in nodes)]
        hidden = self.model.forward(tokens, torch.tensor(places, device=self.model.device), past, mask, len(fresh))
        self._done = end
        self.nodes += len(nodes)
        self.forward_passes += 1
        self.tokens += len(places)
        return hidden

    def _mask(self, past: int, fresh: int, nodes: Sequence[Node]) -> torch.Tensor:
        # Columns: cached prompt (and, once the prompt is whole, earlier nodes), fresh prompt, these nodes.
        n = fresh + len(nodes)
        prompt = len(self.prompt)
        see = np.zeros((n, past + n), np.bool_)
        see[:fresh, :past] = True
        see[:fresh, past : past + fresh] = np.tri(fresh, dtype=np.bool_)
        for i, node in enumerate(nodes):
            row = see[fresh + i]
            row[:prompt] = True
            row[[prompt + a for a in node.ancestors]] = True
            row[past + fresh + i] = True
        bias = np.where(see, np.float32(0), np.float32(-np.inf))
        mask = torch.from_numpy(bias)[None, None].to(self.model.device, self.model.dtype)
        return self.model.grouped(mask) if mask.numel() * self.model.group <= MASK_CELLS else mask
