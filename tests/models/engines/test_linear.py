"""Packed weights and grouped query heads compute what the plain forms compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rtcontrol.models.runners import lean, packed, weights
from rtcontrol.models.runners.weights import Linear, can_pack
from tests.models.small import build, tool


@pytest.mark.parametrize("rows", [0, 1, 16, 17, 300])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 0.3), (torch.float64, 1e-9)])
def test_linear_equals_the_plain_product(rows: int, bias: bool, dtype: torch.dtype, near: float) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight, x = (torch.randn(n, 48, generator=generator).to(dtype) for n in (70, rows))
    add = torch.randn(70, generator=generator).to(dtype) if bias else None
    layer = Linear(weight, add)
    assert layer.shape == (70, 48)
    assert layer.numel == 70 * 48 + (70 if bias else 0)
    torch.testing.assert_close(layer(x), F.linear(x, weight, add), atol=near, rtol=near)


def test_linear_without_the_packed_operator_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_packed_linear", None)
    weight, x = torch.randn(5, 4), torch.randn(3, 4)
    assert not can_pack(weight)
    assert torch.equal(Linear(weight)(x), F.linear(x, weight))


def test_grouped_query_heads_attend_like_single_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, masks = [], []
    for cells in (lean.MASK_CELLS, 0):  # with none allowed, no mask is grouped
        monkeypatch.setattr(lean, "MASK_CELLS", cells)
        decider: Any = build(folder, [tool("go", v=["left", "right"])])
        decider.runner.model._masks.clear()
        sequence = decider.decoding.handle
        sequence.start([1, 2, 3, 4, 5], 2)
        nodes = [packed.Node(6, 0, ()), packed.Node(7, 1, (0,))]
        masks.append(sequence.rows(nodes)[2].mask.shape[2])
        found.append(sequence.run(nodes))
    assert masks == [7 * decider.runner.model.group, 7]
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)
