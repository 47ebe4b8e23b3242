"""Products with a layer's weights on a CPU: as they are, packed for oneDNN, or of bf16 numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

ROWS = 16  # the number of rows that a packed weight is laid out for; others work too


class Linear:
    """`x @ weight.T + bias` for x [rows, inputs]; `numel` counts both parameters.

    On a CPU with oneDNN the weight is kept in oneDNN's own blocked layout: 15 rows through the bundled model take half
    the time of `F.linear` in fp32, which lays the weight out anew on every call.
    """

    __slots__ = ("_bias", "_packed", "_weight", "numel", "shape")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.shape = tuple(weight.shape)
        self.numel = weight.numel() + (0 if bias is None else bias.numel())
        self._packed = can_pack(weight)
        self._weight: Any = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if self._packed else weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed:
            y: torch.Tensor = _packed_linear(x, self._weight, self._bias, "none", [], "")
            return y
        return F.linear(x, self._weight, self._bias)


def _find() -> Any:
    # torch.compile's own operators: without a public name, so whatever is wrong with them means plain F.linear.
    try:
        operator = torch.ops.mkldnn._linear_pointwise.default
        weight = torch.eye(2)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        return operator if torch.equal(operator(weight, packed, None, "none", [], ""), weight) else None
    except (AttributeError, RuntimeError):
        return None


_packed_linear: Any = _find()


def can_pack(weight: torch.Tensor) -> bool:
    """Whether a weight is kept in oneDNN's layout: fp32 on a CPU, or bf16 where the CPU multiplies it."""
    if _packed_linear is None or weight.device.type != "cpu":
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class RoundedLinear(Linear):
    """fp32 in and out; the product is of bf16 numbers, added in fp32."""

    __slots__ = ()

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight.to(torch.bfloat16), None if bias is None else bias.to(torch.bfloat16))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x.to(torch.bfloat16)).float()
