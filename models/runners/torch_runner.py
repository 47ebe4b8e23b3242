"""The default runner (engine "torch"): runs dense checkpoints on one CPU or GPU with `LeanModel`."""

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
from rtcontrol.models.decode.protocol import ROUNDS, Caps, PassCost, PrefixInfo, ScoreQuery, WorkItem
from rtcontrol.models.errors import UserError
from rtcontrol.models.processors import usable_processors
from rtcontrol.models.runners.handle import pass_cost
from rtcontrol.models.runners.lean import SLOTS, LeanModel
from rtcontrol.models.runners.packed import MAX_BATCH, PackedSequence, compute_answers, run_together
from rtcontrol.models.runners.paged import MIN_SESSIONS, PAGE, USUAL_TOKENS, PagedModel, PassShape, power_of_two
from rtcontrol.models.runners.prefix_store import PrefixStore, prefix_key
from rtcontrol.models.runners.weights import ModelConfig, files_key, fingerprint, get_or_create, load_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SMALL_BYTES = 100_000_000  # up to this size of fp32 weights, CPUs use fp32, because bf16 is hardly faster
ONE_THREAD_BYTES = 64 << 20  # up to this size of weights, one CPU thread is the default
COLUMNS_KEPT = 16  # maximum number of cached sets of LM-head rows per sequence
SIZES = (8, 24, 48)  # numbers of nodes for which the time of a pass is measured


class TorchRunner:
    """A runner for one checkpoint on one device, with a KV cache for each session. `threads` limits torch's threads
    during a pass (None: torch's default)."""

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
        self.caps = Caps("torch", str(device), name, True, MAX_BATCH, True, parameters, config.vocabulary, summary)

    @classmethod
    def load(
        cls, folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None
    ) -> TorchRunner:
        """Return a runner for a checkpoint, on a GPU a PagedRunner. Callers with the same unchanged checkpoint, dtype,
        device and threads share one runner.

        `threads` limits torch's CPU threads during a pass (None: one for a small model, else torch's default). Raises
        UserError if the checkpoint or an option is not supported."""
        place = choose_device(device)
        kind = choose_dtype(dtype, folder, place)
        files = files_key(sorted(folder.glob("*.safetensors")))
        threads = choose_threads(threads, files)
        runner = PagedRunner if place.type == "cuda" else cls
        return get_or_create((files, kind, place, threads, runner), lambda: runner(folder, kind, place, threads))

    def open(self, prefix: Sequence[int]) -> tuple[PackedSequence, PrefixInfo]:
        """Return a sequence whose prompt is this prefix. Its KV is read from the disk cache, or computed and saved."""
        config, n = self.model.config, len(prefix)
        sequence = PackedSequence(self.model, self.slots)
        sequence.start(prefix, reserve=1)
        dtype = self.model.dtype  # dtype of keys and values
        settings = config.settings if dtype == self._dtype else f"{config.settings} {dtype}"
        key = prefix_key(self._weights, prefix, self._dtype, settings)
        store = PrefixStore()
        stored = store.load(key, (config.layers, 1, config.kv_heads, n, config.head_dim))
        if isinstance(stored, tuple):
            sequence.restore(prefix, *stored)
            return sequence, PrefixInfo(n, "disk")
        if n:
            with thread_limit(self.threads):
                sequence.run(())
            save_error = store.save(key, *sequence.cache.first_slots(n))
            stored = stored or save_error
        return sequence, PrefixInfo(n, "computed", stored)

    def copy(self, handle: PackedSequence, prefix: Sequence[int]) -> PackedSequence:
        """Return another sequence whose prompt is the same prefix."""
        sequence = PackedSequence(self.model, self.slots)
        sequence.copy_prefix(handle, prefix)
        return sequence

    def prefill(self, handle: PackedSequence, count: int) -> None:
        """Compute the next `count` tokens of the handle's prompt."""
        with thread_limit(self.threads):
            handle.prefill(count)

    def run(self, batch: Sequence[WorkItem]) -> list[list[Any]]:
        """Evaluate all work items in one pass; return for each the answers to the queries of its tree."""
        placed = [(work.handle, work.handle.nodes_of(work)) for work in batch]
        with thread_limit(self.threads):
            states = run_together(self.model, placed)
            each = zip(batch, states, strict=True)
            answers = compute_answers([(w.tree.queries, partial(self._logits, w.handle, hidden)) for w, hidden in each])
        for handle, nodes in placed:
            handle.record_pass(nodes)
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
        """Return the cost of a pass after a prompt of about the handle's length. It is measured only once."""
        about = len(handle.prompt).bit_length()
        if about not in self._costs:
            cost = pass_cost(self, handle, SIZES)
            with thread_limit(self.threads):
                choice = self._choice_ms()
            self._costs[about] = replace(cost, choice_ms=choice)
        return self._costs[about]

    def _choice_ms(self) -> float:
        """Measure the milliseconds that it takes to choose the best token of the whole vocabulary at one node."""
        hidden = torch.zeros(1, self.model.config.hidden, dtype=self.model.dtype, device=self.model.device)
        query = ScoreQuery([0], masks=np.ones((1, self.model.config.vocabulary), bool))
        best = float("inf")
        for _ in range(ROUNDS):
            started = time.perf_counter()
            compute_answers([([query], lambda nodes, ids: self.model.logits(hidden))])
            best = min(best, (time.perf_counter() - started) * 1e3)
        return best


