"""A runner over Hugging Face transformers: any causal model with a cache, path by path.

Each path of a tree is a forward of its own behind a copy of the prompt's cache: nothing of ours touches attention,
positions or caches, so other runners are measured by it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from inspect import signature
from typing import Any

import torch

from rtcontrol.models.decode.core import common_start
from rtcontrol.models.decode.protocol import Ask, Caps, PassCost, PrefixInfo, Tree, Work, fitted
from rtcontrol.models.errors import too_long
from rtcontrol.models.runners.packed import answered
from rtcontrol.models.runners.torch_runner import thread_limit

SLOTS = 8192
# Several tokens behind a cache in one forward; one a forward (a recurrent model may begin anew with each); no cache.
WAYS = ("paths", "steps", "whole")
SIZES, ROUNDS = (1, 4, 16), 3  # nodes of the measured passes, and how often each


def cache_name(model: Any) -> str:
    """What a model calls its cache: since transformers 5.24 all of them `cache`."""
    takes = signature(model.forward).parameters
    return next((name for name in ("cache", "cache_params") if name in takes), "past_key_values")


class PathSequence:
    """A session's handle: the prompt's cache, of each node the tokens that lead to it, and of each pass the logits."""

    def __init__(self, slots: int, prefix: Sequence[int], kept: Any = None) -> None:
        self.slots, self.prefix, self.kept = slots, list(prefix), kept  # the cache of the prefix alone
        self.prompt: list[int] = []
        self.cache: Any = None  # of the prompt's first `done` tokens
        self.done = 0
        self.paths: list[list[int]] = []
        self.logits: list[torch.Tensor] = []

    @property
    def fresh(self) -> int:
        """Tokens of its prompt that are not computed yet."""
        return len(self.prompt) - self.done

    def start(self, prompt: Sequence[int], reserve: int) -> int:
        """Begin a decision; gives how many of its tokens are cached. Raises UserError when it does not fit."""
        if len(prompt) + reserve > self.slots:
            raise too_long(self.slots, len(prompt))
        self.reuse(list(prompt))
        self.prompt, self.paths, self.logits = list(prompt), [], []
        return self.done

    def reuse(self, prompt: list[int]) -> None:
        """Of what is cached, what this prompt begins with."""
        n = len(self.prefix)
        # Not every cache can be cut (a sliding window, a recurrent state): one is gone on from, or not used.
        if common_start(self.prompt[: self.done], prompt) < self.done:
            known = self.kept is not None and prompt[:n] == self.prefix
            self.cache, self.done = (self.kept, n) if known else (None, 0)

    def forget(self) -> None:
        """Nothing that is cached is to be used again."""
        self.cache, self.kept, self.done = None, None, 0


class HFRunner:
    """One model of transformers', in the dtype and on the device that it has. `threads` are torch's while it runs
    (None: torch's own number). `way`: how it goes on behind a cache (WAYS)."""

    tree = False

    def __init__(self, model: Any, threads: int | None = None, way: str = "paths") -> None:
        self.model, self.threads, self.way = model.eval(), threads, way
        config = model.config.get_text_config()
        self.slots = min(SLOTS, getattr(config, "max_position_embeddings", None) or SLOTS)
        dtype = {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(model.dtype, str(model.dtype))
        head = model.get_output_embeddings()
        rows = config.vocab_size if head is None else head.weight.shape[0]
        size = model.num_parameters()
        self.caps = Caps("transformers", str(model.device), dtype, self.tree, 1, True, size, rows)
        self._costs: dict[int, PassCost] = {}
        self._keeps = "logits_to_keep" in signature(model.forward).parameters
        self._cache = cache_name(model)

    def open(self, prefix: Sequence[int]) -> tuple[Any, PrefixInfo]:
        """A handle whose prompts begin with `prefix`, which is computed."""
        handle = PathSequence(self.slots, prefix)
        handle.start(prefix, 1)
        self.prefill(handle, len(prefix))
        return handle, PrefixInfo(len(prefix), "computed")

    def copy(self, handle: Any, prefix: Sequence[int]) -> Any:
        """Another handle for the same prefix."""
        return PathSequence(self.slots, prefix, handle.kept)

    def cost(self, handle: Any) -> PassCost:
        """What a pass behind the prompt of a handle costs: measured once for prompts of about this length. The prompt
        stays cached."""
        prompt = list(handle.prompt)
        about = len(prompt).bit_length()
        if len(prompt) + max(SIZES) >= handle.slots:
            return PassCost(1.0, 0.0)  # where there is no room to measure, passes count
        if about not in self._costs:
            best = dict.fromkeys(SIZES, float("inf"))
            for _ in range(ROUNDS):
                for size in SIZES:
                    handle.start(prompt, size)
                    self.prefill(handle, handle.fresh)
                    tree = Tree(range(size), [-1] * size, [0] * size, [Ask(range(size), (0,))])
                    began = time.perf_counter()
                    self.run([Work(handle, tree)])  # its answers are on the CPU: a GPU was waited for
                    best[size] = min(best[size], (time.perf_counter() - began) * 1e3)
            handle.start(prompt, 0)
            self._costs[about] = fitted(best, 0.0)
        return self._costs[about]

    def prefill(self, handle: Any, count: int) -> None:
        """Compute the next `count` tokens of its prompt, and no node."""
        n, end = len(handle.prefix), handle.done + count
        if handle.done < n < end:  # the next prompt begins with it, too
            self.prefill(handle, n - handle.done)
        if handle.done < end:
            handle.cache = self._forward(handle.prompt[handle.done : end], handle.cache, keep=1)[1]
            handle.done = end
        if end == n and handle.prompt[:n] == handle.prefix:
            handle.kept = handle.cache

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """One pass: of each work what its tree's asks ask for."""
        return [self._run(work) for work in batch]

    def _run(self, work: Work) -> list[Any]:
        handle, tree = work.handle, work.tree
        if len(handle.prompt) + max(tree.depths, default=0) >= handle.slots:
            raise too_long(handle.slots, len(handle.prompt))
        every = self._rows(handle, tree)
        handle.logits.append(every)

        def scores(at: Sequence[int], ids: Sequence[int] | None) -> torch.Tensor:
            rows = torch.tensor([*at], device=every.device)
            return every[rows] if ids is None else every[rows[:, None], torch.tensor([*ids], device=every.device)]

        return answered([(tree.asks, scores)])[0]

    def _rows(self, handle: Any, tree: Tree) -> torch.Tensor:
        """fp32 logits [nodes, vocabulary]."""
        base = len(handle.paths)
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
        return torch.stack([rows[i] for i in range(len(rows))])

    def logsumexp(self, handle: Any, nodes: Sequence[int]) -> list[float]:
        """Over the whole vocabulary, at nodes of the last decision."""
        total: list[float] = torch.logsumexp(torch.cat(handle.logits)[list(nodes)], -1).tolist()
        return total

    def _forward(self, tokens: Sequence[int], cache: Any, keep: int = 0) -> tuple[torch.Tensor, Any]:
        """fp32 logits of the last `keep` tokens (0: all) of what follows a cache, and a copy of it with them."""
        if self.way == "whole":
            cache = [*(cache or ()), *tokens]
            return self.called(cache)[0][-(keep or len(tokens)) :], cache
        cache = deepcopy(cache)
        if self.way == "paths" or cache is None:
            return self.called(tokens, keep, **{self._cache: cache, "use_cache": True})
        rows = []
        for token in tokens:
            row, cache = self.called([token], **{self._cache: cache, "use_cache": True})
            rows.append(row)
        return torch.cat(rows)[-keep:], cache

    @torch.no_grad()
    def called(self, tokens: Sequence[int], keep: int = 0, **told: Any) -> tuple[torch.Tensor, Any]:
        """fp32 logits of the last `keep` tokens (0: all), and the cache."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        if keep and self._keeps:
            told["logits_to_keep"] = keep
        with thread_limit(self.threads):
            out = self.model(input_ids=ids, **told)
        return out.logits[0, -keep:].float(), out.get(self._cache)


PIECE = 1024  # tokens of a pass without nodes: a mask is so many times as long as what it looks at


class TreeSequence(PathSequence):
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
