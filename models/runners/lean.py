"""A fast forward pass of a dense decoder model, with a preallocated KV cache for each sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from mmap import mmap
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from rtcontrol.models.runners.weights import Layer, ModelConfig, Weights

SLOTS = 8192  # maximum number of tokens of a sequence
MAX_CACHED_CELLS = 1 << 23  # maximum number of elements in all cached masks of a model
MAX_MASK_CELLS = 1 << 19  # masks with more elements are rare; they are not cached, and not repeated for all query heads


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of zeros. On a CPU, pages of it take memory only after they are written, and many never are."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


@lru_cache(maxsize=4)
def _rotations(
    positions: int, inv_freq: tuple[float, ...], scale: float, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and sines [positions, 1, head_dim] of the rotary embedding, cached for all deciders."""
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * torch.tensor(inv_freq)
    both = torch.cat([angles, angles], 1)[:, None]
    cos, sin = both.cos() * scale, both.sin() * scale
    return cos.to(device=device, dtype=dtype), sin.to(device=device, dtype=dtype)


class KVCache:
    """The keys and values [layers, 1, kv_heads, slots, head_dim] of one sequence, which may end in a tree."""

    def __init__(self, model: LeanModel, slots: int) -> None:
        c, self.slots = model.config, slots
        shape = (c.layers, 1, c.kv_heads, slots, c.head_dim)
        self.keys, self.values = zeros(shape, model.dtype, model.device), zeros(shape, model.dtype, model.device)
        # Keep a view of each layer, because indexing the large tensor in every pass would be slow.
        self.layers = list(zip(self.keys.unbind(0), self.values.unbind(0), strict=True))

    def first_slots(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of the first `count` slots."""
        return self.keys[..., :count, :], self.values[..., :count, :]

    def fill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Set the first slots to these keys and values."""
        for target, source in zip(self.first_slots(keys.shape[-2]), (keys, values), strict=True):
            target.copy_(source)

    def copy_from(self, other: KVCache, count: int) -> None:
        """Copy the first `count` slots of another cache into this one."""
        self.fill(*other.first_slots(count))

    def reserve(self, first: int, total: int, release_rest: bool = False) -> None:
        """Do nothing, because all slots are preallocated. Other caches allocate the slots up to `total`, of which those
        from `first` on will be written; with `release_rest` they release the slots after `total`."""


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows (tokens) of one sequence in a pass: `count` new tokens after `past` cached tokens.

    `mask` is a result of `LeanModel.mask` (None: every row sees all slots, in benchmarks). For the first `skipped`
    rows, only keys and values are computed.
    """

    cache: Any
    past: int
    count: int
    mask: Any
    skipped: int = 0


class LeanModel:
    """A dense decoder model with a preallocated cache for each sequence."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights
        self.device, self.dtype = weights.norm.device, weights.norm.dtype  # device and dtype of states, keys and values
        self.group = config.heads // config.kv_heads  # number of query heads per key head
        self._masks: dict[Any, torch.Tensor] = {}
        positions = min(SLOTS, config.context)
        self._cos, self._sin = _rotations(positions, config.inv_freq, config.rope_scale, self.device, self.dtype)

    def cache(self, slots: int) -> Any:
        """Return an empty cache for a sequence of at most `slots` tokens."""
        return KVCache(self, slots)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], positions: Sequence[int], parts: Sequence[SequenceRows]) -> torch.Tensor:
        """Run `tokens` [n] at `positions` [n], which are the rows of all `parts` one after another. All parts share the
        matrix products with the weights; each part attends to its own cache, and writes its slots past..past+count.

        Returns normalised states [rows, hidden] of the rows that are not `skipped`.
        """
        x = F.embedding(torch.tensor(tokens, device=self.device), self.weights.embedding).to(self.dtype)
        places = torch.tensor(positions, device=self.device)
        cos, sin = self._cos[places], self._sin[places]
        last, is_single = len(self.weights.layers) - 1, len(parts) == 1
        counts = [p.count for p in parts]
        for i, layer in enumerate(self.weights.layers):
            is_last = i == last
            qkv = self._project(layer, x, cos, sin)
            if is_single:
                attended = self._attention(i, parts[0], is_last, *qkv)
            else:
                inputs = zip(parts, *(t.split(counts) for t in qkv), strict=True)
                attended = torch.cat([self._attention(i, part, is_last, q, k, v) for part, q, k, v in inputs])
            if is_last and is_single:
                x = x[parts[0].skipped :]
            elif is_last:
                x = torch.cat([rows[p.skipped :] for p, rows in zip(parts, x.split(counts), strict=True)])
            x = self._after_attention(layer, x, attended)
        return self.norm(x, self.weights.norm)

    def _after_attention(self, layer: Layer, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        x = x + layer.out(attended)
        gate, up = layer.gate_up(self.norm(x, layer.post_norm)).chunk(2, -1)
        return x + layer.down(F.silu(gate) * up)

    def _project(
        self, layer: Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return rotated queries [n, heads, head_dim], rotated keys and values [n, kv_heads, head_dim]."""
        c = self.config
        qkv = layer.qkv(self.norm(x, layer.input_norm)).view(x.shape[0], c.heads + 2 * c.kv_heads, c.head_dim)
        qk, v = qkv.split([c.heads + c.kv_heads, c.kv_heads], 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split([c.heads, c.kv_heads], 1)
            qk = torch.cat([self.norm(q, layer.q_norm), self.norm(k, layer.k_norm)], 1)
        left, right = qk.chunk(2, -1)
        qk = qk * cos + torch.cat([-right, left], -1) * sin
        q, k = qk.split([c.heads, c.kv_heads], 1)
        return q, k, v

    def mask(self, past: int, fresh: int, earlier: int, ancestors: Sequence[tuple[int, ...]]) -> Any:
        """Return the attention mask of a pass after `past` cached slots, the last `earlier` of which are nodes. The
        pass has `fresh` prompt tokens, and nodes that see the prompt and their `ancestors` (slots after the prompt).

        The mask [1, 1, rows, past + rows] is 0 where a row may see a slot, else -inf. The rows of a small mask are
        repeated for all query heads of a key head, which is up to 40 % faster.
        """
        key = (past, fresh, earlier, ancestors)
        mask = self._masks.get(key)
        if mask is None:
            n, prompt = fresh + len(ancestors), past + fresh - earlier
            visible = np.zeros((n, past + n), np.bool_)
            visible[:fresh, :past] = True
            visible[:fresh, past : past + fresh] = np.tri(fresh, dtype=np.bool_)
            for i, above in enumerate(ancestors):
                row = visible[fresh + i]
                row[:prompt] = True
                row[[prompt + a for a in above]] = True
                row[past + fresh + i] = True
            bias = np.where(visible, np.float32(0), np.float32(-np.inf))
            mask = torch.from_numpy(bias)[None, None].to(self.device, self.dtype)
            if self.group > 1 and mask.numel() * self.group <= MAX_MASK_CELLS:
                mask = mask.repeat_interleave(self.group, 2)
            if mask.numel() <= MAX_MASK_CELLS:
                if sum(m.numel() for m in list(self._masks.values())) + mask.numel() > MAX_CACHED_CELLS:
                    self._masks.clear()
                self._masks[key] = mask
        return mask

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Return fp32 logits [n, vocabulary], or [n, columns] for some `rows` [columns, hidden] of the LM head."""
        head = self.weights.lm_head if rows is None else rows
        return F.linear(hidden.to(head.dtype), head).float()

    def _attention(
        self, layer: int, part: SequenceRows, is_last: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Write keys and values of all rows to the cache, and return the attention output [rows, heads * head_dim]. The
        last layer leaves out skipped rows."""
        c, n, total = self.config, part.count, part.past + part.count
        mask = part.mask
        keys, values = part.cache.layers[layer]
        keys[0, :, part.past : total] = k.transpose(0, 1)
        values[0, :, part.past : total] = v.transpose(0, 1)
        keys, values = keys[:, :, :total], values[:, :, :total]
        start = part.skipped if is_last else 0
        rows = n - start
        if not rows:
            return q.new_zeros(0, c.heads * c.head_dim)
        if start:
            q = q[start:]
            mask = None if mask is None else mask[:, :, start * (mask.shape[2] // n) :]
        if mask is None or mask.shape[2] != rows:  # the query heads of a key head become additional rows
            q = q.reshape(rows, c.kv_heads, self.group, c.head_dim).transpose(0, 1)
            q = q.reshape(1, c.kv_heads, rows * self.group, c.head_dim)
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            out = out.view(c.kv_heads, rows, self.group, c.head_dim)
        else:
            q = q.transpose(0, 1)[None]
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=self.group > 1)[0]
        return out.transpose(0, 1).reshape(rows, c.heads * c.head_dim)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.eps)
