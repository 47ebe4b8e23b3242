"""A runner over Hugging Face transformers, which evaluates a tree in one pass of any causal model whose attention takes
a mask.

Loading checks the model: the scores of a tree must equal the scores that forwards of whole sequences give.
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
from rtcontrol.models.decode.protocol import Ask, Caps, PassCost, PrefixInfo, Tree, Work
from rtcontrol.models.errors import UserError, too_long
from rtcontrol.models.runners.handle import Handle, pass_cost
from rtcontrol.models.runners.packed import answered
from rtcontrol.models.runners.torch_runner import choose_device, choose_dtype, choose_threads, thread_limit
from rtcontrol.models.runners.weights import shared, unchanged

SLOTS = 8192
PIECE = 1024  # tokens of a pass without nodes: a mask is so many times as long as what it looks at
SIZES = (1, 4, 16)  # nodes of the measured passes
LENGTH, WINDOW = 24, 8  # tokens of the trial's prompt, and a sliding window's while it lasts
LONGEST = 1024  # tokens of the longest trial prompt, for models with other windows
# The mean distance of scores, in standard deviations, that counts as rounding; or so many times the distance between
# the model's own two forwards.
ROUNDING, TIMES = {torch.float32: 1e-3}, 4.0
ROUNDING_16 = 2e-2
# The parents in the trial's tree, which takes two passes; the nodes of the second pass follow those of the first.
TREES = ([-1, 0, 0, 1, -1, 4], [2, 6, 3])
LEAVES = (5, 7, 8)


class HFSequence(Handle):
    """A cache of the prompt and of the decision's nodes. The cache is cropped to what the next prompt has in common."""

    def __init__(self, slots: int, cache: Any) -> None:
        super().__init__(slots)
        self.cache = cache

    def keep(self, count: int, total: int) -> int:
        length: int = self.cache.get_seq_length()
        if length > count:
            self.cache.crop(count - length)
        return count


