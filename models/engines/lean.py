"""A lean forward pass over a static KV cache: tokens in, hidden states of the wanted rows out."""

from __future__ import annotations

import math
from functools import lru_cache
from mmap import mmap

import torch
import torch.nn.functional as F

from rtcontrol.models.engines.weights import Layer, ModelConfig, Weights


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take no memory on a CPU until they are written: most of a cache's slots never are."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


@lru_cache(maxsize=2)
def _rotations(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [context, 1, head_dim] of all positions; deciders of one model share them."""
    angles = torch.arange(config.context, dtype=torch.float32)[:, None] * torch.tensor(config.inv_freq)
    both = torch.cat([angles, angles], 1)[:, None]
    cos, sin = both.cos() * config.rope_scale, both.sin() * config.rope_scale
    return cos.to(device=device, dtype=dtype), sin.to(device=device, dtype=dtype)


class LeanModel:
    """A dense decoder with one preallocated KV cache of `slots` tokens, for one sequence (which may be a tree)."""

    def __init__(self, config: ModelConfig, weights: Weights, slots: int) -> None:
        self.config, self.weights, self.slots = config, weights, slots
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self.device, self.dtype = device, dtype
        self.group = config.heads // config.kv_heads  # query heads to a key head
        shape = (config.layers, 1, config.kv_heads, slots, config.head_dim)
        self.keys, self.values = _zeros(shape, dtype, device), _zeros(shape, dtype, device)
        # One view a layer: indexing the big tensor on every pass costs more than the copy it is for.
        self._cache = list(zip(self.keys.unbind(0), self.values.unbind(0), strict=True))
        self._cos, self._sin = _rotations(config, device, dtype)

    @torch.inference_mode()
    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, past: int, mask: torch.Tensor, first: int = 0
    ) -> torch.Tensor:
        """Run `tokens` [n] at `positions` [n] behind `past` cached slots, writing slots past..past+n.

        `mask` [1, 1, n, past + n] in the model's dtype: 0 where a row may see a slot, -inf elsewhere; or `grouped`.
        Returns normalised hidden states [n - first, hidden] of the rows from `first` on: the rows before it are there
        for their keys and values only, so the last layer ends for them where those are written.
        """
        x = F.embedding(tokens, self.weights.embedding)
        cos, sin = self.rotations(positions)
        last = len(self._cache) - 1
        for i, (layer, (keys, values)) in enumerate(zip(self.weights.layers, self._cache, strict=True)):
            start = first if i == last else 0
            attended = self._attention(layer, x, cos, sin, keys, values, past, mask, start)
            x = self.feed_forward(layer, (x[start:] if start else x) + attended)
        return self.norm(x, self.weights.norm)

    def rotations(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [n, 1, head_dim] of positions [n]."""
        return self._cos[positions], self._sin[positions]

    def projected(
        self, layer: Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim], rotated."""
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

    def feed_forward(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """The layer's second half."""
        gate, up = layer.gate_up(self.norm(x, layer.post_norm)).chunk(2, -1)
        return x + layer.down(F.silu(gate) * up)

    def grouped(self, mask: torch.Tensor) -> torch.Tensor:
        """A mask [1, 1, n, columns] for attention with all query heads of one key head as rows of one product: the keys
        are read once for all of them, which is up to 40 % faster for a few rows; the mask is `group` times as large."""
        return mask.repeat_interleave(self.group, 2) if self.group > 1 else mask

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """fp32 logits [n, vocabulary], or against given LM-head rows [columns, hidden]."""
        return F.linear(hidden, self.weights.lm_head if rows is None else rows).float()

    def _attention(
        self,
        layer: Layer,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        past: int,
        mask: torch.Tensor,
        start: int,
    ) -> torch.Tensor:
        """Attention output [n - start, hidden] of the rows from `start` on; all rows' keys and values are written."""
        c, n = self.config, x.shape[0]
        q, k, v = self.projected(layer, x, cos, sin)
        total = past + n
        keys[0, :, past:total] = k.transpose(0, 1)
        values[0, :, past:total] = v.transpose(0, 1)
        if start == n:
            return x[:0]
        if start:
            q, mask = q[start:], mask[:, :, start * (mask.shape[2] // n) :]
        rows = n - start
        if mask.shape[2] != rows:  # grouped: the query heads of one key head are more rows for it
            q = q.reshape(rows, c.kv_heads, self.group, c.head_dim).transpose(0, 1)
            q = q.reshape(1, c.kv_heads, rows * self.group, c.head_dim)
            out = F.scaled_dot_product_attention(q, keys[:, :, :total], values[:, :, :total], attn_mask=mask)
            out = out.view(c.kv_heads, rows, self.group, c.head_dim)
        else:
            out = F.scaled_dot_product_attention(
                q.transpose(0, 1)[None],
                keys[:, :, :total],
                values[:, :, :total],
                attn_mask=mask,
                enable_gqa=self.group > 1,
            )[0]
        return layer.out(out.transpose(0, 1).reshape(rows, c.heads * c.head_dim))

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.eps)
