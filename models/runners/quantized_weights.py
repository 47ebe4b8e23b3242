"""Dequantise weights that compressed-tensors packed. Loaded weights take the memory of their dtype.

An integer q means (q - zero) * scale; consecutive inputs share zero and scale in groups.
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
    """A mapping of names to tensors as the files store them."""

    def __contains__(self, name: str) -> bool: ...

    def __getitem__(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True)
class Packing:
    """The storage of a checkpoint's weights: integers of `bits` bits, packed into words of 32."""

    bits: int

    @property
    def summary(self) -> str:
        """Return a description for the report."""
        return f"{self.bits}-bit {METHOD}, dequantised"

    def scales(self, name: str) -> str:
        """Return the name of a weight's scales."""
        return f"{name}_scale"

    def weight(self, tensors: Tensors, name: str) -> torch.Tensor | None:
        """Return a quantised weight as fp32 [outputs, inputs], else None."""
        if self.scales(name) not in tensors:
            return None
        outputs, inputs = (int(n) for n in tensors[f"{name}_shape"])
        scale, offset = tensors[self.scales(name)].float(), 1 << (self.bits - 1)
        values = self._unpacked(tensors[f"{name}_packed"])[:, :inputs] - offset
        if scale.ndim < 2:
            return values * scale
        groups = torch.arange(inputs) // -(-inputs // scale.shape[1])
        listed = f"{name}_g_idx"
        if listed in tensors and bool((indices := tensors[listed].long()).ge(0).all()):
            groups = indices
        if f"{name}_zero_point" in tensors:
            zero = self._unpacked(tensors[f"{name}_zero_point"].T).T[:outputs] - offset
            values = values - zero[:, groups]
        return values * scale[:, groups]

    def _unpacked(self, words: torch.Tensor) -> torch.Tensor:
        """Return integers [rows, words * (32 // bits)] from 32-bit words, lowest bits first."""
        shifts = torch.arange(32 // self.bits, dtype=torch.int32) * self.bits
        return ((words[..., None] >> shifts) & ((1 << self.bits) - 1)).flatten(1)


def packing(config: Mapping[str, Any], folder: Path) -> Packing | None:
    """Return how weights are packed according to `config.json`, or None if they are not. Raises UserError for an
    unsupported format."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return None
    if isinstance(settings, dict) and settings.get("quant_method") in (METHOD, None) and (bits := _bits(settings)):
        return Packing(bits)
    raise UserError(
        f"{folder} is quantised in a way that the torch engine cannot read ({_kind(settings)}).",
        "Run it with host.engine=vllm, or use the original.",
    )


def _bits(config: Mapping[str, Any]) -> int | None:
    """Return the bits of the weights if all are packed alike, else None; null fields count as absent."""
    try:
        groups = list((config.get("config_groups") or {}).values())
        formats = {group.get("format") or config.get("format") for group in groups}
        weights = [group.get("weights") or {} for group in groups]
        bits = {weight.get("num_bits") for weight in weights}
        known = formats == {FORMAT} and {weight.get("strategy") for weight in weights} <= {"group", "channel", "tensor"}
        # The integers alone do not give a weight that is sparse or rotated at run time.
        sparse = (config.get("sparsity_config") or {}).get("format") or "dense"
        alone = sparse == "dense" and not (config.get("transform_config") or {}).get("config_groups")
    except AttributeError:
        return None
    number = bits.pop() if len(bits) == 1 else None
    return number if known and alone and isinstance(number, int) and 1 <= number <= 8 else None


def _kind(settings: Any) -> str:
    if not isinstance(settings, dict):
        return repr(settings)
    names = ("quant_method", "format", "bits", "w_bit", "version", "checkpoint_format")
    listed = [f"{name} {settings[name]}" for name in names if settings.get(name) is not None]
    return ", ".join(listed) or "no quant_method"
