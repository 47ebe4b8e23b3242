"""Dequantise weights in the format of compressed-tensors when they are loaded.

A packed integer q stands for the weight (q - zero) * scale. Groups of inputs share zero and scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from rtcontrol.models.errors import UserError

METHOD, FORMAT = "compressed-tensors", "pack-quantized"


class Tensors(Protocol):
    """A mapping from names to tensors as they are stored in the files."""

    def __contains__(self, name: str) -> bool: ...

    def __getitem__(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True)
class Packing:
    """The format of a checkpoint's quantised weights: integers of `bits` bits, packed into 32-bit words."""

    bits: int

    @property
    def summary(self) -> str:
        """Return a description of the format for the report."""
        return f"{self.bits}-bit {METHOD}, dequantised"

    def scales_name(self, name: str) -> str:
        """Return the name of the tensor with the scales of a weight."""
        return f"{name}_scale"

    def weight(self, tensors: Tensors, name: str) -> torch.Tensor | None:
        """Return a dequantised weight as fp32 [outputs, inputs], or None if the weight is not quantised."""
        if self.scales_name(name) not in tensors:
            return None
        outputs, inputs = (int(n) for n in tensors[f"{name}_shape"])
        scale, offset = tensors[self.scales_name(name)].float(), 1 << (self.bits - 1)
        values = self._unpack(tensors[f"{name}_packed"])[:, :inputs] - offset
        if scale.ndim < 2:
            return values * scale
        groups = torch.arange(inputs) // -(-inputs // scale.shape[1])
        listed = f"{name}_g_idx"
        if listed in tensors and bool((indices := tensors[listed].long()).ge(0).all()):
            groups = indices
        if f"{name}_zero_point" in tensors:
            zero = self._unpack(tensors[f"{name}_zero_point"].T).T[:outputs] - offset
            values = values - zero[:, groups]
        return values * scale[:, groups]

    def _unpack(self, words: torch.Tensor) -> torch.Tensor:
        """Return integers [rows, words * (32 // bits)] from 32-bit words, lowest bits first."""
        shifts = torch.arange(32 // self.bits, dtype=torch.int32) * self.bits
        return ((words[..., None] >> shifts) & ((1 << self.bits) - 1)).flatten(1)


def read_packing(config: Mapping[str, Any], folder: Path) -> Packing | None:
    """Return the format of quantised weights according to `config.json`, or None if they are not quantised. Raises
    UserError for an unsupported format."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return None
    if isinstance(settings, dict) and settings.get("quant_method") in (METHOD, None) and (bits := _bit_width(settings)):
        return Packing(bits)
    raise UserError(
        f"{folder} is quantised in a format that the torch engine does not support ({_format_summary(settings)}).",
        "Use host.engine=vllm, or the original checkpoint.",
    )


def _bit_width(config: Mapping[str, Any]) -> int | None:
    """Return the number of bits if all weights have the same supported format, else None."""
    try:
        groups = list((config.get("config_groups") or {}).values())
        formats = {group.get("format") or config.get("format") for group in groups}
        weights = [group.get("weights") or {} for group in groups]
        bits = {weight.get("num_bits") for weight in weights}
        known = formats == {FORMAT} and {weight.get("strategy") for weight in weights} <= {"group", "channel", "tensor"}
        # Reject sparse weights and weights that are rotated at run time: the integers alone do not determine them.
        sparse = (config.get("sparsity_config") or {}).get("format") or "dense"
        alone = sparse == "dense" and not (config.get("transform_config") or {}).get("config_groups")
    except AttributeError:
        return None
    number = bits.pop() if len(bits) == 1 else None
    return number if known and alone and isinstance(number, int) and 1 <= number <= 8 else None


def _format_summary(settings: Any) -> str:
    if not isinstance(settings, dict):
        return repr(settings)
    names = ("quant_method", "format", "bits", "w_bit", "version", "checkpoint_format")
    listed = [f"{name} {settings[name]}" for name in names if settings.get(name) is not None]
    return ", ".join(listed) or "no quant_method"
