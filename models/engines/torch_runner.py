"""The default runner: our own lean forward over safetensors, for dense checkpoints on one CPU or GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from rtcontrol.models.core import Ask
from rtcontrol.models.cost import PassCost, fitted
from rtcontrol.models.engines.base import Caps, PrefixInfo, Work
from rtcontrol.models.engines.lean import LeanModel
from rtcontrol.models.engines.prefix_store import PrefixStore, prefix_key
from rtcontrol.models.engines.weights import ModelConfig, fingerprint, load_weights
from rtcontrol.models.errors import UserError
from rtcontrol.models.packed import Node, PackedSequence, run_together

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SMALL = 100_000_000  # bytes of fp32 weights below which bf16 gains too little on a CPU to give up exactness
ONE_THREAD = 64 << 20  # bytes of weights below which one CPU thread decides
SLOTS = 8192
TOGETHER = 64  # decisions of one pass
SIZES, ROUNDS = (8, 24, 48), 5  # tokens of the measured passes, and how often each


class TorchSequence(PackedSequence):
    """A session's handle. `paths` are the KV slots, counted from the prompt's end, that lead to each of its nodes;
    `states` [nodes, hidden] of every pass what they gave."""

    def __init__(self, model: LeanModel, slots: int) -> None:
        super().__init__(model, slots)
        self.paths: list[tuple[int, ...]] = []
        self.states: list[torch.Tensor] = []
        self.columns: tuple[Any, torch.Tensor] = (None, torch.empty(0))  # ids asked for, rows of the LM head

    def start(self, prompt: Sequence[int], reserve: int) -> int:
        self.paths, self.states = [], []
        return super().start(prompt, reserve)

    def placed(self, work: Work) -> list[Node]:
        """The nodes of the next tree, at the slots that they would take."""
        tree, paths, base = work.tree, list(self.paths), self.nodes
        found = []
        for i, (token, parent, depth) in enumerate(zip(tree.tokens, tree.parents, tree.depths, strict=True)):
            above = paths[parent] if parent >= 0 else ()
            paths.append((*above, base + i))
            found.append(Node(token, depth, above))
        return found

    def ran(self, nodes: Sequence[Node]) -> None:
        self.paths += [(*node.ancestors, i) for i, node in enumerate(nodes, start=self.nodes)]
        super().ran(nodes)


class TorchRunner:
    """One checkpoint's weights on one device; of each session a KV cache of its own. `threads` are torch's while it
    runs (None: torch's own number)."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, threads: int | None) -> None:
        config = ModelConfig.load(folder)
        self.model = LeanModel(config, load_weights(folder, config, dtype, device))
        self._folder, self.threads, self._slots = folder, threads, min(SLOTS, config.context)
        self._costs: dict[int, PassCost] = {}
        name = next(k for k, v in DTYPES.items() if v == dtype)
        parameters = self.model.weights.parameters
        self.caps = Caps("torch", str(device), name, True, TOGETHER, True, parameters, config.vocabulary)

    @classmethod
    def load(
        cls, folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None
    ) -> TorchRunner:
        """The runner of a checkpoint: whoever asks for the same unchanged one, dtype, device and threads shares it.

        `threads` limits torch's CPU threads while it runs (None: one for a small model, else torch's own number).
        """
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = choose_dtype(dtype, folder, place)
        files = [(path.resolve(), path.stat()) for path in sorted(folder.glob("*.safetensors"))]
        if threads is None and sum(stat.st_size for _, stat in files) < ONE_THREAD:
            # A second thread gains little on a small model, and waits for its turn when another process is busy: the
            # worst decisions become a hundred times slower.
            threads = 1
        key = (tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in files), kind, place, threads)
        with _loading:
            found = _loaded.get(key)
            if found is None:
                found = _loaded[key] = cls(folder, kind, place, threads)
            return found

    def open(self, prefix: Sequence[int]) -> tuple[TorchSequence, PrefixInfo]:
        """A sequence that begins with this prefix: its KV from disk, or computed and stored."""
        config, n = self.model.config, len(prefix)
        made = TorchSequence(self.model, self._slots)
        made.start(prefix, reserve=1)
        key = prefix_key(fingerprint(self._folder), prefix, self.model.dtype, config.settings)
        store = PrefixStore()
        found = store.load(key, (config.layers, 1, config.kv_heads, n, config.head_dim))
        note = found if isinstance(found, str) else None
        keys, values = made.cache.keys[..., :n, :], made.cache.values[..., :n, :]
        if isinstance(found, tuple):
            keys.copy_(found[0])
            values.copy_(found[1])
            made.restore(prefix)
            return made, PrefixInfo(n, "disk")
        if n:
            with self._own_threads():
                made.run(())
            refused = store.save(key, keys, values)
            note = note or refused
        return made, PrefixInfo(n, "computed", note)

    def copy(self, handle: TorchSequence, prefix: Sequence[int]) -> TorchSequence:
        """Another sequence behind the same prefix."""
        made, n = TorchSequence(self.model, self._slots), len(prefix)
        made.cache.keys[..., :n, :] = handle.cache.keys[..., :n, :]
        made.cache.values[..., :n, :] = handle.cache.values[..., :n, :]
        made.restore(prefix)
        return made

    def prefill(self, handle: TorchSequence, count: int) -> None:
        """Compute the next `count` tokens of its prompt, and no node."""
        with self._own_threads():
            handle.prefill(count)

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """One pass for all; of each work what its tree asks for: fp32 scores, or the best of all legal ids."""
        placed = [(work.handle, work.handle.placed(work)) for work in batch]
        with self._own_threads():
            found = run_together(self.model, placed)
            for work, hidden in zip(batch, found, strict=True):
                work.handle.states.append(hidden)
            return [self.answers(w.handle, hidden, w.tree.asks) for w, hidden in zip(batch, found, strict=True)]

    def cost(self, handle: TorchSequence) -> PassCost:
        """What a pass behind the prompt of a handle costs: measured once for prompts of about this length. The prompt
        stays cached."""
        about, prompt = len(handle.prompt).bit_length(), list(handle.prompt)
        if len(prompt) + max(SIZES) > handle.slots:
            return PassCost(1.0, 0.0)  # where there is no room to measure, passes count
        if about not in self._costs:
            best = dict.fromkeys(SIZES, float("inf"))
            with self._own_threads():
                for _ in range(ROUNDS):
                    for size in SIZES:
                        nodes = [Node(i % self.model.config.vocabulary, 0, ()) for i in range(size)]
                        handle.restore(prompt)
                        began = time.perf_counter()
                        handle.run(nodes)[-1].cpu()  # waits for a GPU
                        best[size] = min(best[size], (time.perf_counter() - began) * 1e3)
            handle.restore(prompt)
            handle.paths = []
            self._costs[about] = fitted(best)
        return self._costs[about]

    def answers(self, handle: TorchSequence, hidden: torch.Tensor, asks: Sequence[Ask]) -> list[Any]:
        """What is asked at hidden states [nodes, hidden]."""
        found: list[Any] = []
        masked = sorted({n for ask in asks if ask.masks is not None for n in ask.nodes})
        scores = self.model.logits(hidden[masked]).double() if masked else hidden
        for ask in asks:
            if ask.masks is None and not ask.ids:  # their keys and values are wanted, no score
                found.append([()] * len(ask.nodes))
                continue
            if ask.masks is None:
                if handle.columns[0] is not ask.ids:
                    ids = torch.tensor(ask.ids, dtype=torch.long, device=self.model.device)
                    handle.columns = ask.ids, self.model.weights.lm_head[ids]
                found.append(self.model.logits(hidden[: len(ask.nodes)], handle.columns[1]).tolist())
                continue
            rows = scores[[masked.index(n) for n in ask.nodes]]
            rows = rows.masked_fill(~torch.from_numpy(ask.masks).to(self.model.device), -torch.inf)
            best = rows.amax(-1, keepdim=True)
            ids = (rows == best).int().argmax(-1)  # the first of equals, as in every other place
            share = 1.0 / (rows - best).exp().sum(-1)
            found.append(list(zip(ids.tolist(), share.tolist(), strict=True)))
        return found

    def logsumexp(self, handle: TorchSequence, nodes: Sequence[int]) -> list[float]:
        """Over the whole vocabulary at nodes of the last decision."""
        with self._own_threads():
            total: list[float] = torch.logsumexp(self.model.logits(torch.cat(handle.states)[list(nodes)]), -1).tolist()
        return total

    @contextmanager
    def _own_threads(self) -> Iterator[None]:
        """torch's threads are the process's: others' numbers are theirs again afterwards."""
        before = torch.get_num_threads()
        if self.threads in (None, before):
            yield
            return
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


_loaded: WeakValueDictionary[Any, TorchRunner] = WeakValueDictionary()
_loading = threading.Lock()


def choose_dtype(name: str, folder: Path, device: torch.device) -> torch.dtype:
    """`auto`: bf16 on a GPU and for large models, fp32 for small ones on a CPU."""
    if name == "auto":
        size = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
        name = "bf16" if device.type == "cuda" or size > SMALL else "fp32"
    if name not in DTYPES:
        raise UserError(f"Unknown dtype {name!r}.", f"Choose auto, {', '.join(DTYPES)}.")
    return DTYPES[name]
