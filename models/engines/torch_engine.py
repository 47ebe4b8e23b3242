"""The default engine: our own lean forward over safetensors, one packed pass a decision."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.call import Decision
from rtcontrol.models.decoder import PackedDecoder
from rtcontrol.models.engines.base import Budget, NotFinite, PrefixInfo
from rtcontrol.models.engines.lean import LeanModel
from rtcontrol.models.engines.prefix_store import PrefixStore, prefix_key
from rtcontrol.models.engines.weights import ModelConfig, fingerprint, load_weights
from rtcontrol.models.errors import UserError
from rtcontrol.models.forecast import choose_budget, has_choice, measure_cost
from rtcontrol.models.packed import PackedSequence
from rtcontrol.models.plan import SchemaPlan
from rtcontrol.models.tokenizer import STTokenizer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SMALL = 100_000_000  # bytes of fp32 weights below which bf16 gains too little on a CPU to give up exactness
SLOTS = 8192


def choose_dtype(name: str, folder: Path, device: torch.device) -> torch.dtype:
    """`auto`: bf16 on a GPU and for large models, fp32 for small ones on a CPU."""
    if name == "auto":
        size = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
        name = "bf16" if device.type == "cuda" or size > SMALL else "fp32"
    if name not in DTYPES:
        raise UserError(f"Unknown dtype {name!r}.", f"Choose auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


class TorchEngine:
    """Qwen2/2.5/3 and Llama dense checkpoints on one CPU or GPU."""

    name = "torch"

    def __init__(
        self,
        folder: Path,
        tokenizer: STTokenizer,
        dtype: str = "auto",
        device: str | None = None,
        budget: Budget | None = None,  # None: chosen by the measured cost of a pass
        store: PrefixStore | None = None,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = choose_dtype(dtype, folder, self.device)
        config = ModelConfig.load(folder)
        weights = load_weights(folder, config, self.dtype, self.device)
        self.model = LeanModel(config, weights, min(SLOTS, config.context))
        self.sequence = PackedSequence(self.model)
        self._folder, self._tokenizer, self._budget = folder, tokenizer, budget
        self._store = store or PrefixStore()
        self._stop = threading.Event()
        self._prefix: list[int] = []
        self._decoder: PackedDecoder | None = None
        self._chosen: dict[str, Any] = {}  # what the auto budget came to

    def load_prefix(self, ids: Sequence[int], plan: SchemaPlan) -> PrefixInfo:
        """Take the prefix's KV from disk, or compute and store it; compile the plan."""
        config, n = self.model.config, len(ids)
        self._prefix = list(ids)
        self.sequence.forget()
        self.sequence.start(self._prefix, reserve=1)
        key = prefix_key(fingerprint(self._folder), ids, self.dtype, config.settings)
        found = self._store.load(key, (config.layers, 1, config.kv_heads, n, config.head_dim))
        note = found if isinstance(found, str) else None
        if isinstance(found, tuple):
            self.model.keys[..., :n, :] = found[0].to(self.device)
            self.model.values[..., :n, :] = found[1].to(self.device)
            self.sequence.restore(self._prefix)
        elif n:
            self.sequence.run([])
            refused = self._store.save(key, self.model.keys[..., :n, :], self.model.values[..., :n, :])
            note = note or refused
        self._decoder = PackedDecoder(self.sequence, plan, self._tokenizer, self._budget)
        self._chosen = {} if self._budget else self._auto_budget(self._decoder)
        source = "disk" if isinstance(found, tuple) else "computed"
        return PrefixInfo(n, source, note)

    def _auto_budget(self, decoder: PackedDecoder) -> dict[str, Any]:
        limit = Budget()
        if not has_choice(decoder.plan, decoder.walker, limit):
            return {"kind": "auto"}
        cost = measure_cost(self.sequence)
        budget, found = choose_budget(decoder.plan, decoder.walker, cost, limit)
        decoder.set_budget(budget)
        return {"kind": "auto", "pass_ms": round(cost.fixed_ms, 3), "token_ms": round(cost.token_ms, 4), **found}

    def decode(self, suffix: Sequence[int]) -> Decision:
        """One decision after prefix + `suffix`."""
        decoder = self._decoder
        if decoder is None:
            raise RuntimeError("decode before load_prefix")
        self._stop.clear()
        _, reused = self.sequence.start([*self._prefix, *suffix], reserve=len(decoder.first_nodes))
        with self._distrusting():
            return decoder.decide(reused, self._stop.is_set)

    def decode_many(self, suffixes: Sequence[Sequence[int]]) -> list[Decision]:
        """Decide after prefix + each suffix, batched in the same packed passes; equal to deciding each alone."""
        decoder = self._decoder
        if decoder is None:
            raise RuntimeError("decode before load_prefix")
        self._stop.clear()
        room = sum(len(s) + len(decoder.first_nodes) for s in suffixes)
        self.sequence.start(self._prefix, reserve=room)
        with self._distrusting():
            return decoder.decide_many(suffixes, self._stop.is_set)

    @contextmanager
    def _distrusting(self) -> Iterator[None]:
        """What scores that are not finite came from is not used again: the next decision computes its whole prompt."""
        try:
            yield
        except NotFinite:
            self.sequence.forget()
            raise

    def cancel(self) -> None:
        """Stop the decision in flight before its next pass."""
        self._stop.set()

    def supports(self) -> dict[str, Any]:
        return {
            "device": str(self.device),
            "dtype": next(k for k, v in DTYPES.items() if v == self.dtype),
            "parameters": self.model.weights.parameters,
            "free_values": True,
            "batch": True,
            "exact": True,
            "budget": self._chosen or ({} if self._budget is None else asdict(self._budget)),
        }
