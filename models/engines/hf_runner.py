"""A runner over Hugging Face transformers: any causal model with a cache, path by path.

Each path of a tree is a forward of its own behind a copy of the prompt's cache: nothing of ours touches attention,
positions or caches, so other runners are measured by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from rtcontrol.models.cost import PassCost
from rtcontrol.models.engines.base import Caps, PrefixInfo, Work
from rtcontrol.models.packed import answered, common_start, too_long

SLOTS = 8192


class PathSequence:
    """A session's handle: the prompt's cache, and of each node the tokens that lead to it and its logsumexp."""

    def __init__(self, slots: int, prefix: Sequence[int], kept: Any = None) -> None:
        self.slots, self.prefix, self.kept = slots, list(prefix), kept  # the cache of the prefix alone
        self.prompt: list[int] = []
        self.cache: Any = None  # of the prompt's first `done` tokens
        self.done = 0
        self.paths: list[list[int]] = []
        self.totals: list[float] = []

    @property
    def fresh(self) -> int:
        """Tokens of its prompt that are not computed yet."""
        return len(self.prompt) - self.done

    def start(self, prompt: Sequence[int], reserve: int) -> int:
        """Begin a decision; gives how many of its tokens are cached. Raises UserError when it does not fit."""
        if len(prompt) + reserve > self.slots:
            raise too_long(self.slots, len(prompt))
        prompt, n = list(prompt), len(self.prefix)
        # Not every cache can be cut (a sliding window, a recurrent state): one is gone on from, or not used.
        if common_start(self.prompt[: self.done], prompt) < self.done:
            known = self.kept is not None and prompt[:n] == self.prefix
            self.cache, self.done = (self.kept, n) if known else (None, 0)
        self.prompt, self.paths, self.totals = prompt, [], []
        return self.done

    def forget(self) -> None:
        """Nothing that is cached is to be used again."""
        self.cache, self.kept, self.done = None, None, 0


class HFRunner:
    """One model of transformers', in the dtype and on the device that it has."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        weight = model.get_output_embeddings().weight
        self.slots = min(SLOTS, getattr(model.config.get_text_config(), "max_position_embeddings", None) or SLOTS)
        dtype = {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(model.dtype, str(model.dtype))
        size = model.num_parameters()
        self.caps = Caps("transformers", str(model.device), dtype, False, 1, True, size, weight.shape[0])

    def open(self, prefix: Sequence[int]) -> tuple[PathSequence, PrefixInfo]:
        """A handle whose prompts begin with `prefix`, which is computed."""
        handle = PathSequence(self.slots, prefix)
        handle.start(prefix, 1)
        self.prefill(handle, len(prefix))
        return handle, PrefixInfo(len(prefix), "computed")

    def copy(self, handle: PathSequence, prefix: Sequence[int]) -> PathSequence:
        """Another handle for the same prefix."""
        return PathSequence(self.slots, prefix, handle.kept)

    def cost(self, handle: PathSequence) -> PassCost:
        """Not measured: passes count."""
        return PassCost(1.0, 0.0)

    def prefill(self, handle: PathSequence, count: int) -> None:
        """Compute the next `count` tokens of its prompt, and no node."""
        n, end = len(handle.prefix), handle.done + count
        if handle.done < n < end:  # the next prompt begins with it, too
            self.prefill(handle, n - handle.done)
        if handle.done < end:
            handle.cache = self._forward(handle.prompt[handle.done : end], handle.cache)[1]
            handle.done = end
        if end == n and handle.prompt[:n] == handle.prefix:
            handle.kept = handle.cache

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """One pass: of each work what its tree's asks ask for."""
        return [self._run(work) for work in batch]

    def _run(self, work: Work) -> list[Any]:
        handle, tree, base = work.handle, work.tree, len(work.handle.paths)
        if len(handle.prompt) + max(tree.depths, default=0) >= handle.slots:
            raise too_long(handle.slots, len(handle.prompt))
        self.prefill(handle, handle.fresh)
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            handle.paths.append([*(handle.paths[parent] if parent >= 0 else ()), token])
        rows: dict[int, torch.Tensor] = {}
        for i in reversed(range(len(tree.tokens))):  # a path's end first: its forward gives the rows of all its nodes
            if i in rows:
                continue
            logits, _ = self._forward(handle.paths[base + i], handle.cache)
            while i >= 0 and i not in rows:
                rows[i] = logits[len(handle.paths[base + i]) - 1]
                i = tree.parents[i] - base
        every = torch.stack([rows[i] for i in range(len(rows))])
        handle.totals += torch.logsumexp(every, -1).tolist()
        return answered(tree.asks, lambda at, ids: every[list(at)] if ids is None else every[list(at)][:, list(ids)])

    def logsumexp(self, handle: PathSequence, nodes: Sequence[int]) -> list[float]:
        """Over the whole vocabulary, at nodes of the last decision."""
        return [handle.totals[n] for n in nodes]

    def rest(self) -> None:
        """Nothing fades."""

    @torch.no_grad()
    def _forward(self, tokens: Sequence[int], cache: Any) -> tuple[torch.Tensor, Any]:
        """fp32 logits [tokens, vocabulary] of what follows a cache, and a copy of it with them."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        out = self.model(input_ids=ids, past_key_values=deepcopy(cache), use_cache=True)
        return out.logits[0].float(), out.past_key_values
