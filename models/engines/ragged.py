"""Many sequences behind one cached prefix, in one forward pass: tokens lie flat, attention is each sequence's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from rtcontrol.models.engines.lean import LeanModel
from rtcontrol.models.packed import too_long


@dataclass(frozen=True, slots=True)
class Part:
    """New tokens of one sequence. `parents` are its own slots (what came first has slot 0); -1 stands for the prefix's
    end. `depths` are counted from there."""

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]


class RaggedBatch:
    """`size` sequences of at most `room` tokens each behind the first `prefix` slots of the model's cache.

    A pass attends to the prefix with all rows of all sequences at once, and to each sequence's own tokens by itself: it
    costs what its tokens cost, where one mask over everything would cost its square.
    """

    def __init__(self, model: LeanModel, prefix: int, size: int, room: int) -> None:
        self.model, self.prefix, self.room = model, prefix, room
        c = model.config
        shape = (c.layers, size, c.kv_heads, room, c.head_dim)
        self._keys = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self._values = torch.zeros_like(self._keys)
        self._sees = np.zeros((size, room, room), np.bool_)  # which slots each slot's token sees
        self._used = [0] * size

    @torch.inference_mode()
    def run(self, parts: Sequence[tuple[int, Part]]) -> list[torch.Tensor]:
        """Evaluate the parts of these sequences; hidden states [tokens, hidden] of each."""
        model, c, device = self.model, self.model.config, self.model.device
        rows = max(len(part.tokens) for _, part in parts)
        count = len(parts)
        self._fit(parts)
        tokens = [t for _, part in parts for t in part.tokens]
        positions = torch.tensor([self.prefix + d for _, part in parts for d in part.depths], device=device)
        # Where each token lies in the flat list, in the padded grid of rows, and in the tails.
        grid = torch.tensor(
            [b * rows + r for b, (_, p) in enumerate(parts) for r in range(len(p.tokens))], device=device
        )
        owner = torch.tensor([i for i, part in parts for _ in part.tokens], device=device)
        slot = torch.tensor([self._used[i] + r for i, part in parts for r in range(len(part.tokens))], device=device)
        mask = self._mask(parts, rows)
        chosen = torch.tensor([i for i, _ in parts], device=device)
        width, group = mask.shape[-1], model.group
        cos, sin = model.rotations(positions)
        x = F.embedding(torch.tensor(tokens, device=device), model.weights.embedding)
        scale = c.head_dim**-0.5
        for n, layer in enumerate(model.weights.layers):
            q, k, v = model.projected(layer, x, cos, sin)
            self._keys[n, owner, :, slot] = k
            self._values[n, owner, :, slot] = v
            padded = q.new_zeros(count * rows, c.heads, c.head_dim)
            padded[grid] = q * scale
            # The query heads of one key head are more rows for it: [count, kv_heads, rows * group, head_dim].
            queries = padded.view(count, rows, c.kv_heads, group, c.head_dim).transpose(1, 2)
            queries = queries.reshape(count, c.kv_heads, rows * group, c.head_dim)
            before = model.keys[n, 0, :, : self.prefix], model.values[n, 0, :, : self.prefix]
            own = self._keys[n, chosen, :, :width], self._values[n, chosen, :, :width]
            scores = torch.cat([queries @ before[0].transpose(-1, -2), queries @ own[0].transpose(-1, -2) + mask], -1)
            shares = scores.float().softmax(-1).to(x.dtype)
            out = shares[..., : self.prefix] @ before[1] + shares[..., self.prefix :] @ own[1]
            out = out.view(count, c.kv_heads, rows, group, c.head_dim).transpose(1, 2)
            x = x + layer.out(out.reshape(count * rows, c.heads * c.head_dim)[grid])
            x = model.feed_forward(layer, x)
        x = model.norm(x, model.weights.norm)
        for i, part in parts:
            self._used[i] += len(part.tokens)
        return list(x.split([len(part.tokens) for _, part in parts]))

    def _fit(self, parts: Sequence[tuple[int, Part]]) -> None:
        """Room for the new tokens. Raises UserError where the model's context ends."""
        if self.prefix + max(d for _, part in parts for d in part.depths) >= self.model.config.context:
            raise too_long(self.model.config.context)
        needed = max(self._used[i] + len(part.tokens) for i, part in parts)
        if needed > self.room:
            more = max(needed, 2 * self.room) - self.room
            self._keys, self._values = (F.pad(t, (0, 0, 0, more)) for t in (self._keys, self._values))
            self._sees = np.pad(self._sees, ((0, 0), (0, more), (0, more)))
            self.room += more

    def _mask(self, parts: Sequence[tuple[int, Part]], rows: int) -> torch.Tensor:
        """[sequences, 1, rows * group, slots]: 0 where a row may see a slot, -inf elsewhere."""
        width = max(self._used[i] + len(part.tokens) for i, part in parts)
        sees = np.zeros((len(parts), rows, width), np.bool_)
        for b, (i, part) in enumerate(parts):
            base, own = self._used[i], self._sees[i]
            for r, parent in enumerate(part.parents):
                if parent >= 0:
                    own[base + r] = own[parent]
                own[base + r, base + r] = True
            sees[b, : len(part.tokens)] = own[base : base + len(part.tokens), :width]
        bias = np.where(sees, np.float32(0), np.float32(-np.inf))
        mask = torch.from_numpy(bias)[:, None].to(self.model.device, self.model.dtype)
        return mask.repeat_interleave(self.model.group, 2)
