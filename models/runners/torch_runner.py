"""The default runner: a lean forward pass over safetensors files, for dense checkpoints on one CPU or GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rtcontrol.models.checkpoint.checkpoint import read_config
from rtcontrol.models.decode.protocol import ROUNDS, Ask, Caps, PassCost, PrefixInfo, Work
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.handle import pass_cost
from rtcontrol.models.runners.lean import SLOTS, LeanModel
from rtcontrol.models.runners.packed import TOGETHER, PackedSequence, answered, run_together
from rtcontrol.models.runners.paged import EARLY, PAGE, USUAL, PagedModel, Shape, _power
from rtcontrol.models.runners.prefix_store import PrefixStore, prefix_key
from rtcontrol.models.runners.weights import ModelConfig, fingerprint, load_weights, shared, unchanged

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SMALL = 100_000_000  # bytes of fp32 weights below which bf16 gains too little on a CPU to give up exactness
ONE_THREAD = 64 << 20  # bytes of weights below which one CPU thread decides
COLUMNS_KEPT = 16
SIZES = (8, 24, 48)  # tokens of the measured passes


class TorchRunner:
    """One checkpoint's weights on one device, with a KV cache for each session. `threads` limits torch's threads during
    a pass (None: torch's default)."""

    kind: type[LeanModel] = LeanModel

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, threads: int | None) -> None:
        config = ModelConfig.load(folder)
        self.model = self.kind(config, load_weights(folder, config, dtype, device))
        self.threads, self.slots = threads, min(SLOTS, config.context)
        self._weights, self._dtype = fingerprint(folder), dtype
        self._costs: dict[int, PassCost] = {}
        name = next(k for k, v in DTYPES.items() if v == dtype)
        parameters = self.model.weights.parameters
        summary = config.packing.summary if config.packing else None
        self.caps = Caps("torch", str(device), name, True, TOGETHER, True, parameters, config.vocabulary, summary)

    @classmethod
    def load(
        cls, folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None
    ) -> TorchRunner:
        """Return the runner of a checkpoint; callers with the same unchanged checkpoint, dtype, device and threads
        share one runner.

        `threads` limits torch's CPU threads during a pass (None: one for a small model, else torch's default). On a GPU
        the result is a PagedRunner. Raises UserError if the checkpoint or an option is not supported.
        """
        place = choose_device(device)
        kind = choose_dtype(dtype, folder, place)
        files = unchanged(sorted(folder.glob("*.safetensors")))
        threads = choose_threads(threads, files)
        runner = PagedRunner if place.type == "cuda" else cls
        return shared((files, kind, place, threads, runner), lambda: runner(folder, kind, place, threads))

    def open(self, prefix: Sequence[int]) -> tuple[PackedSequence, PrefixInfo]:
        """Return a sequence that starts with this prefix, whose KV is read from disk, or computed and stored."""
        config, n = self.model.config, len(prefix)
        sequence = PackedSequence(self.model, self.slots)
        sequence.start(prefix, reserve=1)
        kept = self.model.dtype  # the dtype of the keys and values
        settings = config.settings if kept == self._dtype else f"{config.settings} {kept}"
        key = prefix_key(self._weights, prefix, self._dtype, settings)
        store = PrefixStore()
        stored = store.load(key, (config.layers, 1, config.kv_heads, n, config.head_dim))
        if isinstance(stored, tuple):
            sequence.restore(prefix, *stored)
            return sequence, PrefixInfo(n, "disk")
        if n:
            with thread_limit(self.threads):
                sequence.run(())
            refused = store.save(key, *sequence.cache.first(n))
            stored = stored or refused
        return sequence, PrefixInfo(n, "computed", stored)

    def copy(self, handle: PackedSequence, prefix: Sequence[int]) -> PackedSequence:
        """Return another sequence with the same prefix."""
        sequence = PackedSequence(self.model, self.slots)
        sequence.follow(handle, prefix)
        return sequence

    def prefill(self, handle: PackedSequence, count: int) -> None:
        """Compute the next `count` tokens of the handle's prompt, and no node."""
        with thread_limit(self.threads):
            handle.prefill(count)

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """Evaluate one pass for all work items; return, for each, the answers to the asks of its tree: fp32 scores, or
        the best legal id."""
        placed = [(work.handle, work.handle.placed(work)) for work in batch]
        with thread_limit(self.threads):
            states = run_together(self.model, placed)
            each = zip(batch, states, strict=True)
            answers = answered([(w.tree.asks, partial(self._logits, w.handle, hidden)) for w, hidden in each])
        for handle, nodes in placed:
            handle.ran(nodes)
        return answers

    def _logits(self, handle: PackedSequence, hidden: torch.Tensor, nodes: Sequence[int], ids: Any) -> torch.Tensor:
        rows = hidden[nodes.start : nodes.stop] if isinstance(nodes, range) else hidden[nodes]
        if ids is None:
            return self.model.logits(rows)
        columns = handle.columns.get(key := tuple(ids))
        if columns is None:
            if len(handle.columns) >= COLUMNS_KEPT:
                handle.columns.clear()
            columns = self.model.weights.lm_head[torch.tensor(key, device=self.model.device)].to(self.model.dtype)
            handle.columns[key] = columns
        return self.model.logits(rows, columns)

    def cost(self, handle: PackedSequence) -> PassCost:
        """Return the cost of a pass after the prompt of a handle, measured once for prompts of about this length."""
        about = len(handle.prompt).bit_length()
        if about not in self._costs:
            cost = pass_cost(self, handle, SIZES)
            with thread_limit(self.threads):
                choice = self._choice_ms()
            self._costs[about] = replace(cost, choice_ms=choice)
        return self._costs[about]

    def _choice_ms(self) -> float:
        """Return how many milliseconds it takes to choose the best id of the whole vocabulary at one node."""
        hidden = torch.zeros(1, self.model.config.hidden, dtype=self.model.dtype, device=self.model.device)
        ask = Ask([0], masks=np.ones((1, self.model.config.vocabulary), bool))
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.perf_counter()
            answered([([ask], lambda nodes, ids: self.model.logits(hidden))])
            best = min(best, (time.perf_counter() - began) * 1e3)
        return best


