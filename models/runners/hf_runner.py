"""A runner for Hugging Face transformers: evaluates a tree in one pass with any causal model that accepts an attention
mask.

When a model is loaded, a trial checks that the scores of a tree equal those of separate forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.checkpoint.checkpoint import read_config
from rtcontrol.models.decode.protocol import Caps, PassCost, PrefixInfo, ScoreQuery, Tree, WorkItem
from rtcontrol.models.errors import UserError, prompt_too_long
from rtcontrol.models.runners.handle import Handle, pass_cost
from rtcontrol.models.runners.packed import compute_answers
from rtcontrol.models.runners.torch_runner import choose_device, choose_dtype, choose_threads, thread_limit
from rtcontrol.models.runners.weights import files_key, get_or_create

SLOTS = 8192
CHUNK = 1024  # maximum prompt tokens per pass; the size of the mask is the square of this number
SIZES = (1, 4, 16)  # numbers of nodes for which the time of a pass is measured
LENGTH, WINDOW = 24, 8  # numbers of tokens: of the trial's prompt, and of sliding windows in the trial
LONGEST = 1024  # maximum tokens of the trial's prompt, if windows other than `sliding_window` must be exceeded
# Two scores count as equal if their mean difference is at most ROUNDING standard deviations of the scores, or at most
# MAX_NOISE_RATIO times the difference between two forward passes of the same tokens (rounding noise).
ROUNDING, MAX_NOISE_RATIO = {torch.float32: 1e-3}, 4.0
ROUNDING_16 = 2e-2
# The parents of the nodes of the trial's tree, for its two passes. The second pass numbers its nodes from 6 on.
TREES = ([-1, 0, 0, 1, -1, 4], [2, 6, 3])
LEAVES = (5, 7, 8)


class HFSequence(Handle):
    """A handle with a transformers cache, which is cropped to the tokens that the next prompt has in common."""

    def __init__(self, slots: int, cache: Any) -> None:
        super().__init__(slots)
        self.cache = cache

    def keep_prefix(self, count: int, total: int) -> int:
        length: int = self.cache.get_seq_length()
        if length > count:
            self.cache.crop(count - length)
        return count


class HFRunner:
    """A runner for a transformers model. `threads` limits torch's threads during a pass (None: torch's default).
    `kinds` are the layer types that need separate masks (empty: all layers share one mask). `window` is the size of the
    sliding window, which applies to sliding layers, or to the shared mask."""

    def __init__(
        self, model: Any, threads: int | None = None, kinds: Sequence[str] = (), window: int | None = None
    ) -> None:
        self.model, self.threads, self.kinds, self.window = model.eval(), threads, kinds, window
        config = model.config.get_text_config()
        self.slots = min(SLOTS, getattr(config, "max_position_embeddings", None) or SLOTS)
        dtype = {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(model.dtype, str(model.dtype))
        head = model.get_output_embeddings()
        rows = config.vocab_size if head is None else head.weight.shape[0]
        self.caps = Caps("transformers", str(model.device), dtype, True, 1, True, model.num_parameters(), rows)
        self._costs: dict[int, PassCost] = {}
        parameters = signature(model.forward).parameters
        self._limits_logits = "logits_to_keep" in parameters
        self._cache = "cache" if "cache" in parameters else "past_key_values"  # transformers 5.24 renamed it

    def open(self, prefix: Sequence[int]) -> tuple[HFSequence, PrefixInfo]:
        """Compute the KV of `prefix`; return a handle for prompts that start with `prefix`."""
        from transformers import DynamicCache

        # Use a plain cache: the model's cache may have a sliding window, and drop tokens that other branches need.
        handle = HFSequence(self.slots, DynamicCache())
        handle.start(prefix, 1)
        self.prefill(handle, handle.uncomputed_count)
        return handle, PrefixInfo(len(prefix), "computed")

    def copy(self, handle: HFSequence, prefix: Sequence[int]) -> HFSequence:
        """Return another handle for the same prefix."""
        other = HFSequence(self.slots, deepcopy(handle.cache))
        other.prompt, other.computed, other.paths = list(handle.prompt), handle.computed, list(handle.paths)
        other.start(prefix, 1)
        self.prefill(other, other.uncomputed_count)
        return other

    def cost(self, handle: HFSequence) -> PassCost:
        """Return the cost of a pass after a prompt of about the handle's length. It is measured only once."""
        magnitude = len(handle.prompt).bit_length()
        if magnitude not in self._costs:
            self._costs[magnitude] = pass_cost(self, handle, SIZES)
        return self._costs[magnitude]

    def prefill(self, handle: HFSequence, count: int) -> None:
        """Compute the next `count` tokens of the handle's prompt."""
        end = handle.computed + count
        while handle.computed < end:
            self._run_pass(handle, min(end - handle.computed, CHUNK), ())

    def run(self, batch: Sequence[WorkItem]) -> list[list[Any]]:
        """Evaluate the work items; return for each the answers to the queries of its tree."""
        return [self._run(work) for work in batch]

    def _run(self, work: WorkItem) -> list[Any]:
        logits = self._tree_logits(work.handle, work.tree)

        def scores(at: Sequence[int], ids: Sequence[int] | None) -> torch.Tensor:
            rows = torch.tensor([*at], device=logits.device)
            return logits[rows] if ids is None else logits[rows[:, None], torch.tensor([*ids], device=logits.device)]

        return compute_answers([(work.tree.queries, scores)])[0]

    def _tree_logits(self, handle: HFSequence, tree: Tree) -> torch.Tensor:
        """Evaluate a tree and return fp32 logits [nodes, vocabulary]. Raises UserError if the nodes do not fit."""
        base = len(handle.paths)
        if len(handle.prompt) + base + len(tree.tokens) > handle.slots:
            raise prompt_too_long(handle.slots, len(handle.prompt))
        self.prefill(handle, handle.uncomputed_count - min(handle.uncomputed_count, CHUNK))
        paths = list(handle.paths)
        for i, parent in enumerate(tree.parents, start=base):
            paths.append([*(paths[parent] if parent >= 0 else ()), i])
        return self._run_pass(handle, handle.uncomputed_count, tree.tokens, paths)

    def _run_pass(
        self, handle: HFSequence, fresh: int, nodes: Sequence[int], paths: Sequence[list[int]] = ()
    ) -> torch.Tensor:
        """Run the model on the next `fresh` prompt tokens and the `nodes`, whose paths are in `paths`. Return fp32
        logits of the nodes, or, without nodes, of the last token."""
        done, before, end = handle.computed, len(handle.paths), handle.computed + fresh
        new = paths[before:]
        # Collect positions of the cached tokens, then of this pass. The positions of nodes start at the prompt's end.
        places = [*range(done), *(end + len(p) - 1 for p in paths[:before]), *range(done, end)]
        places += [end + len(path) - 1 for path in new]
        at = torch.tensor(places)
        rows, past = fresh + len(nodes), done + before
        visible = torch.zeros(rows, past + rows, dtype=torch.bool)
        visible[:, :done] = True
        visible[:fresh, past : past + fresh] = torch.ones(fresh, fresh, dtype=torch.bool).tril()
        visible[fresh:, past : past + fresh] = True
        for row, path in enumerate(new, start=fresh):
            visible[row, [done + i if i < before else past + fresh + i - before for i in path]] = True
        inputs = {"position_ids": at[None, past:].to(self.model.device), "attention_mask": self._masks(visible, at)}
        tokens = [*handle.prompt[done:end], *nodes]
        try:
            logits = self.logits(tokens, max(len(nodes), 1), **{self._cache: handle.cache}, use_cache=True, **inputs)
        except BaseException:  # perhaps only some layers of the cache are updated, so discard it
            handle.cache, handle.computed, handle.paths = type(handle.cache)(), 0, []
            raise
        handle.computed, handle.paths = end, list(paths)
        return logits

    def _masks(self, visible: torch.Tensor, at: torch.Tensor) -> Any:
        in_window = visible if self.window is None else visible & (at[None] > at[-len(visible) :, None] - self.window)
        whole, sliding = (
            torch.zeros(mask.shape, dtype=self.model.dtype)
            .masked_fill(~mask, -torch.inf)[None, None]
            .to(self.model.device)
            for mask in (visible, in_window)
        )
        if not self.kinds:
            return sliding
        return {kind: sliding if kind == "sliding_attention" else whole for kind in self.kinds}

    @torch.no_grad()
    def logits(self, tokens: Sequence[int], keep: int = 0, **inputs: Any) -> torch.Tensor:
        """Run the model on `tokens`; return fp32 logits of the last `keep` tokens (0: of all)."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        if keep and self._limits_logits:
            inputs["logits_to_keep"] = keep
        with thread_limit(self.threads):
            return self.model(input_ids=ids, **inputs).logits[0, -keep:].float()


def load(folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None) -> HFRunner:
    """Return the runner of a checkpoint; callers with the same unchanged checkpoint, dtype, device and threads share
    one runner. Raises UserError if transformers cannot run the checkpoint."""
    place = choose_device(device)
    if read_config(folder).get("quantization_config"):
        raise UserError(
            f"{folder} is quantised, which the engine transformers does not support.",
            "Use host.engine=torch, which dequantises it, or host.engine=vllm.",
        )
    kind = choose_dtype(dtype, folder, place)
    files = files_key(sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]))
    threads = choose_threads(threads, files)
    key = ("transformers", files, kind, place, threads)
    return get_or_create(key, lambda: checked_runner(_model(folder, kind, place), threads))


def _model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        ).to(device)
    except Exception as error:  # a broken checkpoint may raise any exception
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(
            f"transformers cannot load {folder} ({type(error).__name__}: {reason}).",
            "Restore the checkpoint, or choose a causal model with an architecture that transformers supports.",
        ) from None


def checked_runner(model: Any, threads: int | None = None) -> HFRunner:
    """Return a runner for a model. Raises UserError if, in a trial, scores of trees differ from separate passes'."""
    model.eval()
    config = model.config.get_text_config()
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    has_window = getattr(config, "sliding_window", None) is not None and kinds != ["full_attention"]
    why = "the scores of a tree differ from those of separate sequences"
    other = _other_windows(config)
    candidates = [kinds, []] if len(kinds) > 1 else [[]]
    for mask_kinds in candidates if other <= LONGEST else ():
        try:
            with _small_window(config):
                agrees = _trees_agree(
                    HFRunner(model, threads, mask_kinds, config.sliding_window if has_window else None), LENGTH + other
                )
        except Exception as error:
            agrees, why = False, repr(error).splitlines()[0]
        if agrees:
            return HFRunner(model, threads, mask_kinds, config.sliding_window if has_window else None)
    raise UserError(
        f"The {model.config.model_type} model cannot evaluate a tree: {why}.",
        "Use host.engine=vllm, or another model.",
    )