load = TorchRunner.load


@contextmanager
def thread_limit(threads: int | None) -> Iterator[None]:
    """Set the number of torch's threads in this process within a `with` block. None leaves it unchanged."""
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
    """Return `threads` if it is not None; otherwise 1 for a small model, and torch's default (None) for a large model.
    If the quota of the container allows fewer threads, return this number, because more threads would have to wait.
    `files` is the result of `files_key` for the weights. Raises UserError if `threads` is less than 1.

    A second thread hardly speeds up a small model, but makes the slowest decisions a hundred times slower if another
    process is busy."""
    if threads is not None and threads < 1:
        raise UserError(f"The number of CPU threads is {threads}.", "Give 1 or more.")
    small = sum(size for _, size, _ in files) < ONE_THREAD_BYTES
    if threads is None and small:
        return 1
    usable = usable_processors()
    return usable if threads is None and usable < torch.get_num_threads() else threads


def choose_device(name: str | None) -> torch.device:
    """Return the device with this name (None: a GPU if there is one, else the CPU). Raises UserError if the device is
    unknown or missing."""
    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UserError(f"Unknown device {name!r}.", "Give cpu, cuda or cuda:NUMBER.") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"There is no device {name}: torch sees no GPU.", "Give cpu, or install torch for your GPU.")
    return place


def choose_dtype(name: str, folder: Path, device: torch.device) -> torch.dtype:
    """Return the dtype with this name. `auto` means fp32 for small models on a CPU, and bf16 otherwise. Raises
    UserError for an unknown name."""
    if name == "auto":
        size = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
        if read_config(folder).get("quantization_config"):
            size *= 8  # fp32 size of weights with four bits each
        name = "bf16" if device.type == "cuda" or size > SMALL_BYTES else "fp32"
    if name not in DTYPES:
        raise UserError(f"Unknown dtype {name!r}.", f"Choose auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


class PagedRunner(TorchRunner):
    """A TorchRunner for GPUs, with a paged KV cache in which sequences with the same prefix share pages, and with
    recorded CUDA graphs for usual passes."""

    kind = PagedModel
    model: PagedModel

    def open(self, prefix: Sequence[int]) -> tuple[PackedSequence, PrefixInfo]:
        """Return a sequence whose prompt is this prefix. Its KV is shared with another sequence, read from the disk
        cache, or computed and saved. Raises UserError if the pool is too small for the passes of all open sequences.

        Also record graphs for the usual passes of the sequence, alone or together with all open sequences (at least
        MIN_SESSIONS), and for shapes that were missed. Passes of other sequences wait until the graphs are recorded.
        """
        sequences = self.model.open_sequences
        other = next((opened for opened in sequences if opened.cached_length(prefix) == len(prefix)), None)
        if other is None:
            sequence, info = super().open(prefix)
        else:
            sequence, info = self.copy(other, prefix), PrefixInfo(len(prefix), "memory")
        sequences.add(sequence)
        self.model.pool.allocate(0, spare=len(sequences) * USUAL_TOKENS[-1] // PAGE)
        max_batch = min(max(len(sequences), MIN_SESSIONS), MAX_BATCH)
        batches = [2**i for i in range(power_of_two(max_batch).bit_length())]
        ends = [(len(prefix) + USUAL_TOKENS[0]) * n for n in (1, 2)]
        shapes = (PassShape.smallest(1, end, n, 1, rows) for n in batches for rows in USUAL_TOKENS for end in ends)
        self.model.record_graphs(shapes)
        return sequence, info

    def prefill(self, handle: PackedSequence, count: int) -> None:
        """Compute the next `count` tokens of the handle's prompt, and wait for the GPU: callers measure the time."""
        super().prefill(handle, count)
        self.model.synchronize()
