"""A runner over Hugging Face transformers that takes a tree in one pass: with a mask and positions of our own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from rtcontrol.models.core import Tree
from rtcontrol.models.engines.base import PrefixInfo
from rtcontrol.models.engines.hf_runner import HFRunner
from rtcontrol.models.engines.hf_runner import PathSequence as Sequential
from rtcontrol.models.errors import too_long
from rtcontrol.models.packed import common_start

PIECE = 1024  # tokens of a pass without nodes: a mask is so many times as long as what it looks at


class TreeSequence(Sequential):
    """A session's handle: one cache of the prompt and behind it of the decision's nodes; `paths` are the nodes that
    lead to each, itself the last. It is cut where the next prompt parts."""

    def reuse(self, prompt: list[int]) -> None:
        """Of what is cached, what this prompt begins with."""
        self.keep(common_start(self.prompt[: self.done], prompt))

    def keep(self, count: int) -> None:
        """The first `count` tokens of the prompt, and nothing else."""
        if more := self.done + len(self.paths) - count:
            self.cache.crop(-more)
        self.done, self.paths = count, []

    def forget(self) -> None:
        """Nothing that is cached is to be used again."""
        if self.cache is not None:
            self.keep(0)


class TreeRunner(HFRunner):
    """Packed passes. `kinds`: of the masks that the model takes by layer type (none: it takes one); `window`: how far
    a row of a sliding layer, or of the one mask, looks back."""

    tree = True

    def __init__(self, model: Any, threads: int | None, kinds: Sequence[str], window: int | None) -> None:
        super().__init__(model, threads)
        self.kinds, self.window = kinds, window

    def open(self, prefix: Sequence[int]) -> tuple[Any, PrefixInfo]:
        """A handle whose prompts begin with `prefix`, which is computed."""
        from transformers import DynamicCache

        # Not the model's own kind of cache: one with a window forgets what another branch still sees.
        return self._begun(TreeSequence(self.slots, prefix, DynamicCache()))

    def copy(self, handle: Any, prefix: Sequence[int]) -> Any:
        """Another handle for the same prefix."""
        other = TreeSequence(self.slots, prefix, deepcopy(handle.cache))
        other.prompt, other.done, other.paths = list(handle.prompt), handle.done, list(handle.paths)
        return self._begun(other)[0]

    def _begun(self, handle: TreeSequence) -> tuple[TreeSequence, PrefixInfo]:
        handle.cache = handle.kept
        handle.start(handle.prefix, 1)
        self.prefill(handle, handle.fresh)
        return handle, PrefixInfo(len(handle.prefix), "computed")

    def prefill(self, handle: Any, count: int) -> None:
        """Compute the next `count` tokens of its prompt, and no node."""
        end = handle.done + count
        while handle.done < end:
            self._pass(handle, min(end - handle.done, PIECE), ())

    def _rows(self, handle: Any, tree: Tree) -> torch.Tensor:
        base = len(handle.paths)
        if len(handle.prompt) + base + len(tree.tokens) > handle.slots:
            raise too_long(handle.slots, len(handle.prompt))
        self.prefill(handle, handle.fresh - min(handle.fresh, PIECE))
        paths = list(handle.paths)
        for i, parent in enumerate(tree.parents, start=base):
            paths.append([*(paths[parent] if parent >= 0 else ()), i])
        return self._pass(handle, handle.fresh, tree.tokens, paths)

    def _pass(self, handle: Any, fresh: int, nodes: Sequence[int], paths: Sequence[Sequence[int]] = ()) -> torch.Tensor:
        """fp32 logits of the `nodes` (of the last token where there is none), behind `fresh` tokens of the prompt."""
        done, before, end = handle.done, len(handle.paths), handle.done + fresh
        new = paths[before:]
        # Of what is cached, then of this pass: the nodes of a decision stand behind the whole prompt.
        places = [*range(done), *(end + len(p) - 1 for p in paths[:before]), *range(done, end)]
        places += [end + len(path) - 1 for path in new]
        at = torch.tensor(places)
        rows, past = fresh + len(nodes), done + before
        see = torch.zeros(rows, past + rows, dtype=torch.bool)
        see[:, :done] = True
        see[:fresh, past : past + fresh] = torch.ones(fresh, fresh, dtype=torch.bool).tril()
        see[fresh:, past : past + fresh] = True
        for row, path in enumerate(new, start=fresh):
            see[row, [done + i if i < before else past + fresh + i - before for i in path]] = True
        mask = self._masks(see, at)
        told = {"position_ids": at[None, past:].to(self.model.device), "attention_mask": mask}
        tokens = [*handle.prompt[done:end], *nodes]
        try:
            found, _ = self.called(tokens, max(len(nodes), 1), **{self._cache: handle.cache}, use_cache=True, **told)
        except BaseException:  # some layers may have it, others not
            handle.cache, handle.done, handle.paths = type(handle.cache)(), 0, []
            raise
        handle.done, handle.paths = end, list(paths)
        return found

    def _masks(self, see: torch.Tensor, at: torch.Tensor) -> Any:
        near = see if self.window is None else see & (at[None] > at[-len(see) :, None] - self.window)
        whole, sliding = (
            torch.zeros(which.shape, dtype=self.model.dtype)
            .masked_fill(~which, -torch.inf)[None, None]
            .to(self.model.device)
            for which in (see, near)
        )
        if not self.kinds:
            return sliding
        return {kind: sliding if kind == "sliding_attention" else whole for kind in self.kinds}