class HFRunner:
    """A transformers model in one dtype on one device. `threads` limits torch's threads during a pass (None: torch's
    default). `kinds` are the layer types that the model takes a mask for (empty: the model takes one mask). `window`
    limits how far a row of a sliding layer, or of the one mask, sees."""

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
        takes = signature(model.forward).parameters
        self._keeps = "logits_to_keep" in takes
        self._cache = "cache" if "cache" in takes else "past_key_values"  # since transformers 5.24 all call it `cache`

    def open(self, prefix: Sequence[int]) -> tuple[HFSequence, PrefixInfo]:
        """Compute the KV of `prefix`; return a handle for prompts that start with `prefix`."""
        from transformers import DynamicCache

        # A plain cache, since the model's own cache may have a window, which drops what another branch still sees.
        handle = HFSequence(self.slots, DynamicCache())
        handle.start(prefix, 1)
        self.prefill(handle, handle.fresh)
        return handle, PrefixInfo(len(prefix), "computed")

    def copy(self, handle: HFSequence, prefix: Sequence[int]) -> HFSequence:
        """Return another handle for the same prefix."""
        other = HFSequence(self.slots, deepcopy(handle.cache))
        other.prompt, other.done, other.paths = list(handle.prompt), handle.done, list(handle.paths)
        other.start(prefix, 1)
        self.prefill(other, other.fresh)
        return other

    def cost(self, handle: HFSequence) -> PassCost:
        """Return the cost of a pass after the prompt of a handle, measured once for prompts of about this length."""
        about = len(handle.prompt).bit_length()
        if about not in self._costs:
            self._costs[about] = pass_cost(self, handle, SIZES)
        return self._costs[about]

    def prefill(self, handle: HFSequence, count: int) -> None:
        """Compute the next `count` tokens of the handle's prompt, and no node."""
        end = handle.done + count
        while handle.done < end:
            self._pass(handle, min(end - handle.done, PIECE), ())

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """Evaluate one pass; return, for each work item, the answers to the asks of its tree."""
        return [self._run(work) for work in batch]

    def _run(self, work: Work) -> list[Any]:
        every = self._rows(work.handle, work.tree)

        def scores(at: Sequence[int], ids: Sequence[int] | None) -> torch.Tensor:
            rows = torch.tensor([*at], device=every.device)
            return every[rows] if ids is None else every[rows[:, None], torch.tensor([*ids], device=every.device)]

        return answered([(work.tree.asks, scores)])[0]

    def _rows(self, handle: HFSequence, tree: Tree) -> torch.Tensor:
        """Return fp32 logits [nodes, vocabulary]. Raises UserError if the nodes do not fit."""
        base = len(handle.paths)
        if len(handle.prompt) + base + len(tree.tokens) > handle.slots:
            raise too_long(handle.slots, len(handle.prompt))
        self.prefill(handle, handle.fresh - min(handle.fresh, PIECE))
        paths = list(handle.paths)
        for i, parent in enumerate(tree.parents, start=base):
            paths.append([*(paths[parent] if parent >= 0 else ()), i])
        return self._pass(handle, handle.fresh, tree.tokens, paths)

    def _pass(
        self, handle: HFSequence, fresh: int, nodes: Sequence[int], paths: Sequence[list[int]] = ()
    ) -> torch.Tensor:
        """Evaluate `fresh` prompt tokens and the `nodes`; return fp32 logits of the nodes, or without nodes of the last
        token."""
        done, before, end = handle.done, len(handle.paths), handle.done + fresh
        new = paths[before:]
        # Cached positions come first, then those of this pass: the nodes of a decision follow the whole prompt.
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
        inputs = {"position_ids": at[None, past:].to(self.model.device), "attention_mask": self._masks(see, at)}
        tokens = [*handle.prompt[done:end], *nodes]
        try:
            logits = self.called(tokens, max(len(nodes), 1), **{self._cache: handle.cache}, use_cache=True, **inputs)
        except BaseException:  # some layers may have it, others not
            handle.cache, handle.done, handle.paths = type(handle.cache)(), 0, []
            raise
        handle.done, handle.paths = end, list(paths)
        return logits

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

    @torch.no_grad()
    def called(self, tokens: Sequence[int], keep: int = 0, **inputs: Any) -> torch.Tensor:
        """Run the model; return fp32 logits of the last `keep` tokens (0: all)."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        if keep and self._keeps:
            inputs["logits_to_keep"] = keep
        with thread_limit(self.threads):
            return self.model(input_ids=ids, **inputs).logits[0, -keep:].float()


def load(folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None) -> HFRunner:
    """Return the runner of a checkpoint; callers with the same unchanged checkpoint, dtype, device and threads share
    one runner. Raises UserError if transformers cannot run the checkpoint."""
    place = choose_device(device)
    if read_config(folder).get("quantization_config"):
        raise UserError(
            f"{folder} is quantised; the engine transformers runs it in full precision alone.",
            "Use host.engine=torch (it is dequantised) or host.engine=vllm.",
        )
    kind = choose_dtype(dtype, folder, place)
    files = unchanged(sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]))
    threads = choose_threads(threads, files)
    return shared(("transformers", files, kind, place, threads), lambda: runner(_model(folder, kind, place), threads))


def _model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        ).to(device)
    except Exception as error:  # a broken checkpoint may raise anything
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(
            f"transformers cannot load {folder} ({type(error).__name__}: {reason}).",
            "Restore the checkpoint, or choose a causal model of an architecture that transformers has.",
        ) from None


def runner(model: Any, threads: int | None = None) -> HFRunner:
    """Return the runner of a model. Raises UserError if the scores of a tree differ from those of whole sequences."""
    model.eval()
    config = model.config.get_text_config()
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    slides = getattr(config, "sliding_window", None) is not None and kinds != ["full_attention"]
    why = "its scores of a tree are others than those of one token after another"
    other = _other_windows(config)
    ways = [kinds, []] if len(kinds) > 1 else [[]]
    for own in ways if other <= LONGEST else ():
        try:
            with _small_window(config):
                agrees = _agrees(
                    HFRunner(model, threads, own, config.sliding_window if slides else None), LENGTH + other
                )
        except Exception as error:
            agrees, why = False, repr(error).splitlines()[0]
        if agrees:
            return HFRunner(model, threads, own, config.sliding_window if slides else None)
    raise UserError(
        f"The {model.config.model_type} model cannot be asked for a tree: {why}.",
        "Use host.engine=vllm, or another model.",
    )


def _other_windows(config: Any) -> int:
    """Return the longest attention window of another name than `sliding_window`. Only a longer trial shows the effect
    of such a window."""
    named = [v for k, v in config.to_dict().items() if any(w in k for w in ("window", "chunk", "block", "local"))]
    sizes = (v for v in named if type(v) is int and v != getattr(config, "sliding_window", None))
    return max(sizes, default=0)


@contextmanager
def _small_window(config: Any) -> Iterator[None]:
    """Shorten the model's sliding window during the trial, so that the window has an effect within few tokens."""
    window = getattr(config, "sliding_window", None)
    if isinstance(window, int) and window > WINDOW:
        config.sliding_window = WINDOW
    try:
        yield
    finally:
        if window is not None:
            config.sliding_window = window


def _agrees(trial: HFRunner, length: int) -> bool:
    """Return whether a runner gives trees after two prompts with a common start the scores that forwards of whole
    sequences give."""
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
    got: list[list[float]] = []
    for parents in TREES:
        base = len(paths)
        for i, parent in enumerate(parents, start=base):
            paths.append([*(paths[parent] if parent >= 0 else ()), tokens[i]])
        depths = [len(path) - 1 for path in paths[base:]]
        tree = Tree(tokens[base : len(paths)], parents, depths, [Ask(range(len(parents)), columns)])
        got += trial.run([Work(handle, tree)])[0][0]
    # The forward of a leaf also has the scores of all nodes that lead to the leaf.
    expected = torch.empty(len(paths), len(columns))
    for leaf in LEAVES:
        rows = trial.called([*prompt, *paths[leaf]], len(paths[leaf]))
        for i, path in enumerate(paths):
            if path == paths[leaf][: len(path)]:
                expected[i] = rows[len(path) - 1, columns]
    # The distance between two forwards of the model itself: with a node at the end, and within a longer sequence.
    alone = trial.called([*prompt, *paths[0]], 1)
    noise = (alone[0, columns].cpu() - expected[0]).abs().mean()
    far = (torch.tensor(got) - expected).abs().mean(-1).max()
    return bool(far <= max(TIMES * noise, ROUNDING.get(trial.model.dtype, ROUNDING_16) * expected.std()))