def _other_windows(config: Any) -> int:
    """Return the largest setting that may be an attention window, except `sliding_window` (0: there is none). The trial
    must be longer than this window."""
    named = [v for k, v in config.to_dict().items() if any(w in k for w in ("window", "chunk", "block", "local"))]
    sizes = (v for v in named if type(v) is int and v != getattr(config, "sliding_window", None))
    return max(sizes, default=0)


@contextmanager
def _small_window(config: Any) -> Iterator[None]:
    """Shorten the model's sliding window within a `with` block, so that it has an effect on short trials."""
    window = getattr(config, "sliding_window", None)
    if isinstance(window, int) and window > WINDOW:
        config.sliding_window = WINDOW
    try:
        yield
    finally:
        if window is not None:
            config.sliding_window = window


def _trees_agree(trial: HFRunner, length: int) -> bool:
    """Return whether the scores of trees equal those of separate forward passes, for two prompts with a common start
    and a copied handle."""
    length = min(length, trial.slots - 16)
    ids = torch.randint(trial.caps.vocabulary, (2 * length,), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [ids[:length], [*ids[: length // 2], *ids[length : length + length // 3]]]
    handle, _ = trial.open(ids[: length // 3])
    other = trial.copy(handle, ids[: length // 3])
    columns = torch.randint(trial.caps.vocabulary, (256,), generator=torch.Generator().manual_seed(1)).tolist()
    each = ((prompts[0], handle), (prompts[1], handle), (prompts[0], other))
    return all(_scores_agree(trial, used, prompt, columns, ids[-16:]) for prompt, used in each)


def _scores_agree(trial: HFRunner, handle: Any, prompt: Sequence[int], columns: list[int], tokens: list[int]) -> bool:
    handle.start(prompt, 16)
    paths: list[list[int]] = []
    actual: list[list[float]] = []
    for parents in TREES:
        base = len(paths)
        for i, parent in enumerate(parents, start=base):
            paths.append([*(paths[parent] if parent >= 0 else ()), tokens[i]])
        depths = [len(path) - 1 for path in paths[base:]]
        tree = Tree(tokens[base : len(paths)], parents, depths, [ScoreQuery(range(len(parents)), columns)])
        actual += trial.run([WorkItem(handle, tree)])[0][0]
    # One forward pass over the path to a leaf gives the scores of all nodes on this path.
    expected = torch.empty(len(paths), len(columns))
    for leaf in LEAVES:
        rows = trial.logits([*prompt, *paths[leaf]], len(paths[leaf]))
        for i, path in enumerate(paths):
            if path == paths[leaf][: len(path)]:
                expected[i] = rows[len(path) - 1, columns]
    # Measure the rounding error: compare a node's scores at the end of a sequence with those within a longer sequence.
    alone = trial.logits([*prompt, *paths[0]], 1)
    noise = (alone[0, columns].cpu() - expected[0]).abs().mean()
    difference = (torch.tensor(actual) - expected).abs().mean(-1).max()
    return bool(
        difference <= max(MAX_NOISE_RATIO * noise, ROUNDING.get(trial.model.dtype, ROUNDING_16) * expected.std())
    )