load = TorchRunner.load


@contextmanager
def thread_limit(threads: int | None) -> Iterator[None]:
    """Set torch's threads, which the whole process shares, within a `with` block. None leaves them unchanged."""
    before = torch.get_num_threads()
    if threads in (None, before):
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_threads(threads: int | None, files: Iterable[tuple[Path, int, int]]) -> int | None:
    """Return the number of CPU threads for these weights: as given, else one for a small model. Raises UserError for
    less than 1.

    A second thread gains little on a small model, and has to wait if another process is busy: the slowest decisions
    become a hundred times slower.
    """
    if threads is not None and threads < 1:
        raise UserError(f"{threads} CPU threads run nothing.", "Give 1 or more.")
    small = sum(size for _, size, _ in files) < ONE_THREAD
    return 1 if threads is None and small else threads


def choose_device(name: str | None) -> torch.device:
    """Return the named device, or by default a GPU if there is one. Raises UserError for a missing or unknown
    device."""
    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UserError(f"Unknown device {name!r}.", "Give cpu, cuda or cuda:NUMBER.") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"There is no device {name}: torch sees no GPU.", "Give cpu, or install torch for your GPU.")
    return place


def choose_dtype(name: str, folder: Path, device: torch.device) -> torch.dtype:
    """Return the dtype; `auto` is bf16 on a GPU and for large models, fp32 for small ones on a CPU. Raises UserError
    for an unknown one."""
    if name == "auto":
        size = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
        if read_config(folder).get("quantization_config"):
            size *= 8  # bytes in fp32, if most weights have four bits
        name = "bf16" if device.type == "cuda" or size > SMALL else "fp32"
    if name not in DTYPES:
        raise UserError(f"Unknown dtype {name!r}.", f"Choose auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


class PagedRunner(TorchRunner):
    """A runner with one pool of pages for all sequences. Sequences with a common start share the pages of that start.
    On a GPU the usual passes are recorded graphs."""

    kind = PagedModel
    model: PagedModel

    def open(self, prefix: Sequence[int]) -> tuple[PackedSequence, PrefixInfo]:
        """Return a sequence that starts with this prefix, whose KV is shared with another sequence, read from disk, or
        computed and stored. Raises UserError if the pool has no room for the ticks of all open sequences.

        This call records graphs for the shapes that the ticks of the sequence may have, alone or with all open
        sequences (for the first sequence: with EARLY others), and for missed shapes. The ticks of other sequences wait
        meanwhile, a few passes for each shape. Ticks record no graphs; a pass without a graph takes longer.
        """
        other = next((opened for opened in self.model.opened if opened.cached(prefix) == len(prefix)), None)
        if other is None:
            sequence, info = super().open(prefix)
        else:
            sequence, info = self.copy(other, prefix), PrefixInfo(len(prefix), "memory")
        self.model.opened.add(sequence)
        self.model.pool.take(0, spare=len(self.model.opened) * USUAL[-1] // PAGE)
        most = min(max(len(self.model.opened), EARLY), TOGETHER)
        together = [2**i for i in range(_power(most).bit_length())]
        ends = [(len(prefix) + USUAL[0]) * n for n in (1, 2)]
        self.model.prepare(Shape.of(1, end, n, 1, rows) for n in together for rows in USUAL for end in ends)
        return sequence, info

    def prefill(self, handle: PackedSequence, count: int) -> None:
        """Compute the next `count` tokens of the handle's prompt, and no node; wait for the GPU, as the caller measures
        the time."""
        super().prefill(handle, count)
        self.model.wait()
